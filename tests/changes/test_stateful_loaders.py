"""torchdata's StatefulDataLoader is altered as torch's own loader is."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
JOBS: dict[str, dict[str, Any]] = {
    "plain": {"changes": {}},
    "workers": {"changes": {"num_workers": 2}},
    "2 workers": {"changes": {}, "loader": {"num_workers": 2}},
    "3 workers": {"changes": {"num_workers": 3, "prefetch_factor": 1}, "loader": {"num_workers": 2}},
    "workers that live on": {"changes": {"persistent_workers": True}, "loader": {"num_workers": 2}},
    "resumed": {"changes": {"num_workers": 2}, "resumed": True},
    "batches of 32": {"changes": {"batch_size": 32}},
    "parts": {"changes": {"micro_batch": 3}, "images": True},
    "whole": {"changes": {}, "images": True},
    "feed": {"changes": {"feed": "ram"}},
}


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    """What came of each job."""
    pytest.importorskip("torchdata.stateful_dataloader")
    done = subprocess.run(
        [sys.executable, str(HERE / "loops.py")],
        input=json.dumps([{**job, "stateful": True} for job in JOBS.values()]),
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(JOBS, json.loads(done.stdout), strict=True))


def test_more_workers_are_the_same(runs: dict[str, Any]) -> None:
    """The same ids and losses, bit by bit, read in other processes."""
    two, three = runs["2 workers"], runs["3 workers"]
    assert (three["ids"], three["losses"]) == (two["ids"], two["losses"])
    assert [len(readers) for readers in three["readers"]] == [3, 3]
    changed = "changed: StatefulDataLoader(Rows): num_workers 2 -> 3, prefetch_factor 2 -> 1"
    assert three["told"] == [changed]


@pytest.mark.parametrize(
    ("name", "beside", "says"),
    [
        ("workers", "plain", "num_workers: a StatefulDataLoader with workers shuffles otherwise"),
        ("workers that live on", "2 workers", "persistent_workers: a StatefulDataLoader whose workers live"),
    ],
)
def test_what_would_shuffle_otherwise_is_left_alone(
    runs: dict[str, Any], name: str, beside: str, says: str
) -> None:
    """Its samplers draw more often with workers: the change would not be the same, and that is said."""
    assert (runs[name]["ids"], runs[name]["losses"]) == (runs[beside]["ids"], runs[beside]["losses"])
    assert f"left alone: {says}" in runs[name]["told"][0]


def test_one_that_goes_on_from_a_state_keeps_its_workers(runs: dict[str, Any]) -> None:
    """The state is of as many as it was taken with."""
    assert runs["resumed"]["ids"] == runs["plain"]["ids"]
    assert "left alone: num_workers: it goes on from a state" in runs["resumed"]["told"][0]


def test_batches_of_another_size(runs: dict[str, Any]) -> None:
    """Its length follows."""
    assert runs["batches of 32"]["length"] == 3
    assert "changed: StatefulDataLoader(Rows): batch_size 8 -> 32" in runs["batches of 32"]["told"]


def test_batches_in_parts(runs: dict[str, Any]) -> None:
    """The same weights but for rounding."""
    assert runs["parts"]["weights"] == pytest.approx(runs["whole"]["weights"], rel=1e-4, abs=1e-6)
    assert runs["parts"]["told"] == ["changed: 24 batches of up to 8 samples in parts of up to 3"]


def test_its_samples_are_not_held(runs: dict[str, Any]) -> None:
    """Its place is its own iterator's; that is said, and the loop is as it was."""
    assert (runs["feed"]["ids"], runs["feed"]["losses"]) == (runs["plain"]["ids"], runs["plain"]["losses"])
    assert "left alone: feed: a StatefulDataLoader's place" in runs["feed"]["told"][0]
