"""What all tests share: the order of their files."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# The files that take longest, most of it for processes that import torch. `scripts/test` gives a file to one
# of three processes: begun last, one of these left the two others idle at the end.
LONGEST = (
    "jobs/test_jobs_page.py",
    "feed/test_feed_frameworks.py",
    "watch/test_launcher.py",
    "ward/test_scripts.py",
    "tune/test_trials_held.py",
    "feed/test_stage_kills.py",
    "tune/test_lr.py",
    "feed/test_train_kills.py",
    "feed/test_ranks.py",
    "feed/test_disk_kill.py",
    "doctor/test_real_ranks.py",
    "tune/test_rank_trials.py",
    "doctor/test_diagnose.py",
    "doctor/test_notebook_doctor.py",
    "changes/test_changes.py",
    "changes/test_feed_tier.py",
    "changes/test_parted_loops.py",
    "facts/test_notebooks_live.py",
    "watch/test_notebook.py",
)
PLACES = {TESTS / name: place for place, name in enumerate(LONGEST)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those first, the longest of them before the others; all else as it was found."""
    items.sort(key=lambda item: PLACES.get(item.path, len(PLACES)))
