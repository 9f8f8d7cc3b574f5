"""Batches from a generator of the script's own: how much of a loop stands in it, by looking at its stack."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from stoker.doctor.budget import draw_budget
from stoker.doctor.causes import no_overlap
from stoker.doctor.evidence import Evidence
from stoker.doctor.experiments.generators import Generator, Generators, read_generator
from stoker.doctor.finding import Found, RuledOut
from stoker.doctor.plan import draw_up
from stoker.doctor.verdict import reach

MADE = Generator(share=0.42, name="windows", place="train.py:14", runs_model=False)
RUN = Evidence(
    step=0.016,
    shares={"wait": None, "forward": 0.2, "backward": 0.2, "update": 0.18, "other": 0.42},
    cores=1.0,
    host={"usable_cores": 2.0},
    generator=MADE,
)


def sleeping() -> Iterator[float]:
    while True:
        time.sleep(0.01)
        yield 1.0


def running(model: nn.Module) -> Iterator[torch.Tensor]:
    """Long enough within the model to be seen there."""
    while True:
        yield model(torch.ones(1))


class Slow(nn.Module):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01)
        return given


def looked_at(batches: "Iterator[object] | None", *, steps: int = 60) -> Generator | None:
    """A loop that draws from it; without one, from a new one for every step."""
    looks = Generators()
    looks.start()
    for _ in range(steps):
        next(sleeping() if batches is None else batches)
        looks.stepped()
    return read_generator(looks.stop())


def test_a_loop_that_stands_in_its_generator_is_seen_there() -> None:
    """By the generator's name, and most of the time."""
    found = looked_at(sleeping())
    assert found is not None
    assert found.name == "sleeping"
    assert found.place.startswith("test_generators.py:")
    assert found.share > 0.5
    assert not found.runs_model


def test_one_that_runs_the_model_is_told_as_such() -> None:
    """An agent that acts by what it has learnt cannot act ahead of that."""
    found = looked_at(running(Slow()))
    assert found is not None
    assert found.runs_model


def test_one_that_does_not_live_from_step_to_step_makes_no_batches() -> None:
    """It is a part of the step's own work."""
    found = looked_at(None)
    assert found is not None
    assert (found.name, found.share) == ("", 0.0)


def test_a_few_looks_tell_nothing() -> None:
    """A share of ten looks would be no measurement."""
    assert looked_at(sleeping(), steps=5) is None


def test_such_a_loop_is_told_of_overlap() -> None:
    """What it saves is the shorter of both; the cure is a loader, and its gain is predicted."""
    verdict = reach(RUN)
    assert verdict.cause == "no-overlap"
    assert verdict.share == pytest.approx(0.42)
    assert "windows (train.py:14)" in verdict.why[0]
    (option, *_) = draw_up(verdict, RUN, draw_budget(RUN)).options
    assert [change.change for change in option.changes] == ["loader"]
    assert option.predicted is not None
    assert option.predicted.mid == pytest.approx(1 / (0.016 * 0.58))


@pytest.mark.parametrize(
    "run",
    [
        replace(RUN, generator=replace(MADE, runs_model=True)),
        replace(RUN, generator=replace(MADE, share=0.05)),
    ],
)
def test_no_alarm_where_nothing_would_be_gained(run: Evidence) -> None:
    """It takes little of the step, or needs the model itself."""
    assert isinstance(no_overlap.judge(run), RuledOut)


def test_without_a_core_for_it_there_is_nothing_to_gain() -> None:
    """Both would take turns on the one core that there is."""
    judged = no_overlap.judge(replace(RUN, host={"usable_cores": 1.0}))
    assert isinstance(judged, Found)
    assert judged.share == 0.0


def test_where_nobody_looked_nothing_is_said() -> None:
    """A record alone, say."""
    assert no_overlap.judge(replace(RUN, generator=None)) is None
