"""A script that dies of the card's memory is run again with smaller batches, as far as time allows."""

from dataclasses import replace
from math import inf
from typing import Any

from stoker.doctor.device import Overflow
from stoker.doctor.evidence import Evidence
from stoker.doctor.parts import Parts
from stoker.doctor.smaller import run_smaller
from stoker.scratch import Message, Result

DIED = Overflow(asked=1, reserved=1, allowed=1, text="CUDA out of memory.", samples=16, workers=4)
RUN = Evidence(step=inf, shares={}, overflow=DIED)


class Runs:
    """Stands where scratch runs would: those with batches up to `most` tell of their sizes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held: list[tuple[str, Any]] = []

    def __call__(self, name: str, parts: Parts, seconds: float) -> Result:
        assert parts.batch is not None
        assert parts.warm_steps == Parts().warm_steps  # its first steps are compared with other runs'
        self.held.append((name, parts.batch))
        point = Message(kind="resized", body={"samples": parts.batch[0], "seconds": 1.0, "peak": 9}, at=1.0)
        ran = parts.batch[0] <= self.most
        return Result(outcome="done", reason="", seconds=1.0, messages=(point,) if ran else ())


def test_a_quarter_is_tried_first_and_its_sizes_are_kept() -> None:
    """Put over loaders with as many workers as the one that died."""
    runs = Runs(most=4)
    found = run_smaller(runs, "it", RUN, lambda: 20.0, lambda _: None)
    assert runs.held == [("it-batch4", (4, 4))]
    assert found.resized == ((4, 1.0, 9),)


def test_where_a_quarter_dies_too_less_is_tried_down_to_single_samples() -> None:
    """3D patches of which 16, and then 4, did not fit an H200: from one sample on sizes only grow."""
    runs = Runs(most=2)
    found = run_smaller(runs, "it", RUN, lambda: 20.0, lambda _: None)
    assert [batch for _, (batch, _) in runs.held] == [4, 1]
    assert found.resized == ((1, 1.0, 9),)
    assert "resize" not in found.missing


def test_what_does_not_run_is_a_missing_point() -> None:
    """No size is tried twice; those that did not run are said."""
    runs = Runs(most=0)
    wide = replace(RUN, overflow=replace(DIED, samples=64))
    found = run_smaller(runs, "it", wide, lambda: 20.0, lambda _: None)
    assert [batch for _, (batch, _) in runs.held] == [16, 4, 1]
    assert not found.resized
    assert found.missing["resize"] == "batches of 16, 4, 1 did not run either; no smaller one is left to try"


def test_nothing_is_run_without_time_or_a_loader_or_after_steps() -> None:
    """Each with its reason; a run that made steps has evidence of its own."""
    runs = Runs(most=100)
    assert "budget" in run_smaller(runs, "it", RUN, lambda: 1.0, lambda _: None).missing["resize"]
    alone = replace(RUN, overflow=replace(DIED, samples=None))
    assert "no loader" in run_smaller(runs, "it", alone, lambda: 20.0, lambda _: None).missing["resize"]
    later = replace(RUN, step=0.1, overflow=replace(DIED, steps=50))
    assert run_smaller(runs, "it", later, lambda: 20.0, lambda _: None) is later
    assert runs.held == []
