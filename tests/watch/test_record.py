"""A record is readable whatever happened to the run, and says what is wrong when it is not."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from stoker.doctor.examination import examine_record
from stoker.errors import NotPermitted, RecordBroken, RecordNotFound, RecordSchemaUnknown
from stoker.watch import Record, Step
from stoker.watch.record import LineWriter, Writer, new_name, writing


def step(number: int) -> Step:
    return Step(
        step=number, t=1.0 + number, samples=4, loader=0, wait=0.5, copy=0.0,
        forward=0.2, backward=0.2, update=0.05, other=0.05,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A record of three steps."""
    writer = Writer(tmp_path / "it", rank=0)
    writer.describe_run({"id": "it"})
    writer.describe_rank({"outcome": "done"})
    lines = LineWriter(writer.rank_folder)
    for number in range(3):
        lines.add("steps", step(number).to_line())
    lines.close()
    return tmp_path / "it"


def test_it_reads_back_what_was_written(folder: Path) -> None:
    """Steps come back as the same values, as often as they are asked for."""
    record = Record.open(folder)
    assert list(record.ranks[0].steps()) == [step(0), step(1), step(2)]
    assert list(record.ranks[0].steps()) == [step(0), step(1), step(2)]
    assert record.outcome == "done"
    assert list(record.ranks[0].batches()) == []


def test_it_is_found_by_id_and_as_the_latest(folder: Path) -> None:
    """A run's id is enough, given where runs are kept; so is "latest"."""
    assert Record.open("it", folder.parent).id == "it"
    assert Record.open("latest", folder.parent).id == "it"


def test_a_line_cut_short_is_left_out(folder: Path) -> None:
    """What a killed run had not finished writing does not hide the rest."""
    with (folder / "rank0/steps.jsonl").open("a") as file:
        file.write('{"step": 3, "t": 4.0, "sam')
    assert len(list(Record.open(folder).ranks[0].steps())) == 3


def test_a_damaged_line_is_named(folder: Path) -> None:
    """A whole line that is not JSON is damage, and the message says where."""
    path = folder / "rank0/steps.jsonl"
    path.write_text("garbage\n" + path.read_text())
    with pytest.raises(RecordBroken, match=r"steps.jsonl, line 1 is not JSON"):
        list(Record.open(folder).ranks[0].steps())


@pytest.mark.parametrize("line", ["[1]", "3", "null", '{"step": 7}', '{"t": "x"}'])
def test_a_line_that_is_none_of_a_record_is_named(folder: Path, line: str) -> None:
    """It is JSON and makes no sense: which one, and what to do."""
    with (folder / "rank0" / "resources.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(
        RecordBroken, match=r"resources.jsonl, line 1 is no line of a record.*delete that line"
    ):
        list(Record.open(folder).ranks[0].resources())


BATCH = {
    "loader": 0, "worker": None, "seq": 0, "t": 1.0, "samples": 4, "read": 0.1, "transform": 0.0,
    "collate": 0.0, "handoff": None, "pin": None, "cpu": 0.01, "queued": None, "bytes": None, "disk": None,
    "faults": None, "calls": {"item": 4},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("steps", {**step(3)._asdict(), "forward": None}),
        ("steps", {**step(3)._asdict(), "copy": "x"}),
        ("steps", {**step(3)._asdict(), "other": float("nan")}),
        ("steps", {**step(3)._asdict(), "device": [1]}),
        ("steps", {"step": 3, "t": 1.0}),
        ("batches", {**BATCH, "read": None}),
        ("batches", {**BATCH, "calls": None}),
        ("batches", {**BATCH, "calls": {"item": "x"}}),
        ("resources", {"t": 1.0, "processes": [{}]}),
        ("resources", {"t": 1.0, "processes": [1]}),
        ("resources", {"t": 1.0, "cpu_s": "x"}),
    ],
)
def test_a_line_that_was_harmed_is_named(folder: Path, name: str, harm: dict[str, Any]) -> None:
    """By whoever reads it: which line, what in it, and what to do."""
    path = folder / f"rank0/{name}.jsonl"
    path.write_text(json.dumps(harm) + "\n" + path.read_text())
    with pytest.raises(RecordBroken, match=rf"{name}.jsonl, line 1 (has|is no) .*delete that line"):
        examine_record(Record.open(folder))


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("run.json", {"facts": [1]}),
        ("run.json", {"facts": {"host": [1]}}),
        ("rank0/rank.json", {"loaders": [{"id": "x", "name": "L", "fed": 3}]}),
        ("rank0/rank.json", {"loaders": [{"id": 0, "name": "L", "fed": "x"}]}),
        ("rank0/rank.json", {"loaders": {"id": 0}}),
        ("rank0/rank.json", {"overhead": [1]}),
    ],
)
def test_a_description_that_was_harmed_is_named(folder: Path, name: str, harm: dict[str, Any]) -> None:
    """With its path, what in it, and what to do."""
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **harm}))
    with pytest.raises(RecordBroken, match=rf"{name} has (facts|loaders|overhead).*run again"):
        examine_record(Record.open(folder))


def test_a_record_without_a_rank_is_told(folder: Path) -> None:
    """By the doctor, a prediction and an export alike."""
    shutil.rmtree(folder / "rank0")
    with pytest.raises(RecordBroken, match="no rank's part"):
        Record.open(folder).require_ranks()
    with pytest.raises(RecordBroken, match="no rank's part"):
        examine_record(Record.open(folder))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_refuses_is_told_with_the_place(tmp_path: Path, number: int) -> None:
    """What was to be written where; other errors are nobody's disk."""
    told = rf"the search cannot be written under {tmp_path}: .*--runs DIR"
    with pytest.raises(NotPermitted, match=told), writing("the search", tmp_path):
        raise OSError(number, os.strerror(number), "x")
    with pytest.raises(FileNotFoundError), writing("the search", tmp_path):
        (tmp_path / "nothing").read_text()


def test_another_schema_is_refused(folder: Path) -> None:
    """A record of another version is not guessed at."""
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**about, "schema": 99}))
    with pytest.raises(RecordSchemaUnknown, match="schema 99"):
        Record.open(folder)


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_a_damaged_description_is_named(folder: Path, text: str) -> None:
    """An empty, foreign or broken run.json is answered with its path."""
    (folder / "run.json").write_text(text)
    with pytest.raises(RecordBroken, match=r"run\.json"):
        Record.open(folder)


def test_a_record_that_is_not_there(folder: Path) -> None:
    """The message names what there is instead."""
    with pytest.raises(RecordNotFound, match=r"no record at nope .*newest there: it"):
        Record.open("nope", folder.parent)


def test_unknown_fields_are_passed_over(folder: Path) -> None:
    """A later version of the same schema may add fields."""
    with (folder / "rank0/steps.jsonl").open("a") as file:
        file.write(json.dumps({**step(3)._asdict(), "new": 1}) + "\n")
    assert list(Record.open(folder).ranks[0].steps())[-1] == step(3)


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become somebody else"
)
def test_a_record_that_may_not_be_read(folder: Path) -> None:
    """Somebody else's record is answered in words, with exit code 2."""
    (folder / "rank0/steps.jsonl").chmod(0o600)
    code = (
        "import os, sys\n"
        "from stoker.watch.record import Record\n"
        "from stoker.errors import NotPermitted\n"
        "os.setgid(65534); os.setuid(65534)\n"
        f"record = Record.open({str(folder)!r})\n"
        "try: list(record.ranks[0].steps())\n"
        "except NotPermitted as error: print(error); sys.exit(error.exit_code)\n"
    )
    for parent in (folder / "rank0", folder, *folder.parents):
        if parent.is_relative_to(tempfile.gettempdir()) and parent != Path(tempfile.gettempdir()):
            parent.chmod(parent.stat().st_mode | 0o055)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2, done.stderr
    assert "may not be read" in done.stdout


def test_a_place_that_may_not_be_written(tmp_path: Path) -> None:
    """A record that cannot be begun says so before the run starts."""
    (tmp_path / "file").write_text("")
    with pytest.raises(NotPermitted, match="cannot write the run's record"):
        Writer(tmp_path / "file" / "it", rank=0)


def test_a_full_disk_stops_the_record_and_not_the_run(tmp_path: Path) -> None:
    """Writes to a full device are told of once, and nothing raises."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    writer = LineWriter(Writer(tmp_path / "it", rank=0).rank_folder)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, writer._files["steps"])
    os.close(full)
    writer.add("steps", step(0).to_line())
    writer.flush()
    writer.add("steps", step(1).to_line())
    writer.close()
    assert writer.failure is not None
    assert "No space left" in writer.failure


def test_names_of_the_same_second_differ() -> None:
    """Two that begin at once do not write into one folder."""
    assert len({new_name() for _ in range(20)}) == 20
