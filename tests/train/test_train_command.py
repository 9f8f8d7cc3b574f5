"""`stoker train` as it is typed."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import Tiny, TinyConfig

from stoker.errors import UsageError
from stoker.train import command
from stoker.train.fit import Fitted
from stoker.train.task import Workload

WORKLOAD = Workload(name="tiny", about="A line.", config=TinyConfig, task=Tiny)


def go(folder: Path, *settings: str, workload: Workload = WORKLOAD, **options: bool) -> int:
    given = {"fresh": False, "compare": False, "find_lr": False, "show_config": False, "as_json": False}
    return command.go(workload, settings=settings, config=None, out=folder, **{**given, **options})


def test_a_misspelt_setting_is_answered_with_the_allowed_ones() -> None:
    """On stderr, with exit code 2, before anything is made."""
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "train", "sar", "train.epoch=3"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "no setting train.epoch: did you mean train.epochs? under train there are epochs" in done.stderr


def test_an_unknown_workload_is_answered_with_those_there_are() -> None:
    """By their names."""
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "train", "mnist"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "there are heimdall, imagenet, sar, vesuvius" in done.stderr


def test_json_has_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object on stdout, the lines for a person on stderr; done is 0."""
    assert go(tmp_path, "train.max_steps=3", as_json=True) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["schema"], found["workload"], found["ended"], found["step"]) == (1, "tiny", "done", 3)
    assert "valid  mae" in err


def test_settings_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of them, as they would be used; nothing is trained."""
    assert go(tmp_path, "train.epochs=9", show_config=True) == 0
    assert json.loads(capsys.readouterr().out)["train"]["epochs"] == 9
    assert not list(tmp_path.iterdir())


def test_a_stop_is_told_by_the_exit_code(tmp_path: Path) -> None:
    """143, as of a process that SIGTERM has ended."""

    class Asked(Tiny):
        def begin_epoch(self, epoch: int, feeds: object) -> None:
            signal.raise_signal(signal.SIGTERM)

    asked = Workload(name="tiny", about="A line.", config=TinyConfig, task=Asked)
    assert go(tmp_path, workload=asked) == 143
    assert json.loads((tmp_path / "result.json").read_text())["step"] == 1


@pytest.mark.parametrize(("launched", "code"), [(False, 0), (True, 143)])
def test_a_rank_that_the_trainer_started_itself_does_not_look_crashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: bool, code: int
) -> None:
    """What watches such ranks kills rank 0 when one of them ends with anything but 0; a launcher is told."""
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if launched:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    ended = Fitted(
        ended="stopped", step=1, steps=2, metrics={}, best=None, samples_per_second=None, peak_bytes=None,
        micro_batch=1, resumed=None, folder=tmp_path,
    )  # fmt: skip
    assert (ended.exit_code, replace(ended, rank=1).exit_code) == (143, code)
    assert replace(ended, ended="done").exit_code == 0


def test_what_cannot_be_compared_is_told(tmp_path: Path) -> None:
    """And what can is."""
    with pytest.raises(UsageError, match="nothing to compare"):
        go(tmp_path, compare=True)
    seen: list[tuple[TinyConfig, Path]] = []

    def compare(config: TinyConfig, folder: Path, fresh: bool) -> Path:
        seen.append((config, folder))
        return folder / "page.html"

    both = Workload(name="tiny", about="A line.", config=TinyConfig, task=Tiny, compare=compare)
    assert go(tmp_path, workload=both, compare=True) == 0
    assert seen == [(TinyConfig(), tmp_path)]
