"""The speed model: no faster than the next ceiling, more workers no slower while there are cores."""

from dataclasses import replace
from itertools import pairwise
from math import exp
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.doctor.device import Copied
from stoker.doctor.evidence import Evidence, LoaderFacts
from stoker.doctor.model import Change, Interval, loader_seconds, predict, why_not_told
from stoker.doctor.samples import set_bytes
from stoker.doctor.steadiness import settled_step
from stoker.watch import Step

TIMES = st.floats(min_value=1e-3, max_value=0.5)
WORKERS = st.integers(min_value=1, max_value=8)
FEED = Change(change="feed", value="ram")


def loop(**more: Any) -> Evidence:
    """2 workers make a batch in 40 ms, so one comes every 20; the model takes 10; 8 cores."""
    plain = Evidence(
        step=0.02,
        shares={"wait": 0.5, "forward": 0.2, "backward": 0.25, "update": 0.05, "copy": 0.0, "other": 0.0},
        steps=100,
        samples=32.0,
        compute=0.01,
        loader=0.02,
        drawn=LoaderFacts(name="DataLoader", workers=2, batch_size=32, prefetch=2, length=100),
        making={"batches": 50, "read": 0.03, "transform": 0.01, "cpu": 0.01},
        batch_bytes=1,
        host={"usable_cores": 8.0, "memory_free_bytes": 1 << 30},
        cores=0.75,
    )
    return replace(plain, **more)


def rate(run: Evidence, *changes: Change) -> float:
    told = predict(run, changes)
    assert told is not None
    return told.rate.mid


def workers(number: int) -> Change:
    return Change(change="num_workers", value=number)


@given(compute=TIMES, loader=TIMES, twice=TIMES, cores=st.floats(0.1, 8), number=st.integers(1, 32))
def test_no_prediction_is_above_the_next_ceiling(
    compute: float, loader: float, twice: float, cores: float, number: int
) -> None:
    """Neither the model's own time nor that of the cores can be undercut by workers."""
    step = max(compute, loader)
    run = loop(step=step, compute=compute, loader=loader, loader_with=(4, twice), cores=min(cores, 8.0))
    found = rate(run, workers(number))
    assert found <= 1 / compute * (1 + 1e-9)
    assert found <= 8 / (min(cores, 8.0) * step) * (1 + 1e-9)
    assert rate(run, FEED) <= 1 / compute * (1 + 1e-9)


@given(loader=TIMES, gain=st.floats(1.0, 2.0))
def test_more_workers_are_no_slower_where_they_were_measured_to_help(loader: float, gain: float) -> None:
    """Up to and past the measured number, while cores last."""
    run = loop(step=loader, compute=1e-3, loader=loader, loader_with=(4, loader / gain), cores=0.1)
    rates = [rate(run, workers(number)) for number in range(2, 17)]
    assert all(later >= before * (1 - 1e-9) for before, later in pairwise(rates))


@given(loader=TIMES, twice=TIMES, number=WORKERS)
def test_the_loader_is_as_measured_where_it_was(loader: float, twice: float, number: int) -> None:
    """And beyond, no worker gives more than each did there."""
    run = loop(loader=loader, loader_with=(4, twice))
    assert loader_seconds(run, 2) == pytest.approx(loader)
    assert loader_seconds(run, 4) == pytest.approx(twice)
    beyond = loader_seconds(run, 4 + number)
    assert beyond is not None
    assert 1 / beyond <= (1 / twice) * (4 + number) / 4 * (1 + 1e-9)


def test_twice_the_workers_bring_what_the_drain_showed() -> None:
    """Until the model is what is waited for."""
    assert rate(loop(loader_with=(4, 0.012)), workers(4)) == pytest.approx(1 / 0.012)
    told = predict(loop(loader_with=(4, 0.005)), [workers(4)])
    assert told is not None
    assert told.rate.mid == pytest.approx(100)
    assert told.limit == "compute"


def test_a_saturated_store_gains_nothing_by_workers() -> None:
    """The drain with more of them was no faster."""
    assert rate(loop(loader_with=(4, 0.02)), workers(4)) == pytest.approx(50)
    assert rate(loop(loader_with=(4, 0.02)), workers(16)) == pytest.approx(50)


def test_what_was_tried_counts_more_than_the_parts() -> None:
    """Two processes slow each other down by more than cores tell."""
    run = loop(loader_with=(4, 0.01), step_with=(4, 0.0143, 0.02))
    assert rate(run, workers(4)) == pytest.approx(1 / 0.0143)
    told = predict(run, [workers(4)])
    assert told is not None
    assert told.rate.low < told.rate.mid < told.rate.high


def test_a_loop_that_makes_its_own_batches_then_waits_for_the_longer_part() -> None:
    """In place of their sum."""
    drawn = LoaderFacts(name="DataLoader", workers=0, batch_size=32)
    run = loop(step=0.03, compute=0.02, loader=0.01, drawn=drawn, cores=1.0)
    assert rate(run, workers(1)) == pytest.approx(50)
    # Two cores' worth of work on one core stays one after the other.
    assert rate(replace(run, host={"usable_cores": 1.0}), workers(1)) == pytest.approx(1 / 0.03)


def test_workers_that_stay_leave_an_epoch_its_first_batch() -> None:
    """The time that starting took is gone, but the queue is empty at every beginning."""
    run = loop(step=0.04, startup=0.5)
    assert rate(run, Change(change="persistent_workers", value=True)) == pytest.approx(1 / (0.02 + 0.0004))
    bare = replace(run, compute=None, loader=None)
    assert rate(bare, Change(change="persistent_workers", value=True)) == pytest.approx(1 / 0.0204)


def test_a_stall_that_is_gone_shows_the_loader_behind_it() -> None:
    """The cure of the first cause exposes the second."""
    run = loop(step=0.04, loader=0.015, compute=0.04)
    assert rate(run, Change(change="rarer", share=0.5)) == pytest.approx(50)
    assert rate(run, Change(change="rarer", share=0.75)) == pytest.approx(1 / 0.015)


def test_a_switched_precision_is_as_fast_as_its_replay() -> None:
    """And no faster than the loader."""
    run = loop(step=0.02, loader=0.004, compute=0.02, variants={"as it is": 0.02, "bf16": 0.008})
    assert rate(run, Change(change="bf16", share=0.5)) == pytest.approx(125)
    slow = replace(run, loader=0.01)
    assert rate(slow, Change(change="bf16", share=0.5)) == pytest.approx(100)


def test_pinning_saves_what_the_copies_showed() -> None:
    """Where copies were tried."""
    copied = Copied(bytes=1, pinned=0.001, pageable=0.004, pinning=0.0)
    run = loop(step=0.02, loader=0.004, compute=0.02, copied=copied)
    assert rate(run, Change(change="pin_memory", value=True)) == pytest.approx(1 / 0.017)
    assert predict(replace(run, copied=None), [Change(change="pin_memory", value=True)]) is None


def test_another_batch_is_predicted_between_sizes_that_ran() -> None:
    """In steps of the script's own size; never beyond the largest that ran."""
    run = loop(
        step=0.02,
        loader=0.001,
        compute=0.02,
        resized=((16, 0.018, None), (32, 0.02, None), (64, 0.024, None)),
    )
    assert rate(run, Change(change="batch_size", value=64)) == pytest.approx(1 / 0.012)
    assert rate(run, Change(change="batch_size", value=48)) == pytest.approx(48 / 32 / 0.022)
    assert predict(run, [Change(change="batch_size", value=128)]) is None
    # A step of four accumulated batches was run as one of four batches at the other size, too.
    assert rate(replace(run, batches=4.0), Change(change="batch_size", value=64)) == pytest.approx(1 / 0.012)


@pytest.mark.parametrize(
    ("run", "change"),
    [
        (loop(compute=None), workers(4)),
        (loop(loader=None), workers(4)),
        (loop(drawn=None), workers(4)),
        (loop(), Change(change="rarer")),
        (loop(), Change(change="something else")),
        (loop(), Change(change="something else", value=3, share=0.5)),
        (loop(), Change(change="num_workers")),
        (loop(step=float("inf")), workers(4)),
    ],
)
def test_what_was_not_measured_is_not_predicted(run: Evidence, change: Change) -> None:
    """None, not a guess."""
    assert predict(run, [change]) is None


@given(spread=st.floats(0, 0.5), wrong=st.floats(0, 0.5))
def test_an_interval_is_as_wide_as_what_was_measured_and_learnt(spread: float, wrong: float) -> None:
    """And its times turn round: the highest rate is the least time."""
    told = predict(loop(loader_with=(4, 0.012), spread=spread), [workers(4)], {"num_workers": wrong})
    assert told is not None
    assert told.rate.low <= told.rate.mid <= told.rate.high
    assert told.rate.high / told.rate.mid >= 1 + max(spread, wrong) * 0.99
    times = told.rate.time_for(1000)
    assert times.low <= times.mid <= times.high
    assert times.mid == pytest.approx(1000 / told.rate.mid)


def test_an_interval_is_json() -> None:
    """By the names of the design."""
    assert Interval(low=1, mid=2, high=3).to_json() == {"low": 1, "mid": 2, "high": 3}


def test_a_loader_that_could_not_be_drained_leaves_what_was_observed() -> None:
    """Epochs shorter than the queue: what starting workers took is known all the same."""
    run = loop(step=0.04, startup=0.5, loader=None)
    assert rate(run, Change(change="persistent_workers", value=True)) == pytest.approx(1 / 0.0204)


def test_threads_are_predicted_as_they_were_tried() -> None:
    """One in each process; any other number was not."""
    run = loop(one_thread=0.012)
    assert rate(run, Change(change="threads", value=1, share=0.4)) == pytest.approx(1 / 0.012)
    assert predict(loop(), [Change(change="worker_threads", value=1)]) is None


def test_steps_beside_loaders_that_start_are_not_the_settled_ones() -> None:
    """The first batches of each worker come late too, and workers that stay have none of that."""
    run = loop(step=0.04, startup=0.25, settled=0.02)
    assert rate(run, Change(change="persistent_workers", value=True)) == pytest.approx(1 / 0.0204)

    def step(seconds: float, startup: float = 0.0) -> Step:
        return Step(
            step=0, t=0.0, samples=1, loader=0, wait=0.0, copy=0.0, forward=seconds, backward=0.0, update=0.0,
            other=0.0, startup=startup,
        )  # fmt: skip

    epoch = [step(0.2, startup=0.1), step(0.05), step(0.05), *[step(0.01)] * 7]
    assert settled_step(epoch * 2, 2) == pytest.approx(0.01)
    assert settled_step(epoch[:4], 2) is None


def test_a_worker_that_was_drained_counts_more_than_the_loop_in_its_place() -> None:
    """Handing a batch over costs something that a loop without workers never paid."""
    drawn = LoaderFacts(name="DataLoader", workers=0, batch_size=32)
    assert loader_seconds(loop(drawn=drawn), 1) == pytest.approx(0.02)
    assert loader_seconds(loop(drawn=drawn, loader_with=(1, 0.025)), 1) == pytest.approx(0.025)
    assert loader_seconds(loop(drawn=drawn, loader_with=(1, 0.025)), 0) == pytest.approx(0.02)
    assert loader_seconds(loop(drawn=drawn, loader_with=(2, 0.012)), 1) == pytest.approx(0.02)


def test_workers_that_are_started_anew_take_their_time_each() -> None:
    """Eight times as many take eight times as long to start in every epoch, then one first batch."""
    run = loop(step=0.025, startup=0.2, compute=1e-3, loader=0.02, cores=0.01)
    first = 0.04 / 100
    fork = 0.2 * 0.025 - first
    steady = 0.02 / 8
    assert 1 / rate(run, workers(16)) == pytest.approx(steady + first + 8 * fork, rel=0.02)
    stay = Change(change="persistent_workers", value=True)
    assert 1 / rate(run, workers(16), stay) == pytest.approx(steady + first, rel=0.05)


def test_workers_queue_for_the_cores() -> None:
    """Short of the cores' limit already: 16 workers of 2 cores would need 80% of them."""
    run = loop(compute=1e-3, loader=0.02, cores=0.2, host={"usable_cores": 2.0})
    found = rate(run, workers(16))
    assert 0.8 * 400 < found < 0.95 * 400
    assert rate(run, workers(4)) == pytest.approx(100, rel=0.03)


def test_beyond_what_was_measured_less_is_known() -> None:
    """The interval is wider by every doubling of workers."""
    run = loop(compute=1e-3, loader_with=(4, 0.011), cores=0.01)
    told = [predict(run, (workers(number),)) for number in (4, 8, 16)]
    widths = [one.rate.high / one.rate.low for one in told if one is not None]
    assert widths == sorted(set(widths))
    assert len(widths) == 3


def test_held_samples_leave_the_cores_to_the_loop() -> None:
    """No workers are left: a step is computing and taking its batch, whatever the workers' CPU time was."""
    run = loop(cores=8.0, batch_bytes=1_000_000)
    told = predict(run, [FEED])
    assert told is not None
    assert told.limit == "compute"
    assert 1 / told.rate.mid == pytest.approx(0.01 + 0.28e-3 + 1e-4)


def test_held_samples_that_are_looked_at_anew_cost_every_epoch() -> None:
    """A loop that reads by itself reads 4 of 32 samples again in every epoch, here of ten steps."""
    drawn = LoaderFacts(name="DataLoader", workers=0, batch_size=32, length=10)
    run = loop(step=0.05, loader=0.04, drawn=drawn)
    taken = rate(loop(loader=0.04), FEED)
    assert 1 / rate(run, FEED) == pytest.approx(1 / taken + 0.04 / 10 * 4 / 32)


def test_a_loop_that_was_tried_with_its_samples_in_memory_goes_by_that() -> None:
    """Also by how much those steps varied."""
    run = loop(from_memory=(0.0125, 0.3))
    told = predict(run, [FEED], {"feed": 0.0})
    assert told is not None
    assert told.rate.mid == pytest.approx(1 / 0.0125)
    assert told.rate.high == pytest.approx(told.rate.mid * exp(0.3))
    on_gpu = replace(run, process={"on_gpu": True})
    assert rate(on_gpu, FEED) == pytest.approx(100.0)


GIB = 1 << 30


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"batch_bytes": GIB}, "all samples are 100 GiB, which does not fit 1.0 GiB of free memory"),
        ({"batch_bytes": 1 << 20, "dataset": 320_000}, "does not fit 1.0 GiB"),
        ({"batch_bytes": None}, "how much memory all samples take is not known"),
        ({"host": {"usable_cores": 8.0}}, "how much memory is free is not known"),
        ({"unkept": "reading a sample draws from torch's random generator"}, "draws from torch's"),
        ({"missing": {"from memory": "batches of [0, 3] rows"}}, "batches of [0, 3] rows"),
    ],
)
def test_samples_that_memory_cannot_keep_have_no_rate(more: dict[str, Any], why: str) -> None:
    """Nor those of which it is not known: a set of 100 GiB was told as if it were in memory."""
    run = loop(**more)
    assert predict(run, [FEED]) is None
    assert why in (why_not_told(run, FEED) or "")


def test_a_loader_of_a_part_of_a_set_has_its_whole_set_kept() -> None:
    """Three batches an epoch of a set of 3,200 samples: what is kept is the set."""
    drawn = LoaderFacts(name="DataLoader", workers=2, batch_size=32, prefetch=2, length=3)
    run = loop(batch_bytes=1 << 20, drawn=drawn)
    assert set_bytes(run) == 3 << 20
    assert set_bytes(replace(run, dataset=3200)) == 100 << 20


@pytest.mark.parametrize(
    "change",
    [
        Change(change="feed", value="disk"),
        Change(change="feed"),
        *(Change(change=name, share=0.5) for name in ("block_order", "gpu_transform", "batch_transform")),
    ],
)
def test_what_is_no_tier_in_memory_is_not_predicted_as_one(change: Change) -> None:
    """A disk cache, another order, and transforms on a device were never measured; and it is said."""
    assert predict(loop(), [change]) is None
    assert why_not_told(loop(), change)


def test_workers_beside_held_samples_are_none() -> None:
    """Whichever is named first."""
    fed = rate(loop(), FEED)
    assert rate(loop(), FEED, workers(8)) == fed
    assert rate(loop(), workers(8), FEED) == fed


def test_beside_a_gpu_batches_are_taken_while_it_computes() -> None:
    """Then a step is computing alone."""
    assert rate(loop(process={"on_gpu": True}), FEED) == pytest.approx(100.0)


def test_a_spread_that_was_not_measured_makes_an_interval_wider() -> None:
    """Of a few steps nobody knows how much they vary: however well such predictions did, it is no 0."""
    tried = {"num_workers": 0.02, "feed": 0.02}
    runs = (
        (loop(loader_with=(4, 0.012)), loop(loader_with=(4, 0.012), spread=0.0), workers(4)),
        (loop(step_with=(4, 0.0143, None)), loop(step_with=(4, 0.0143, 0.0)), workers(4)),
        (loop(), loop(compute_spread=0.0), FEED),
    )
    for unknown, steady, change in runs:
        wide, narrow = (predict(run, [change], tried) for run in (unknown, steady))
        assert wide is not None
        assert narrow is not None
        assert wide.rate.mid == narrow.rate.mid
        assert narrow.rate.high / narrow.rate.mid == pytest.approx(exp(0.02))
        assert wide.rate.high / wide.rate.mid > 1.3
