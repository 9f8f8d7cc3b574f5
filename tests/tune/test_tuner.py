"""Trials held one beside the other: what ends a change, and what is compared with what."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_search import PLAIN, STARVED, CutOff, by_workers, tuned
from test_search import search as search_of

from stoker.changes import ALL, Kind
from stoker.doctor.verdict import Named, reach
from stoker.tune.meaning import Probe
from stoker.tune.search import Search
from stoker.tune.trial import Outcome

# Its batches are there in time: it computes.
COMPUTES = replace(
    STARVED, shares={**STARVED.shares, "wait": 0.01, "forward": 0.84}, loader=0.005, step=0.0101
)


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


@pytest.mark.parametrize(
    ("cause", "change"),
    [("pageable-copy", "feed"), ("pageable-copy", "pin_memory"), ("allocator-churn", "allocator")],
)
def test_what_held_batches_still_pay_for_is_cured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str, change: str
) -> None:
    """Computing alone is 2% faster, copies and the allocator's work included: their cure can be faster."""

    def nothing(value: object) -> str | None:
        return None

    def all_of_it(value: object) -> str | None:
        return "not here"

    for name, one in ALL.items():
        lacks = nothing if name in (change, "feed") else all_of_it
        monkeypatch.setitem(ALL, name, replace(one, lacks=lacks))
    named = Named(
        cause=cause, share=0.4, certainty=0.9, evidence=(), cures=(), ceiling_after=None, computes=True
    )
    assert COMPUTES.drawn is not None
    run = replace(COMPUTES, drawn=replace(COMPUTES.drawn, pinned=False))
    verdict = replace(reach(run), cause=cause, named=(named,))
    wanted = Search(verdict=verdict, run=run, kinds=frozenset({"same"}))
    found = tuned(lambda s: 1300.0 if change in s else 800.0, tmp_path / "it", wanted=wanted, ceiling=1.02)
    assert set(found.settings) == {change}, found


def test_where_computing_is_what_takes_long_the_loader_is_left_alone(tmp_path: Path) -> None:
    """Precision is still tried, where it is allowed: it makes computing itself faster. That is said."""
    kinds: tuple[Kind, ...] = ("same", "redraw", "numerics")

    def rate_of(settings: Mapping[str, Any]) -> float:
        return by_workers(settings, most=4) * (1.5 if "autocast" in settings else 1.0)

    found = tuned(rate_of, tmp_path / "it", wanted=search_of(kinds=kinds), ceiling=4.1, seconds=300.0)
    assert found.settings == {"num_workers": 4, "autocast": "bf16"}
    loaders = [one.candidate.name for one in found.tried if ALL[one.candidate.change].of == "loader"]
    assert loaders == ["num_workers = 4"]
    assert any(line.startswith("num_workers = 6: computing alone would be") for line in found.not_tried)
    assert found.stopped == "nothing more is worth trying"


@pytest.mark.parametrize(("loss", "is_kept"), [(float("nan"), False), (1.101, True)])
def test_once_draws_differ_losses_are_still_compared(tmp_path: Path, loss: float, is_kept: bool) -> None:
    """Workers draw otherwise, and are kept; what rounds otherwise is held beside them, not the script."""

    def probe(settings: Mapping[str, Any], seed: int, dropout: bool) -> Probe:
        if seed:
            return Probe(ids=[[seed]], batches=[seed], losses=[1.0 + seed])
        if "num_workers" not in settings:
            return PLAIN
        return Probe(ids=[[0, 1]], batches=[9], losses=[loss if "autocast" in settings else 1.1])

    kinds: tuple[Kind, ...] = ("same", "redraw", "numerics")

    def rate_of(settings: Mapping[str, Any]) -> float:
        return by_workers(settings, most=4) * (1.5 if "autocast" in settings else 1.0)

    found = tuned(rate_of, tmp_path / "it", wanted=search_of(kinds=kinds), probe=probe, seconds=300.0)
    (one,) = [one for one in found.tried if one.candidate.change == "autocast"]
    assert one.outcome == ("kept" if is_kept else "refused"), one
    assert one.meaning is not None
    assert one.meaning.kind == ("numerics" if is_kept else "optimization")
    assert ("autocast" in found.settings, found.settings["num_workers"]) == (is_kept, 4)


@pytest.mark.parametrize("redraws", [False, True])
def test_parts_of_a_batch_are_looked_at_without_dropout(tmp_path: Path, redraws: bool) -> None:
    """They draw what is dropped otherwise, and no worse; after workers that draw otherwise too."""
    probed: list[tuple[Mapping[str, Any], bool]] = []

    def probe(settings: Mapping[str, Any], seed: int, dropout: bool) -> Probe:
        probed.append((settings, dropout))
        moved = 0.1 if dropout and "micro_batch" in settings else 0.0
        drawn = redraws and "num_workers" in settings
        loss = 1.0 + drawn + moved + 1e-7 * ("micro_batch" in settings)
        weights = [([0.0], [loss])]
        return Probe(ids=[[0, 1]], batches=[7 + drawn], losses=[loss], weights=weights)

    named = Named(cause="vram-overflow", share=0.4, certainty=0.9, evidence=(), cures=(), ceiling_after=None)
    kinds: frozenset[Kind] = frozenset(("same", "redraw", "numerics"))
    verdict = reach(STARVED)
    wanted = Search(verdict=replace(verdict, named=(*verdict.named, named)), run=STARVED, kinds=kinds)

    def rate_of(settings: Mapping[str, Any]) -> float:
        return by_workers(settings, most=4) * (1.5 if "micro_batch" in settings else 1.0)

    found = tuned(rate_of, tmp_path / "it", wanted=wanted, probe=probe, seconds=300.0)
    assert found.settings == {"num_workers": 4, "micro_batch": 16}, found.tried
    assert not any(dropout for settings, dropout in probed if "micro_batch" in settings)
    assert any(not dropout for settings, dropout in probed if "micro_batch" not in settings)


# More workers won't help: they are not tried.
NO_WORKERS = replace(STARVED, loader_with=(2, 0.0399))


def test_a_resumed_search_that_goes_another_way_finds_what_was_measured(tmp_path: Path) -> None:
    """The diagnosis is another: workers come first now, and what ran before is not run again."""
    first: list[Mapping[str, Any]] = []
    tuned(lambda s: 800.0, tmp_path / "it", held=first, wanted=search_of(NO_WORKERS))
    before = [path.read_text() for path in (tmp_path / "it").rglob("trial.json")]
    again: list[Mapping[str, Any]] = []
    tuned(lambda s: 800.0, tmp_path / "it", held=again)
    assert {"num_workers": 4} in again
    assert not [settings for settings in again if settings and settings in first]
    after = [path.read_text() for path in (tmp_path / "it").rglob("trial.json")]
    assert len(after) == len(first) + len(again)
    assert set(before) <= set(after)
    third: list[Mapping[str, Any]] = []
    tuned(lambda s: 800.0, tmp_path / "it", held=third)
    tuned(lambda s: 800.0, tmp_path / "it", held=third, wanted=search_of(NO_WORKERS))
    assert third == []


def test_what_is_run_beside_a_change_was_not_run_before_it(tmp_path: Path) -> None:
    """A machine that others have left since a search was killed is no gain when it is resumed otherwise."""

    def refused(settings: Mapping[str, Any], seed: int, dropout: bool) -> Probe:
        return Probe(ids=[[1, 0]], batches=[8], losses=[2.0]) if settings else PLAIN

    wanted = search_of(NO_WORKERS)  # of its runs as it is one is beside each that was faster, and refused
    tuned(lambda s: 900.0 if s else 800.0, tmp_path / "it", wanted=wanted, probe=refused)
    again: list[Mapping[str, Any]] = []
    found = tuned(lambda s: 864.0, tmp_path / "it", held=again)
    assert again[:2] == [{"num_workers": 4}, {}]
    assert "num_workers" not in found.settings


@pytest.mark.parametrize("first", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("then", [1, 2, 3, 5])
def test_a_search_goes_on_from_machine_to_machine(tmp_path: Path, first: int, then: int) -> None:
    """Cut off on two of them, with another diagnosis on the second: rates are compared within the third."""
    held: list[Mapping[str, Any]] = []

    def until(count: int, times: float) -> Callable[[Mapping[str, Any]], float]:
        def rate_of(settings: Mapping[str, Any]) -> float:
            if len(held) > count:
                raise CutOff
            return times * by_workers(settings)

        return rate_of

    with pytest.raises(CutOff):
        tuned(until(first, 1.0), tmp_path / "it", held=held, host="one")
    held.clear()
    with suppress(CutOff):  # without workers it may be over before
        tuned(until(then, 3.0), tmp_path / "it", held=held, host="two", wanted=search_of(NO_WORKERS))
    found = tuned(lambda s: 7 * by_workers(s), tmp_path / "it", host="three")
    assert found.settings == {"num_workers": 6}
    assert found.best == pytest.approx(7 * 4800, rel=0.01)
    assert found.ratio is not None
    assert found.ratio.mid == pytest.approx(6, rel=0.02)
