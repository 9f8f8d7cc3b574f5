"""The finder of workers and prefetch: what it is asked, and on a script that waits for a store."""

from pathlib import Path

import pytest

from stoker import tune
from stoker.cli import tune as verb
from stoker.doctor.calibration import NAME, read_scores
from stoker.errors import UsageError
from stoker.tune.command import tune_workers

STORE = Path(__file__).parents[2] / "examples" / "slow_store.py"


def test_without_a_script_there_is_nothing_to_find() -> None:
    """And the error says what to give."""
    with pytest.raises(UsageError, match=r"stoker tune --workers train\.py"):
        tune_workers([])


def test_two_finders_at_once_are_refused() -> None:
    """Each is a search of its own."""
    with pytest.raises(UsageError, match="a finder each"):
        verb(["train.py"], workers=True, lr=True)


@pytest.mark.slow
def test_a_script_that_waits_for_a_store_gets_more_workers(tmp_path: Path) -> None:
    """Only what ran, faster beyond doubt; its trials are kept, and score the model."""
    found = tune.find_workers([str(STORE)], budget=90, home=tmp_path)
    assert set(found.tuned.settings) <= {"num_workers", "prefetch_factor"}
    assert found.tuned.settings["num_workers"] > 2
    assert found.tuned.ratio is not None
    assert found.tuned.ratio.low > 1.02
    assert (found.folder / "trials" / "000" / "trial.json").exists()
    assert read_scores(tmp_path / NAME)
