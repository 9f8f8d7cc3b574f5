"""What is written down, and the loggers behind it."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.errors import MissingExtra, TrainingFailed
from stoker.train.journal import Journal, Logger, open_loggers

CONFIG = {"base": 32, "train": {"epochs": 3}}


class Kept:
    """A logger that keeps what it is given."""

    def __init__(self) -> None:
        self.lines: list[tuple[dict[str, float], int]] = []
        self.closed = False

    def log(self, values: Any, step: int) -> None:
        self.lines.append((dict(values), step))

    def close(self) -> None:
        self.closed = True


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_line_is_whole_and_numbers_go_to_the_loggers(tmp_path: Path) -> None:
    """Text stays in the line; what is not finite or not there is null, and no point of a curve."""
    kept = Kept()
    journal = Journal(tmp_path, [kept], after=0)
    journal.write(
        "train", 5, {"loss": 0.5, "lr": 1e-3, "gradient": None, "tier": "ram", "psnr": float("inf")}
    )
    [line] = read(tmp_path)
    assert {name: line[name] for name in line if name != "t"} == {
        "kind": "train", "step": 5, "loss": 0.5, "lr": 1e-3, "gradient": None, "tier": "ram", "psnr": None,
    }  # fmt: skip
    assert kept.lines == [({"train/loss": 0.5, "train/lr": 1e-3}, 5)]
    journal.close()
    assert kept.closed


def test_a_resume_cuts_off_what_comes_after_it(tmp_path: Path) -> None:
    """Lines of later steps, and one that a killed process wrote half of."""
    journal = Journal(tmp_path, [], after=0)
    for step in (5, 10, 15):
        journal.write("train", step, {"loss": 1.0})
    journal.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"t": 1, "kind": "tr')
    again = Journal(tmp_path, [], after=10)
    again.write("train", 15, {"loss": 2.0})
    again.close()
    assert [(line["step"], line["loss"]) for line in read(tmp_path)] == [(5, 1.0), (10, 1.0), (15, 2.0)]


@pytest.mark.parametrize(
    "harmed",
    [b"\xff\xfe noise", b"[3]", b'"text"', b"null", b'{"kind": "train"}', b'{"step": "x", "kind": "train"}'],
)
def test_lines_that_a_disk_has_harmed_are_left_out(tmp_path: Path, harmed: bytes) -> None:
    """A resume goes on with those that are whole."""
    journal = Journal(tmp_path, [], after=0)
    journal.write("train", 5, {"loss": 1.0})
    journal.close()
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(harmed + b"\n" + path.read_bytes())
    Journal(tmp_path, [], after=10).close()
    assert [line["step"] for line in read(tmp_path)] == [5]


def test_a_validation_that_is_made_again_is_cut_off(tmp_path: Path) -> None:
    """A checkpoint from before an epoch's end was judged has the step's own line, and not what came of it."""
    journal = Journal(tmp_path, [], after=0)
    for kind, step in (("train", 5), ("valid", 5), ("train", 7), ("epoch", 7), ("valid", 7)):
        journal.write(kind, step, {"loss": 1.0})
    journal.close()
    Journal(tmp_path, [], after=7, judged=True).close()
    assert len(read(tmp_path)) == 5
    Journal(tmp_path, [], after=7, judged=False).close()
    left = [(line["kind"], line["step"]) for line in read(tmp_path)]
    assert left == [("train", 5), ("valid", 5), ("train", 7)]


@contextmanager
def small_files(most: int) -> Iterator[None]:
    """No file grows past so many bytes, as on a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Full(Kept):
    """A logger that finds no room."""

    def log(self, values: Any, step: int) -> None:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        super().close()
        raise OSError(28, "No space left on device")


def test_a_line_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """No room for it: an error that says where, also as the journal is closed; its loggers are closed too."""
    loggers = [Kept(), Kept()]
    journal = Journal(tmp_path, loggers, after=0)
    with small_files(10):
        with pytest.raises(TrainingFailed, match=r"cannot write .*metrics\.jsonl: .*Make room there"):
            journal.write("train", 1, {"loss": 1.0})
        with pytest.raises(TrainingFailed, match=r"cannot write .*metrics\.jsonl: .*Make room there"):
            journal.close()
    assert [logger.closed for logger in loggers] == [True, True]


def test_a_logger_without_room_is_told(tmp_path: Path) -> None:
    """As the journal itself is, and the others are closed."""
    loggers = [Full(), Kept()]
    journal = Journal(tmp_path, loggers, after=0)
    with pytest.raises(TrainingFailed, match=f"cannot write {tmp_path}: .*No space.*Make room there"):
        journal.write("train", 1, {"loss": 1.0})
    with pytest.raises(TrainingFailed, match=f"cannot write {tmp_path}: "):
        journal.close()
    assert loggers[1].closed


def test_tensorboard_has_the_curves(tmp_path: Path) -> None:
    """Read back by TensorBoard itself, before they are closed: a kill leaves no hole in them."""
    loaders = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    [logger] = open_loggers(["tensorboard"], folder=tmp_path, run="tiny", config=CONFIG, after=0)
    for step in (1, 2, 3):
        logger.log({"train/loss": 1 / step}, step)
    found = loaders.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [(point.step, round(point.value, 3)) for point in found.Scalars("train/loss")] == [
        (1, 1.0), (2, 0.5), (3, 0.333),
    ]  # fmt: skip
    logger.close()


@pytest.mark.parametrize("after", [0, 2])
def test_tensorboard_hides_what_is_made_again(tmp_path: Path, after: int) -> None:
    """A curve has each step once after a resume, also where the kill came before the first checkpoint."""
    loaders = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for value, begins in ((1.0, 0), (2.0, after)):
        [logger] = open_loggers(["tensorboard"], folder=tmp_path, run="tiny", config=CONFIG, after=begins)
        for step in range(begins + 1, 4):
            logger.log({"train/loss": value}, step)
        logger.close()
    found = loaders.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    expected = [(step, 1.0 if step <= after else 2.0) for step in (1, 2, 3)]
    assert [(point.step, point.value) for point in found.Scalars("train/loss")] == expected


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_logger_that_is_not_installed_is_told(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to install."""
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'stoker\[{name}\]'"):
        open_loggers([name], folder=tmp_path, run="tiny", config=CONFIG, after=0)


def stand_in_for_wandb(calls: list[Any]) -> SimpleNamespace:
    def init(**options: Any) -> SimpleNamespace:
        calls.append(("init", options["id"], options["resume"], options["config"]))
        return SimpleNamespace(
            id="abc",
            log=lambda values, step: calls.append((values, step)),
            finish=lambda: calls.append("finish"),
        )

    return SimpleNamespace(init=init)


def stand_in_for_mlflow(calls: list[Any]) -> SimpleNamespace:
    def start_run(run_id: str | None, run_name: str | None) -> SimpleNamespace:
        calls.append(("start", run_id, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id="abc"))

    return SimpleNamespace(
        set_experiment=lambda name: calls.append(("experiment", name)),
        start_run=start_run,
        log_params=lambda values: calls.append(("params", values)),
        log_metrics=lambda values, step: calls.append((values, step)),
        end_run=lambda: calls.append("finish"),
    )


def use(logger: Logger) -> None:
    logger.log({"train/loss": 0.5}, 3)
    logger.close()


def test_wandb_goes_on_with_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The id of the first is given again; against a stand-in that has its calls."""
    calls: list[Any] = []
    monkeypatch.setitem(sys.modules, "wandb", stand_in_for_wandb(calls))
    for after in (0, 2):
        use(open_loggers(["wandb"], folder=tmp_path, run="tiny", config=CONFIG, after=after)[0])
    logged = [({"train/loss": 0.5}, 3), "finish"]
    assert calls == [("init", None, "allow", CONFIG), *logged, ("init", "abc", "allow", CONFIG), *logged]


def test_mlflow_goes_on_with_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same; settings are told once, flat."""
    calls: list[Any] = []
    monkeypatch.setitem(sys.modules, "mlflow", stand_in_for_mlflow(calls))
    for after in (0, 2):
        use(open_loggers(["mlflow"], folder=tmp_path, run="tiny", config=CONFIG, after=after)[0])
    logged = [({"train/loss": 0.5}, 3), "finish"]
    first = [("experiment", "stoker"), ("start", None, "tiny"), ("params", {"base": 32, "train.epochs": 3})]
    second = [("experiment", "stoker"), ("start", "abc", None)]
    assert calls == [*first, *logged, *second, *logged]
