"""`--offline`: every run of the user's script is cut off the network, whichever verb and finder starts it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_tune_report import found
from typer.testing import CliRunner

from stoker.cli import app
from stoker.doctor import examination
from stoker.errors import StokerError
from stoker.scratch import Plan, Result
from stoker.tune import command, finding, lr, meaning, micro_trial, trial


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bool]:
    """Of every scratch run that was asked for, whether it was to be offline; none is begun, and all fail."""
    told: list[bool] = []

    def noted(plan: Plan) -> Result:
        told.append(plan.offline)
        return Result(outcome="failed", reason="it was not begun", seconds=0.1, messages=())

    for module in (examination, lr, meaning, micro_trial, trial):
        monkeypatch.setattr(module, "run", noted)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return told


VERBS = [
    ["doctor"], ["doctor", "--nproc", "2"], ["tune"], ["tune", "--dry-run"], ["tune", "--nproc", "2"],
    ["tune", "--workers"], ["tune", "--workers", "--dry-run"], ["tune", "--micro-batch"], ["tune", "--lr"],
]  # fmt: skip


@pytest.mark.parametrize("offline", [True, False])
@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_a_verb_s_first_run_is_offline_where_that_is_asked(
    words: list[str], offline: bool, started: list[bool]
) -> None:
    """And has the network where it is not."""
    given = [*words, *(["--offline"] if offline else []), "train.py"]
    ended = CliRunner().invoke(app, given)
    assert isinstance(ended.exception, StokerError), ended.output
    assert started == [offline]


def test_trials_and_probes_of_a_search_are_offline_too(started: list[bool], tmp_path: Path) -> None:
    """They are what a search mostly consists of."""
    finding._hold(("train.py",), None, 1, True)({}, tmp_path / "trial", 9.0)
    with pytest.raises(StokerError):
        finding._probe(("train.py",), 0.0, 1, True)({}, 0, True)
    assert started == [True, True]


@pytest.mark.parametrize("offline", [True, False])
def test_a_search_says_how_its_runs_were_shielded(
    offline: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By name in JSON; in words in a terminal and on its page."""
    held: Any = found(tmp_path)
    held = replace(held, diagnosis=replace(held.diagnosis, offline=offline))
    command._tell(held, None, True)
    told = json.loads(capsys.readouterr().out)
    assert (told["shield"], told["offline"]) == ("full", offline)
    command._tell(held, None, False)
    words = "It was cut off the network" if offline else "Its network was not shielded"
    assert words in " ".join(capsys.readouterr().out.split())
    assert words in (tmp_path / "report.html").read_text()
