"""Several ranks are not tuned: it is said what is not done, and what works."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.errors import UsageError
from stoker.tune.ranks import refuse_launched, refuse_spawned


def test_one_process_is_tuned() -> None:
    """With a launcher or without."""
    assert refuse_launched({}) is False
    assert refuse_launched({"WORLD_SIZE": "1", "RANK": "0"}) is False
    refuse_spawned(1)


def test_the_first_rank_says_it_and_the_others_nothing() -> None:
    """One message, not one a rank."""
    with pytest.raises(UsageError, match="--micro-batch --nproc 2 SCRIPT"):
        refuse_launched({"WORLD_SIZE": "2", "RANK": "0"})
    assert refuse_launched({"WORLD_SIZE": "2", "RANK": "1"}) is True


def test_ranks_that_a_script_starts_itself_are_refused() -> None:
    """With how many they are."""
    with pytest.raises(UsageError, match="starts 4 ranks itself"):
        refuse_spawned(4)


@pytest.mark.parametrize(
    ("env", "words", "says"),
    [
        (
            {"WORLD_SIZE": "2", "RANK": "0"},
            [],
            "a launcher has started 2 ranks of stoker tune, and its trials",
        ),
        ({}, ["--nproc", "2"], "--nproc 2 was given to stoker tune, and its trials are of one process"),
    ],
)
def test_the_verb_says_so_before_anything_runs(
    tmp_path: Path, env: dict[str, str], words: list[str], says: str
) -> None:
    """Exit code 2, no traceback, and the script has not run."""
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "tune", *words, "train.py"],
        cwd=tmp_path,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = " ".join(done.stderr.split())
    assert (done.returncode, says in said, "Traceback" in said) == (2, True, False), said
    assert not (tmp_path / "ran").exists()
