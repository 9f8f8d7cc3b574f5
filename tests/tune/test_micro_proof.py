"""A micro-batch is recommended where it was proved, within the time that there was for it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.scratch import Plan, Result
from stoker.tune import micro_batch, micro_trial
from stoker.tune.meaning import Probe
from stoker.tune.micro_found import MicroBatch
from stoker.tune.micro_proof import prove
from stoker.tune.micro_trial import MicroTrial, hold


def trial(size: int, rate: float | None) -> MicroTrial:
    return MicroTrial(
        size=size,
        outcome="too large" if rate is None else "ran",
        reason="" if rate else "OutOfMemoryError",
        batch=64,
        rate=rate,
        vram=None,
    )


def found(whole: float | None = 100.0) -> MicroBatch:
    """Parts of 16 seemed faster, in a run of each."""
    trials = (trial(64, whole), trial(16, 150.0))
    return MicroBatch(size=16, batch=64, rate=150.0, whole=whole, reason="the fastest of 2", trials=trials)


class Machine:
    """One whose runs have these rates, each size by turns; then the time is up."""

    def __init__(self, parts: list[float | None], whole: list[float | None]) -> None:
        self._rates: dict[int, Iterator[float | None]] = {16: iter(parts), 64: iter(whole)}
        self.order: list[int] = []

    def again(self, size: int) -> MicroTrial | None:
        self.order.append(size)
        try:
            return trial(size, next(self._rates[size]))
        except StopIteration:
            return None


def test_parts_that_are_faster_by_turns_are_taken() -> None:
    """By runs of their own, with the whole batch after each; the rates told are those."""
    machine = Machine([120.0, 121.0], [100.0, 101.0])
    proved = prove(found(), machine.again)
    assert machine.order == [16, 64, 16, 64]
    assert (proved.size, proved.rate, proved.whole) == (16, 120.5, 100.5)
    assert proved.ratio is not None
    assert proved.ratio.low > 1.02
    assert "by 2 runs of each in turn" in proved.reason
    assert proved.to_json()["ratio"]["mid"] == proved.ratio.mid
    assert len(proved.trials) == 6


@pytest.mark.parametrize(
    ("parts", "whole", "says"),
    [
        # A first run that was slow, or lucky: in turns there is no gain.
        ([100.0, 101.0], [100.0, 101.0], "1.00 times as fast"),
        # A machine that others use and leave: four runs each do not tell.
        ([150.0, 90.0, 160.0, 95.0], [100.0, 140.0, 90.0, 150.0], "times as fast (0."),
        ([120.0, 121.0], [100.0], "the time was up"),
        ([120.0], [None], "64 ran before, and not again: OutOfMemoryError"),
        ([None], [100.0], "16 ran before, and not again"),
    ],
)
def test_parts_that_are_not_faster_beyond_doubt_leave_the_batch_whole(
    parts: list[float | None], whole: list[float | None], says: str
) -> None:
    """One run of each, as the search has it, is no proof."""
    proved = prove(found(), Machine(parts, whole).again)
    assert proved.size == proved.batch == 64
    assert proved.rate == proved.whole
    assert "not beyond doubt" in proved.reason
    assert says in proved.reason


def test_parts_without_which_nothing_fits_need_not_be_faster() -> None:
    """There is nothing to be faster than."""
    machine = Machine([], [])
    assert prove(found(whole=None), machine.again) == found(whole=None)
    assert machine.order == []


def test_a_script_has_all_its_time_for_the_first_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may read data for minutes before it; after that a minute without an update is a hang."""
    plans: list[Plan] = []

    def run(plan: Plan) -> Result:
        plans.append(plan)
        return Result(outcome="ended-early", reason="", seconds=1.0)

    monkeypatch.setattr(micro_trial, "run", run)
    hold(["train.py"], 8, folder=tmp_path, most=250.0)
    hold(["train.py"], 8, folder=tmp_path, most=250.0, start=90.0)
    assert [plan.limits.start_seconds for plan in plans] == [250.0, 90.0]
    assert [plan.limits.idle_seconds for plan in plans] == [60.0, 60.0]


@dataclass
class Slow:
    """A machine on which trials and probes take their time, by a clock of its own."""

    takes: float
    fits: int = 64
    now: float = 0.0
    most: list[float] = field(default_factory=list)

    def hold(self, command: Any, size: int, *, most: float, **_: Any) -> MicroTrial:
        self._spend(most)
        size = min(size, 64)
        return trial(size, 100.0 + (64 - size) if size <= self.fits else None)

    def take(self, command: Any, settings: Any, *, most: float, **_: Any) -> Probe:
        self._spend(most)
        parts = 0.0 if settings else 1.0
        return Probe(ids=[[1]], batches=[1], losses=[1.0], weights=[((0.0,), (1.0,))], rates=[[parts * 0]])

    def _spend(self, most: float) -> None:
        self.most.append(most)
        self.now += min(self.takes, most)


def search(machine: Slow, monkeypatch: pytest.MonkeyPatch, budget: float) -> MicroBatch:
    monkeypatch.setattr(micro_batch, "hold", machine.hold)
    monkeypatch.setattr(micro_batch, "take", machine.take)
    monkeypatch.setattr(micro_batch, "time", SimpleNamespace(monotonic=lambda: machine.now))
    return micro_batch.find_micro_batch(["train.py"], budget=budget)


@pytest.mark.parametrize("fits", [64, 16])
@pytest.mark.parametrize("takes", [1.0, 7.0, 20.0, 45.0, 90.0, 1000.0])
def test_the_budget_is_a_bound(monkeypatch: pytest.MonkeyPatch, takes: float, fits: int) -> None:
    """Whatever a run takes; no run is given more than what is left."""
    machine = Slow(takes=takes, fits=fits)
    search(machine, monkeypatch, 200.0)
    assert machine.now <= 200.0 + 5.0
    assert all(most <= 200.0 for most in machine.most)


def test_what_was_not_done_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that had no time for other sizes leaves the batch as it is, and says so."""
    none = search(Slow(takes=45.0), monkeypatch, 200.0)
    assert none.size == none.batch
    assert "the time was up before others were: give a longer --budget" in none.reason
    some = search(Slow(takes=5.0), monkeypatch, 300.0)
    assert some.size is not None
    assert some.size < some.batch
    assert some.ratio is not None
    assert some.check is not None
