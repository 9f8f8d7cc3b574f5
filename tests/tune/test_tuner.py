"""Trials held one beside the other: what ends a change, and what is compared with what."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from test_search import tuned

from stoker.tune.trial import Outcome


@pytest.mark.parametrize(
    ("ends", "outcome"),
    [("stopped", "guarded"), ("hung", "guarded"), ("thrashed", "guarded"), ("crashed", "broken")],
)
def test_what_ends_a_later_run_ends_the_change(tmp_path: Path, ends: Outcome, outcome: str) -> None:
    """A rate of its first run does not keep what a guard ended in its second; the reason is told."""
    held: list[Mapping[str, Any]] = []

    def rate_of(settings: Mapping[str, Any]) -> float | Outcome:
        """With 4 workers as fast as it is, so that it is run again, and then it goes wrong."""
        if settings.get("num_workers") == 4:
            turn = held.count(settings)
            return 820.0 if turn == 1 else ends if turn == 2 else 1600.0
        return 800.0

    found = tuned(rate_of, tmp_path / "it", held=held)
    (one,) = [one for one in found.tried if one.candidate.name == "num_workers = 4"]
    assert (one.outcome, one.reason, one.runs) == (outcome, f"{ends}: as built", 2)
    assert found.settings == {}
