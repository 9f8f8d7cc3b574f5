"""The causes of a GPU judged by numbers alone: each by its evidence, and not by its look-alike's."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from stoker.doctor.budget import Budget, Ram, Vram
from stoker.doctor.causes import (
    allocator_churn,
    gpu_contention,
    host_sync,
    pageable_copy,
    slow_precision,
    throttled_clocks,
    tiny_batch,
    vram_overflow,
)
from stoker.doctor.device import (
    Allocator,
    Clocks,
    Copied,
    Others,
    Overflow,
    SizePoint,
    Sync,
    Trace,
)
from stoker.doctor.device_evidence import AUTOTUNE, missing_of
from stoker.doctor.evidence import Evidence, LoaderFacts
from stoker.doctor.finding import Found, RuledOut
from stoker.doctor.model import Change, predict
from stoker.doctor.plan import draw_up
from stoker.doctor.verdict import reach
from stoker.scratch import Message

GIB = 1 << 30
ALONE = Others(total=140 * GIB, bytes=0, busy=0.0, holders=())
DEVICE = (
    allocator_churn, gpu_contention, host_sync, pageable_copy, slow_precision, throttled_clocks, tiny_batch,
    vram_overflow,
)  # fmt: skip


def traced(**more: Any) -> Trace:
    """A step of 10 ms in which the device is busy for 9.8 and the host for 4."""
    plain = Trace(
        steps=12, wall=0.010, busy=0.0098, host=0.004, kernels=200.0, kernel=49e-6, syncs=0.0, waited=0.0,
        gap=0.0, copy_waited=0.0, pageable_bytes=0.0, pinned_bytes=0.0, copying=0.0, pinning=0.0,
        allocations=0.0, allocating=0.0, launching=0.01,
    )  # fmt: skip
    return replace(plain, **more)


def on_gpu(**more: Any) -> Evidence:
    """A run that uses what the card has, in a precision that cannot be bettered."""
    plain = Evidence(
        step=0.010,
        shares={"wait": None, "copy": 0.0, "forward": 0.4, "backward": 0.5, "update": 0.05, "other": 0.05},
        steps=300,
        trace=traced(),
        variants={"as it is": 0.010, "tf32": 0.010, "bf16": 0.0099},
        others=ALONE,
        allocator=Allocator(retries=0, device_allocs=0.0, empty_cache=0.0),
        process={"parameters": {"float32": 100}, "on_gpu": True},
        growth=1.0,
        stalls=0.0,
    )
    return replace(plain, **more)


# The host stands for 6 ms in waits of a step of 10 in which the device works for 4.
WAITING = traced(busy=0.004, host=0.010, waited=0.006, syncs=12.0, gap=0.005)
LAUNCHING = traced(busy=0.002, host=0.0099, kernels=400.0, kernel=5e-6)
COPYING = traced(busy=0.007, host=0.0095, copy_waited=0.006, pageable_bytes=5e7, copying=0.006)
MOVED = Copied(bytes=50_000_000, pinned=0.001, pageable=0.0057, pinning=0.012)
PINNING = LoaderFacts(name="DataLoader", workers=2, batch_size=32, pinned=True)


@pytest.mark.parametrize(
    ("run", "cause"),
    [
        (on_gpu(), "compute-bound"),
        (on_gpu(trace=WAITING, syncs=(Sync(line="train.py:42", each=12.0),)), "host-sync"),
        (on_gpu(trace=LAUNCHING, variants=None), "tiny-batch"),
        (on_gpu(trace=COPYING, copied=MOVED), "pageable-copy"),
        (on_gpu(trace=traced(busy=0.003, host=0.0098, pinning=0.006, pinned_bytes=5e7)), "pageable-copy"),
        (on_gpu(others=replace(ALONE, bytes=2 * GIB, busy=0.97)), "gpu-contention"),
        (on_gpu(variants={"as it is": 0.010, "tf32": 0.006, "bf16": 0.003}), "slow-precision"),
        (on_gpu(process={"parameters": {"float64": 100}, "on_gpu": True}), "slow-precision"),
        (
            on_gpu(
                trace=traced(busy=0.004, host=0.0099, allocations=30.0, allocating=0.005),
                allocator=Allocator(
                    retries=0, device_allocs=28.0, empty_cache=1.0, empty_cache_line="t.py:9"
                ),
                variants={"as it is": 0.010, "kept_cache": 0.0045},
            ),
            "allocator-churn",
        ),
        (
            on_gpu(clocks=Clocks(mhz=1200.0, most_mhz=1980, held=(("sw_thermal", 0.9),))),
            "throttled-clocks",
        ),
    ],
)
def test_a_cause_is_named_first_by_its_own_evidence(run: Evidence, cause: str) -> None:
    """Each by what the driver, the counters and the experiments told."""
    assert reach(run).cause == cause


def test_a_device_that_is_busy_all_along_has_no_sync_to_blame() -> None:
    """The host waits in every step, for a device that has no gaps: that is only where waiting is booked."""
    run = on_gpu(trace=traced(syncs=1.0, waited=0.006, host=0.0099, gap=0.0001))
    assert isinstance(host_sync.judge(run), RuledOut)
    assert reach(run).cause == "compute-bound"


def test_a_sync_names_its_line() -> None:
    """What to change is a line of the script."""
    found = host_sync.judge(on_gpu(trace=WAITING, syncs=(Sync(line="train.py:42", each=12.0),)))
    assert isinstance(found, Found)
    assert any("train.py:42" in line for line in found.evidence)
    assert found.share == pytest.approx(0.6)


def test_waits_in_a_loop_that_launches_all_the_time_cost_little() -> None:
    """Without them the host would still need nearly the whole step: they are not the cause."""
    run = on_gpu(trace=traced(busy=0.002, host=0.010, waited=0.0005, syncs=3.0, kernel=5e-6))
    assert isinstance(host_sync.judge(run), RuledOut)


def test_a_step_that_grows_with_its_batch_is_not_launch_bound() -> None:
    """Twice the samples in twice the time, whatever the trace says of small kernels."""
    grows = (SizePoint(32, 0.010, None), SizePoint(16, 0.0055, None), SizePoint(64, 0.0195, None))
    flat = (SizePoint(32, 0.010, None), SizePoint(16, 0.010, None), SizePoint(64, 0.0101, None))
    assert isinstance(tiny_batch.judge(on_gpu(trace=LAUNCHING, resized=grows)), RuledOut)
    assert isinstance(tiny_batch.judge(on_gpu(trace=LAUNCHING, resized=flat)), Found)


def test_what_a_larger_batch_saves_is_no_measure_of_compiling() -> None:
    """Without the driver's account nothing was measured that would tell what fewer launches gain."""
    flat = (SizePoint(32, 0.010, None), SizePoint(16, 0.010, None), SizePoint(64, 0.0101, None))
    found = tiny_batch.judge(on_gpu(trace=None, variants=None, resized=flat))
    assert isinstance(found, Found)
    assert [cure.change for cure in found.cures or ()] == ["batch_size"]


def test_a_host_that_waits_for_data_or_works_between_is_not_launching() -> None:
    """An idle device with few launches, or a loop that stands in `next()`: not for want of a larger batch."""
    starved = on_gpu(trace=LAUNCHING, shares={"wait": 0.7, "other": 0.0}, variants=None)
    assert isinstance(tiny_batch.judge(starved), RuledOut)
    slow = traced(busy=0.002, host=0.0099, kernels=30.0, kernel=5e-6)
    assert isinstance(tiny_batch.judge(on_gpu(trace=slow, variants=None)), RuledOut)


def test_small_copies_and_pinned_ones_are_no_fault() -> None:
    """Pinning gains nothing where little is moved, or where it is pinned already."""
    assert isinstance(pageable_copy.judge(on_gpu(trace=traced(pageable_bytes=1000.0))), RuledOut)
    assert isinstance(pageable_copy.judge(on_gpu(trace=traced(pinned_bytes=5e7, copying=0.001))), RuledOut)
    quick = Copied(bytes=1_000_000, pinned=0.0001, pageable=0.0002, pinning=0.0004)
    small = traced(pageable_bytes=1e6, copy_waited=0.0002)
    assert isinstance(pageable_copy.judge(on_gpu(trace=small, copied=quick)), RuledOut)


def test_the_copy_ceiling_is_that_of_the_way_the_bytes_take() -> None:
    """From pageable memory here; without a copy there is none."""
    ceilings = reach(on_gpu(trace=COPYING, copied=MOVED)).ceilings
    assert ceilings["copy"] == pytest.approx(1 / MOVED.pageable)
    assert reach(on_gpu()).ceilings["copy"] is None


def test_a_loader_that_pins_already_is_not_told_to_pin_or_to_stop() -> None:
    """The batch is rebuilt on the host behind it: the cure is in words, and nothing tells what it gains."""
    run = on_gpu(trace=COPYING, copied=MOVED, drawn=PINNING, compute=0.010, loader=0.002)
    step = draw_up(reach(run), run, Budget(vram=Vram(), ram=Ram())).options[0].changes[0]
    assert (step.cause, step.value, step.predicted) == ("pageable-copy", None, None)
    assert not any("pin_memory=" in line for line in step.apply)
    plain = replace(run, drawn=replace(PINNING, pinned=False))
    step = draw_up(reach(plain), plain, Budget(vram=Vram(), ram=Ram())).options[0].changes[0]
    assert (step.change, step.value) == ("pin_memory", True)
    assert step.predicted is not None


def test_a_pageable_copy_is_not_told_without_having_moved_the_bytes() -> None:
    """Not measured is not "no"."""
    assert pageable_copy.judge(on_gpu(trace=COPYING)) is None


OWN = Overflow(asked=2 * GIB, reserved=139 * GIB, allowed=140 * GIB, text="CUDA out of memory.")
HELD = Others(
    total=140 * GIB, bytes=136 * GIB, busy=0.0, holders=("pid 7 of ann (notebook x.ipynb) holds 136 GB",)
)
SMALL = Overflow(asked=GIB, reserved=2 * GIB, allowed=140 * GIB, text="CUDA out of memory.")
CAPPED = Overflow(asked=GIB, reserved=int(2.5 * GIB), allowed=3 * GIB, text="CUDA out of memory.")


def dead(**more: Any) -> Evidence:
    """A run that died before its first step."""
    return Evidence(step=inf, shares={}, **more)


@pytest.mark.parametrize(
    ("run", "cause"),
    [
        (dead(overflow=OWN, others=ALONE), "vram-overflow"),
        (dead(overflow=CAPPED, others=ALONE), "vram-overflow"),
        (dead(overflow=SMALL, others=HELD), "gpu-contention"),
        (dead(overflow=OWN, others=HELD), "vram-overflow"),
    ],
)
def test_a_death_of_memory_is_put_down_to_whoever_holds_it(run: Evidence, cause: str) -> None:
    """The script's own need over the card is its own doing; what others hold explains only the rest."""
    verdict = reach(run)
    assert verdict.cause == cause
    other = {"vram-overflow": "gpu-contention", "gpu-contention": "vram-overflow"}[cause]
    assert other not in [one.cause for one in verdict.named]


def test_a_batch_that_ran_after_a_death_is_no_tiny_one() -> None:
    """A quarter of the batch that the card had no room for was run, and double that took no longer."""
    points = (SizePoint(64, 0.02, GIB), SizePoint(32, 0.02, GIB), SizePoint(128, 0.02, 2 * GIB))
    verdict = reach(dead(overflow=OWN, others=ALONE, resized=points))
    assert [one.cause for one in verdict.named] == ["vram-overflow"]
    assert "tiny-batch" in verdict.untold


@pytest.mark.parametrize(
    ("observed", "told"),
    [
        ({"on_gpu": True, "autotune": True, "work": [640, 320, 960]}, "3 sizes of input were seen"),
        ({"on_gpu": True, "autotune": True, "work": []}, "the sizes of its inputs were not seen"),
        ({"on_gpu": True, "autotune": True, "work": [640, 640, 320]}, None),
        ({"on_gpu": True, "autotune": False, "work": [640, 320, 960]}, None),
        ({"on_gpu": False, "autotune": True, "work": [640, 320, 960]}, None),
    ],
)
def test_cudnns_tries_at_new_shapes_are_not_ruled_out_unseen(
    observed: dict[str, Any], told: str | None
) -> None:
    """Where it tries each new shape out and shapes vary, that nothing was compiled is half of an answer."""
    missing = missing_of([Message(kind="observed", body=observed, at=0.0)])
    assert (told is None) == (AUTOTUNE not in missing)
    assert told is None or told in missing[AUTOTUNE]
    for compiled in (None, (1, 0.01)):
        verdict = reach(on_gpu(missing=missing, recompiled=compiled))
        assert ("shape-recompute" in verdict.untold) == (told is not None)
        assert ("shape-recompute" in verdict.eliminated) == (told is None)


def test_who_holds_the_card_is_named() -> None:
    """The notebook is in the evidence; where the driver hides it, that is said."""
    found = gpu_contention.judge(dead(overflow=SMALL, others=HELD))
    assert isinstance(found, Found)
    assert any("x.ipynb" in line for line in found.evidence)
    hidden = gpu_contention.judge(
        dead(overflow=SMALL, others=replace(HELD, holders=None, reason="a container"))
    )
    assert isinstance(hidden, Found)
    assert any("a container" in line for line in hidden.evidence)


def test_a_death_of_memory_with_nobody_told_of_is_not_certain() -> None:
    """The script held little, and what others held was not to be told."""
    found = vram_overflow.judge(dead(overflow=SMALL))
    assert isinstance(found, Found)
    assert found.certainty <= 0.5
    assert gpu_contention.judge(dead(overflow=SMALL)) is None


def test_sizes_that_ran_are_told() -> None:
    """Of a script that dies, with what each needed."""
    found = vram_overflow.judge(dead(overflow=OWN, others=ALONE, resized=(SizePoint(4, 1.0, 90 * GIB),)))
    assert isinstance(found, Found)
    assert any("4 samples" in line for line in found.evidence)


def test_retries_near_the_limit_are_an_overflow_that_lives() -> None:
    """Allocations tried twice with the card nearly full; with room they are not."""
    full = Allocator(retries=40, device_allocs=3.0, reserved_peak=135 * GIB)
    assert isinstance(vram_overflow.judge(on_gpu(allocator=full)), Found)
    assert isinstance(vram_overflow.judge(on_gpu(allocator=replace(full, reserved_peak=GIB))), RuledOut)


def test_a_holder_that_does_nothing_is_no_cause_while_there_is_room() -> None:
    """Memory that others hold costs nothing by itself."""
    assert isinstance(gpu_contention.judge(on_gpu(others=replace(ALONE, bytes=30 * GIB))), RuledOut)


def test_a_power_cap_at_the_cards_own_limit_is_no_fault() -> None:
    """A card under full load lowers its clock as it should; one that was capped lower is slowed."""
    capped = Clocks(mhz=1400.0, most_mhz=1980, held=(("power_cap", 1.0),), power_limit_w=700.0,
                    power_default_w=700.0)  # fmt: skip
    assert isinstance(throttled_clocks.judge(on_gpu(clocks=capped)), RuledOut)
    lowered = replace(capped, power_limit_w=350.0)
    assert isinstance(throttled_clocks.judge(on_gpu(clocks=lowered)), Found)


def test_precision_is_of_no_matter_while_the_device_is_idle() -> None:
    """Switches that were not tried because the device waits are ruled out by that; else nothing is told."""
    assert isinstance(slow_precision.judge(on_gpu(trace=LAUNCHING, variants=None)), RuledOut)
    assert slow_precision.judge(on_gpu(variants=None)) is None


def test_without_a_gpu_its_causes_are_ruled_out_and_without_a_look_they_are_not() -> None:
    """A model on CPUs has none of them; of a record alone nothing is said."""
    host = Evidence(step=0.01, shares={"wait": 0.0}, process={"parameters": {"float32": 1}, "on_gpu": False})
    for cause in DEVICE:
        assert isinstance(cause.judge(host), RuledOut), cause.ID
    unseen = Evidence(step=0.01, shares={"wait": 0.0})
    for cause in DEVICE:
        assert cause.judge(unseen) is None, cause.ID


def test_copies_are_of_a_step_though_an_update_was_moved_again() -> None:
    """Two updates a step move 100 MB in 12 ms: 83 steps a second, not 167; pinning saves time of both."""
    trace = traced(wall=0.02, busy=0.015, host=0.02, pageable_bytes=1e8, copying=0.012)
    moved = Copied(bytes=50_000_000, pinned=0.001, pageable=0.006, pinning=0.01)
    run = on_gpu(step=0.02, trace=trace, copied=moved)
    assert reach(run).ceilings["copy"] == pytest.approx(1 / 0.012)
    drawn = LoaderFacts(name="DataLoader", workers=2, batch_size=32, prefetch=2)
    fed = replace(run, compute=0.02, loader=0.001, drawn=drawn, cores=None)
    told = predict(fed, [Change(change="pin_memory", value=True)])
    assert told is not None
    assert told.rate.mid == pytest.approx(1 / 0.01)


def test_the_ceiling_after_a_cure_within_computing_is_above_the_old_one() -> None:
    """With held batches a step takes 10 ms; in another precision 3."""
    run = on_gpu(variants={"as it is": 0.010, "bf16": 0.003}, compute=0.010)
    named = reach(run).named[0]
    assert named.cause == "slow-precision"
    assert named.ceiling_after == pytest.approx(1 / 0.003, rel=0.01)
    assert named.computes
    # Two workers give a batch every 9 ms: that is what it then waits for.
    fed = replace(run, loader=0.009, drawn=LoaderFacts(name="DataLoader", workers=2, batch_size=32))
    assert reach(fed).named[0].ceiling_after == pytest.approx(1 / 0.009)


@pytest.mark.parametrize(
    ("run", "cures"),
    [
        (on_gpu(trace=COPYING, copied=MOVED), ["pin_memory"]),
        (on_gpu(trace=COPYING, copied=MOVED, drawn=PINNING), ["keep_pinned"]),
        (on_gpu(trace=traced(busy=0.003, host=0.0098, pinning=0.006, pinned_bytes=5e7)), ["pin_once"]),
        (on_gpu(others=replace(ALONE, bytes=2 * GIB, busy=0.97)), ["other_card"]),
        (on_gpu(process={"parameters": {"float64": 100}, "on_gpu": True}), ["dtype"]),
        (
            on_gpu(
                allocator=Allocator(retries=0, device_allocs=9.0, empty_cache=1.0, empty_cache_line="t.py:9"),
                variants={"as it is": 0.010, "kept_cache": 0.0045},
            ),
            ["keep_cache"],
        ),
        (
            on_gpu(
                trace=traced(allocations=30.0, allocating=0.005),
                allocator=Allocator(retries=0, device_allocs=9.0, empty_cache=0.0),
            ),
            ["allocator"],
        ),
    ],
)
def test_only_cures_of_what_was_seen_are_offered(run: Evidence, cures: list[str]) -> None:
    """Memory that is not pinned is not cured by pinning once, nor an emptied cache by another allocator."""
    assert [cure.change for cure in reach(run).named[0].cures] == cures
