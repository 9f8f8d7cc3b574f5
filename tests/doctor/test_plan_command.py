"""`stoker doctor --calibration`, `--fits` and `--steps` from the command line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stoker.cli import app
from stoker.doctor.calibration import Score, keep
from stoker.errors import UsageError
from stoker.watch import Step
from stoker.watch.record import LineWriter, Writer


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `.stoker` of its own."""
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / ".stoker" / "runs"))
    return tmp_path / ".stoker"


def record(home: Path) -> None:
    """A run of 40 steps by a loop that makes its own batches."""
    writer = Writer(home / "runs" / "it", rank=0)
    writer.describe_run({"id": "it", "facts": {"host": {"memory_free_bytes": 8 * 10**9, "usable_cores": 4}}})
    loader = {"id": 0, "name": "L", "fed": 40, "num_workers": 0, "batch_size": 8, "epochs": 1, "length": 100}
    writer.describe_rank({"rank": 0, "loaders": [loader]})
    lines = LineWriter(writer.rank_folder)
    for number in range(40):
        step = Step(
            step=number, t=100 + number / 10, samples=8, loader=0, wait=0.06, copy=0.0, forward=0.02,
            backward=0.01, update=0.005, other=0.005, startup=0.0,
        )  # fmt: skip
        lines.add("steps", step.to_line())
    lines.close()


def test_scores_are_shown_by_change(home: Path) -> None:
    """Number, median error and coverage; and it is said where none was kept yet."""
    none = CliRunner().invoke(app, ["doctor", "--calibration"])
    assert "no prediction was tried yet" in none.output
    for measured in (100.0, 50.0):
        keep(
            Score(change="num_workers", low=90, mid=100, high=110, measured=measured),
            home / "calibration.jsonl",
        )
    told = json.loads(CliRunner().invoke(app, ["doctor", "--calibration", "--json"]).output)
    assert told["calibration"]["num_workers"] == {"number": 2, "median_error": 0.5, "coverage": 0.5}
    text = CliRunner().invoke(app, ["doctor", "--calibration"]).output
    assert "num_workers" in text
    assert "50%" in text


def test_wrong_requests_are_refused_before_anything_runs(home: Path) -> None:
    """With the value, and how to write it."""
    both = CliRunner().invoke(app, ["doctor", "--calibration", "train.py"])
    assert isinstance(both.exception, UsageError)
    assert "train.py" in str(both.exception)
    wrong = CliRunner().invoke(app, ["doctor", "--fits", "batch=many", "train.py"])
    assert isinstance(wrong.exception, UsageError)
    assert "'many'" in str(wrong.exception)


def test_a_record_alone_has_times_and_says_what_it_cannot_tell(home: Path) -> None:
    """Nothing was replayed: no rate is predicted, and no memory was sized."""
    record(home)
    words = ["doctor", "--json", "--no-report", "--steps", "1000", "--fits", "workers=4,batch=16", "it"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert told["verdict"]["cause"] == "no-overlap"
    assert told["plan"]["total"] == pytest.approx(100)
    assert told["plan"]["epoch"] == pytest.approx(10)
    assert all(option["predicted"] is None for option in told["plan"]["options"])
    assert [answer["fits"] for answer in told["fits"]] == [None, None]
    assert told["rates"]["sustained"] == pytest.approx(10)
    assert told["budget"]["ram"]["need"] is None
