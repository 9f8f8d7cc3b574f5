"""Exports, read back: TensorBoard's events by its own reader, Prometheus' text by a strict parser."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pytest

from stoker.errors import MissingExtra, NotPermitted, RecordBroken, UsageError
from stoker.watch import Record, Step
from stoker.watch.export import export
from stoker.watch.phases import Batch
from stoker.watch.prometheus import Page
from stoker.watch.record import LineWriter, Writer

# tensorboard asks numpy and protobuf for names that they are about to drop.
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard.*")]

START = 1_700_000_000.0


def a_step(number: int, *, wait: float | None = 0.25, t: float | None = None) -> Step:
    return Step(
        step=number,
        t=START + number if t is None else t,
        samples=8,
        loader=0,
        wait=wait,
        copy=0.0,
        forward=0.25,
        backward=0.375,
        update=0.0625,
        other=0.0625,
    )


def make_record(
    root: Path, name: str = "a-run", *, steps_before: int | None = None, ranks: int = 1
) -> Record:
    for rank in range(ranks):
        writer = Writer(root / name, rank)
        if rank == 0:
            writer.describe_run({"id": name, "started": START, "steps_before": steps_before})
        writer.describe_rank({"rank": rank, "outcome": "done", "ended": START + 9, "overhead": None})
        lines = LineWriter(writer.rank_folder)
        for number in range(4):
            lines.add("steps", a_step(number).to_line())
            resources = {"t": START + number + 0.5, "rss_bytes": 1000 + number, "throttled_us": 2_000_000}
            gpus = [{"index": 0, "used_bytes": 5, "utilisation_percent": 50, "power_w": None}]
            processes = [{"pid": 7, "cpu_s": 1.5}]
            lines.add("resources", json.dumps({**resources, "gpus": gpus, "processes": processes}))
        for seq in range(2):
            batch = Batch(
                loader=0, worker=0, seq=seq, t=START, samples=8, read=0.5, transform=0.25, collate=0.125,
                handoff=None, pin=None, cpu=0.25, queued=None, bytes=100, disk=None, faults=0,
                calls={"item": 8},
            )  # fmt: skip
            lines.add("batches", json.dumps(asdict(batch)))
        lines.close()
    return Record.open(root / name)


# --- TensorBoard ----------------------------------------------------------------------------------------


def scalars_of(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return {
        tag: [(event.step, event.wall_time, event.value) for event in read.Scalars(tag)]
        for tag in read.Tags()["scalars"]
    }


def test_tensorboard_has_phases_rates_and_resources_by_absolute_step_and_time(tmp_path: Path) -> None:
    """After a resume at 100 the first step is 100; a resource stands at the step that it followed."""
    folder = export(make_record(tmp_path, steps_before=100), "tensorboard")
    assert folder is not None
    found = scalars_of(folder / "rank0")
    assert found["phase_seconds/wait"] == [(100 + n, START + n, 0.25) for n in range(4)]
    assert [value for *_, value in found["phase_share/backward"]] == [0.375] * 4
    assert [value for *_, value in found["rate/samples_per_s"]] == [8.0] * 4
    assert [(step, value) for step, _, value in found["resource/rss_bytes"]] == [
        (100, 1000.0), (101, 1001.0), (102, 1002.0), (103, 1003.0),
    ]  # fmt: skip
    assert found["resource/rss_bytes"][0][1] == START + 0.5
    assert found["resource/gpus/0/used_bytes"][0][2] == 5.0
    assert found["resource/processes/7/cpu_s"][0][2] == 1.5
    assert "resource/gpus/0/power_w" not in found


def test_what_was_not_measured_is_no_scalar(tmp_path: Path) -> None:
    """A step without a loader has no `wait`, rather than one of 0."""
    writer = Writer(tmp_path / "bare", 0)
    writer.describe_run({"id": "bare"})
    writer.describe_rank({"rank": 0})
    lines = LineWriter(writer.rank_folder)
    lines.add("steps", a_step(0, wait=None).to_line())
    lines.close()
    folder = export(Record.open(tmp_path / "bare"), "tensorboard")
    assert folder is not None
    found = scalars_of(folder / "rank0")
    assert "phase_seconds/forward" in found
    assert "phase_seconds/wait" not in found
    assert "phase_share/wait" not in found


def test_exporting_again_takes_the_earlier_export_s_place(tmp_path: Path) -> None:
    """A second export leaves one file of events, and every rank has a folder."""
    record = make_record(tmp_path, ranks=2)
    for _ in range(2):
        export(record, "tensorboard", tmp_path / "events")
    assert [len(list((tmp_path / "events" / f"rank{k}").iterdir())) for k in range(2)] == [1, 1]
    assert len(scalars_of(tmp_path / "events" / "rank1")["step_seconds"]) == 4


def test_without_tensorboard_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What to install is said."""
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match=r"stoker\[tensorboard\]"):
        export(make_record(tmp_path), "tensorboard")


# --- Prometheus -----------------------------------------------------------------------------------------

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
_UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_SAMPLE = re.compile(rf"({_NAME})(?:\{{({_LABEL}(?:,{_LABEL})*)?\}})? (\S+)$")


def parse(text: str) -> dict[str, tuple[str, list[tuple[str, Mapping[str, str], float]]]]:
    """Families by name: (type, samples). Fails on whatever the exposition format does not allow."""
    assert text.endswith("\n")
    families: dict[str, tuple[str, list[tuple[str, Mapping[str, str], float]]]] = {}
    helped: set[str] = set()
    current = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ")[2]
            assert name not in helped, f"HELP twice: {name}"
            helped.add(name)
        elif line.startswith("# TYPE "):
            _, _, current, kind = line.split(" ")
            assert current not in families, f"a family in two places: {current}"
            assert kind in ("counter", "gauge", "summary", "histogram", "untyped")
            assert kind != "counter" or current.endswith("_total")
            families[current] = (kind, [])
        else:
            match = _SAMPLE.match(line)
            assert match, f"not a sample: {line!r}"
            name, shown, value = match.groups()
            suffixes = ("", "_sum", "_count") if families[current][0] == "summary" else ("",)
            assert name in {current + suffix for suffix in suffixes}, f"{name} under {current}"
            pairs = re.findall(r'([a-zA-Z0-9_]+)="((?:[^"\\]|\\.)*)"', shown or "")
            labels = {k: re.sub(r"\\.", lambda m: _UNESCAPED[m.group()], v) for k, v in pairs}
            sample = (name, labels, float(value))
            assert (name, labels) not in [seen[:2] for seen in families[current][1]], f"twice: {line}"
            families[current][1].append(sample)
    assert helped == set(families)
    return families


def value_of(text: str, name: str, **labels: str) -> float:
    family = parse(text)[re.sub("_(sum|count)$", "", name)]
    (value,) = [v for n, given, v in family[1] if n == name and labels.items() <= given.items()]
    return value


def prometheus_of(record: Record, folder: Path) -> str:
    out = folder / "page.prom"
    assert export(record, "prometheus", out) == out
    return out.read_text()


def test_prometheus_text_is_strictly_well_formed_and_true(tmp_path: Path) -> None:
    """Every family has HELP and TYPE once, base units, and the record's sums."""
    text = prometheus_of(make_record(tmp_path, ranks=2), tmp_path)
    assert value_of(text, "stoker_steps_total", rank="1") == 4
    assert value_of(text, "stoker_phase_seconds_total", rank="0", phase="wait") == 1.0
    assert value_of(text, "stoker_step_seconds_sum", rank="0") == 4.0
    assert value_of(text, "stoker_step_seconds", rank="0", quantile="0.99") == 1.0
    assert value_of(text, "stoker_sustained_steps_per_second", rank="0") == 1.0
    assert value_of(text, "stoker_batch_seconds_total", rank="0", loader="0", part="read") == 1.0
    assert value_of(text, "stoker_batch_calls_total", rank="0", call="item") == 16
    assert value_of(text, "stoker_counted_batch_read_bytes_total", rank="0") == 200
    assert value_of(text, "stoker_throttled_seconds_total", rank="0") == 2.0
    assert value_of(text, "stoker_gpu_utilization_ratio", rank="0", gpu="0") == 0.5
    assert value_of(text, "stoker_run_info", rank="0", outcome="done") == 1


def test_prometheus_leaves_out_what_was_not_measured(tmp_path: Path) -> None:
    """No None, no NaN, no 0 in a missing value's place."""
    text = prometheus_of(make_record(tmp_path), tmp_path)
    assert "None" not in text
    assert "nan" not in text.lower()
    families = parse(text)
    assert "stoker_gpu_power_watts" not in families
    assert {labels["part"] for _, labels, _ in families["stoker_batch_seconds_total"][1]} == {
        "read", "transform", "collate", "cpu",
    }  # fmt: skip


def test_label_values_are_escaped(tmp_path: Path) -> None:
    """Quotes, backslashes and line ends in a name come back as they were."""
    name = 'odd "na\\me"\nrun'
    text = prometheus_of(make_record(tmp_path, name), tmp_path)
    assert value_of(text, "stoker_steps_total", run=name, rank="0") == 4
    page = Page()
    page.add("x_total", "counter", "a\\b\nc", 1, {})
    assert page.text() == "# HELP x_total a\\\\b\\nc\n# TYPE x_total counter\nx_total{} 1\n"


# --- the verb -------------------------------------------------------------------------------------------


def stoker(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stoker", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)


def test_the_verb_prints_prometheus_text_and_json(tmp_path: Path) -> None:
    """`stoker export RUN --to prometheus` goes to stdout; with --out and --json the place is told."""
    make_record(tmp_path / ".stoker" / "runs")
    plain = stoker("export", "latest", "--to", "prometheus", cwd=tmp_path)
    assert (plain.returncode, plain.stderr) == (0, "")
    assert value_of(plain.stdout, "stoker_steps_total", run="a-run") == 4
    told = stoker("export", "a-run", "--to", "prometheus", "--out", "page.prom", "--json", cwd=tmp_path)
    assert json.loads(told.stdout) == {"schema": 1, "run": "a-run", "to": "prometheus", "out": "page.prom"}
    assert (tmp_path / "page.prom").read_text() == plain.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere", "--to", "prometheus"], "no record at nowhere"),
        (["a-run", "--to", "excel"], "'excel'; the formats are tensorboard and prometheus"),
        (["broken", "--to", "prometheus"], "cannot be read"),
        (["old", "--to", "prometheus"], "has schema 99"),
        (["a-run", "--to", "prometheus", "--json"], "give the text a file with --out"),
    ],
)
def test_wrong_use_exits_2_with_the_reason(words: list[str], said: str, tmp_path: Path) -> None:
    """Unknown runs, formats and schemas, and broken records, are told in one line."""
    runs = tmp_path / ".stoker" / "runs"
    make_record(runs)
    for name, text in (("broken", "{"), ("old", '{"schema": 99}')):
        (runs / name).mkdir()
        (runs / name / "run.json").write_text(text)
    done = stoker("export", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """The error names the place and the option; nothing half-written is left."""
    (tmp_path / "file").write_text("")
    with pytest.raises(NotPermitted, match="--out PATH"):
        export(make_record(tmp_path), "prometheus", tmp_path / "file" / "page.prom")


def test_a_run_without_a_rank_is_told(tmp_path: Path) -> None:
    """A record whose run has not begun has nothing to export."""
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "run.json").write_text('{"schema": 1}')
    with pytest.raises(UsageError, match="no rank's part yet"):
        export(Record.open(tmp_path / "early"), "prometheus")


def test_a_broken_line_ends_an_export_in_order(tmp_path: Path) -> None:
    """The writer's thread has ended before its folder is gone, and nothing of it is left."""
    record = make_record(tmp_path)
    with (record.folder / "rank0" / "steps.jsonl").open("a") as file:
        file.write("no JSON\n")
    with pytest.raises(RecordBroken, match="line 5 is not JSON"):
        export(record, "tensorboard")
    assert not [thread for thread in threading.enumerate() if "EventLogger" in type(thread).__name__]
    assert list((record.folder / "tensorboard" / "rank0").iterdir()) == []
