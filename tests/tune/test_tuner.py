"""Trials held one beside the other: what ends a change, and what is compared with what."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from test_search import CutOff, by_workers, tuned

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


def test_a_change_that_is_ended_where_a_search_moved_to_is_told(tmp_path: Path) -> None:
    """Measured on the first machine, crashed on the other: it has no rate there, and the search goes on."""
    held: list[Mapping[str, Any]] = []

    def dying(settings: Mapping[str, Any]) -> float:
        if len(held) > 4:
            raise CutOff
        return 820.0 if settings else 800.0

    with pytest.raises(CutOff):
        tuned(dying, tmp_path / "it", held=held, host="one")
    elsewhere: list[Mapping[str, Any]] = []
    found = tuned(
        lambda s: "crashed" if s == held[2] else by_workers(s), tmp_path / "it", held=elsewhere, host="other"
    )
    (one,) = [one for one in found.tried if one.settings == held[2]]
    assert (one.outcome, one.rate, one.total) == ("broken", None, None)
