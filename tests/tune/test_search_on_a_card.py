"""The search on a card: what copies, memory and launching have it try. Facts are given in."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_search import PLAIN, by_workers, tuned

from stoker.changes import ALL, Change, Kind
from stoker.doctor.causes import straggler
from stoker.doctor.evidence import Evidence, LoaderFacts
from stoker.doctor.finding import Cure
from stoker.doctor.verdict import Named, Verdict, reach
from stoker.errors import TrialFailed
from stoker.tune.meaning import Probe
from stoker.tune.search import Search

RUN = Evidence(
    step=0.04,
    shares={"wait": 0.0, "forward": 0.3, "backward": 0.5, "update": 0.1, "copy": 0.1, "other": 0.0},
    steps=100,
    samples=32.0,
    drawn=LoaderFacts(name="DataLoader", workers=2, batch_size=32, prefetch=2, length=100, pinned=False),
    host={"usable_cores": 4.0},
)


@pytest.fixture(autouse=True)
def _card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every change can be had."""
    for name, change in ALL.items():
        monkeypatch.setitem(ALL, name, _had(change))


def _had(change: Change) -> Change:
    return replace(change, lacks=lambda value: None)


def verdict(cause: str, cures: tuple[Cure, ...] = ()) -> Verdict:
    named = Named(
        cause=cause, share=0.4, certainty=0.9, evidence=("measured",), cures=cures, ceiling_after=None
    )
    return replace(reach(RUN), cause=cause, named=(named,))


def tried(wanted: Search, faster: tuple[str, ...] = ()) -> list[tuple[str, Any]]:
    found = []
    for candidate in wanted.candidates():
        found.append((candidate.change, candidate.value))
        wanted.tell(candidate, faster=candidate.change in faster)
    return found


def search(cause: str, run: Evidence = RUN, kinds: tuple[Kind, ...] = ("same", "redraw")) -> Search:
    return Search(verdict=verdict(cause), run=run, kinds=frozenset(kinds))


def test_copies_are_saved_by_samples_on_the_device() -> None:
    """VRAM first; where that is kept there is nothing to pin, and where it is not, pinning is tried."""
    assert tried(search("pageable-copy")) == [("feed", "vram"), ("pin_memory", True)]
    kept = search("pageable-copy")
    assert tried(kept, faster=("feed",)) == [("feed", "vram")]
    assert "pin_memory: samples are on the device, there is nothing to copy" in kept.not_tried


def test_copies_of_a_loop_without_a_loader() -> None:
    """There is none to hold samples of, or to pin."""
    assert tried(search("pageable-copy", replace(RUN, drawn=None))) == []


def test_parts_of_a_batch_where_memory_limits() -> None:
    """Sizes that ran, the largest first; halves where none was tried. Where other rounding is allowed."""
    numerics: tuple[Kind, ...] = ("same", "numerics")
    sizes = replace(RUN, resized=((8, 0.02, 1), (16, 0.03, 2), (24, 0.04, 3), (32, 0.05, 4)))
    assert tried(search("vram-overflow", sizes, numerics))[:2] == [("micro_batch", 24), ("micro_batch", 16)]
    assert tried(search("vram-overflow", RUN, numerics))[:2] == [("micro_batch", 16), ("micro_batch", 8)]
    strict = search("vram-overflow")
    assert tried(strict) == []
    assert "micro_batch: of kind numerics; allow it with --allow numerics" in strict.not_tried


def test_memory_taken_again_and_again() -> None:
    """Segments that can grow."""
    assert tried(search("allocator-churn")) == [("allocator", "expandable_segments")]


def test_garbage_that_holds_all_ranks_up() -> None:
    """What lives is no longer looked through, where collecting it is why a rank is late."""
    collects, computes = (
        Search(verdict=verdict("straggler", cures), run=RUN, kinds=frozenset({"same"}))
        for cures in (straggler.CURES, ())
    )
    assert (tried(collects), tried(computes)) == ([("gc_freeze", True)], [])


def test_launching_is_recorded_where_batches_are_tiny() -> None:
    """After the compiler's own choice."""
    found = tried(search("tiny-batch", RUN, ("same", "numerics")))
    assert found[-2:] == [("compile", "default"), ("compile", "reduce-overhead")]


def test_what_cannot_be_checked_is_refused(tmp_path: Path) -> None:
    """A probe that fails, as one that is compiled for too long does, ends no search."""

    def probe(settings: Mapping[str, Any], seed: int, dropout: bool) -> Probe:
        if settings:
            raise TrialFailed("the first 40 steps could not be looked at (timed-out)")
        return PLAIN

    found = tuned(by_workers, tmp_path / "it", probe=probe)
    assert found.settings == {}
    assert {one.outcome for one in found.tried if one.rate and one.rate > 1000} == {"refused"}
    assert "not checked: the first 40 steps could not be looked at" in found.tried[0].reason
