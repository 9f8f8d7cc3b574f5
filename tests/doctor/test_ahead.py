"""Batches made ahead of the loop: what a longer queue saves, who is told of it, and who is not."""

from itertools import pairwise
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_model import loop

from stoker.doctor.ahead import long_enough, step_seconds
from stoker.doctor.budget import draw_budget
from stoker.doctor.causes import no_overlap, too_few_workers
from stoker.doctor.evidence import Evidence, LoaderFacts
from stoker.doctor.finding import Found, RuledOut
from stoker.doctor.model import Change, predict
from stoker.doctor.plan import draw_up
from stoker.doctor.verdict import reach

# 1 batch in 12 takes 80 ms, the others 2; the model takes 12. A loop that waits for each has its 17.7 ms.
UNEVEN = ((0.002,) * 11 + (0.08,)) * 8
COMPUTE = 0.012


def uneven(prefetch: int = 1, step: float = 0.0182) -> Evidence:
    """One worker, and by the means of both the model is the slower one."""
    return loop(
        step=step,
        shares={"wait": 0.34, "forward": 0.3, "backward": 0.3, "update": 0.06, "copy": 0.0, "other": 0.0},
        compute=COMPUTE,
        loader=fmean(UNEVEN),
        loader_with=(2, fmean(UNEVEN) / 2),
        drawn=LoaderFacts(name="DataLoader", workers=1, batch_size=32, prefetch=prefetch, length=1000),
        making={"batches": 96, "read": fmean(UNEVEN), "transform": 0.0, "cpu": 0.001},
        made=UNEVEN,
        cores=0.5,
    )


@pytest.mark.parametrize(
    ("workers", "prefetch", "real"),
    [
        (1, 1, 18.48),
        (1, 2, 17.42),
        (1, 4, 15.16),
        (1, 16, 12.49),
        (2, 1, 17.19),
        (2, 2, 15.12),
        (2, 8, 12.63),
    ],
)
def test_it_is_what_torch_does(workers: int, prefetch: int, real: float) -> None:
    """Beside 96 steps of a real DataLoader with these sleeps (ms, torch 2.13): `next()` itself takes 0.5."""
    told = step_seconds(UNEVEN, COMPUTE, workers=workers, prefetch=prefetch)
    assert told is not None
    assert 0.3 < real - 1e3 * told < 1.0


@given(
    made=st.lists(st.floats(1e-4, 0.2), min_size=32, max_size=80),
    compute=st.floats(1e-4, 0.1),
    workers=st.integers(1, 4),
)
def test_a_longer_queue_is_never_slower(made: list[float], compute: float, workers: int) -> None:
    """And none is faster than the slower of both by its mean, or slower than one after the other."""
    told = [
        step_seconds(made, compute, workers=workers, prefetch=ahead) or 0.0 for ahead in (1, 2, 4, 16, 64)
    ]
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(told))
    assert all(
        max(compute, fmean(made) / workers) - 1e-9 <= one <= compute + fmean(made) + 1e-9 for one in told
    )


def test_of_a_few_batches_nothing_is_told() -> None:
    """31 are too few."""
    assert step_seconds(UNEVEN[:31], COMPUTE, workers=1, prefetch=1) is None
    assert long_enough(UNEVEN[:31], COMPUTE, workers=1, prefetch=1) is None


def test_a_queue_that_is_too_short_is_named_with_one_that_is_not() -> None:
    """More workers are not what is lacking: by its mean the one keeps up."""
    run = uneven()
    found, workers = no_overlap.judge(run), too_few_workers.judge(run)
    assert isinstance(found, Found)
    assert found.share == pytest.approx(0.32, abs=0.03)
    assert "prefetch_factor=1 have too few ready" in found.evidence[0]
    assert isinstance(workers, RuledOut)
    assert "keep up" in workers.by
    plan = draw_up(reach(run), run, draw_budget(run))
    steps = [step for option in plan.options for step in option.changes if step.change == "prefetch_factor"]
    assert steps
    assert steps[0].value == 8
    assert steps[0].predicted is not None
    assert 1 / steps[0].predicted.mid == pytest.approx(0.0125, abs=0.0006)


@pytest.mark.parametrize(
    "run",
    [
        uneven(prefetch=16, step=0.0125),  # long enough already
        uneven(step=0.04),  # another thing holds it up: its batches' times would make a step of 18 ms
        loop(made=(0.04,) * 96),  # all alike, and too slow: a queue runs dry however long it is
    ],
)
def test_look_alikes_are_not(run: Evidence) -> None:
    """Neither a queue that suffices, nor what is not explained, nor a loader that is slow."""
    assert isinstance(no_overlap.judge(run), RuledOut)


def test_a_shorter_queue_gains_nothing() -> None:
    """What a change takes away is not told as a gain."""
    shorter = predict(uneven(prefetch=4, step=0.0152), [Change(change="prefetch_factor", value=1)])
    assert shorter is not None
    assert 1 / shorter.rate.mid >= 0.0151
