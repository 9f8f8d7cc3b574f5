"""Loops as an H200 told of them, judged again: the driver's account, and what a step took without tracing."""

from dataclasses import replace
from typing import Any

import pytest

from stoker.doctor.causes import host_sync, pageable_copy, tiny_batch, vram_overflow
from stoker.doctor.device import Copied, Others, Overflow, SizePoint, Trace
from stoker.doctor.evidence import Evidence, LoaderFacts
from stoker.doctor.finding import Found, RuledOut
from stoker.doctor.report.readings import readings
from stoker.doctor.verdict import reach

# Read on a machine on which nobody else was.
EMPTY = Others(total=150754820096, bytes=3407872, busy=0.0, holders=())
NONE = {
    "syncs": 0.0, "waited": 0.0, "gap": 0.0, "copy_waited": 0.0, "pageable_bytes": 0.0, "pinned_bytes": 0.0,
    "copying": 0.0, "pinning": 0.0, "allocations": 0.0, "allocating": 0.0,
}  # fmt: skip


def traced(plain: float, **figures: Any) -> Trace:
    """In milliseconds where they are times; the host was launching all the while that it did not wait."""
    times = ("wall", "busy", "host", "waited", "gap", "copy_waited", "copying", "pinning", "allocating")
    told = {name: value / 1e3 if name in times else value for name, value in {**NONE, **figures}.items()}
    own = told["host"] - told["waited"] - told["copy_waited"]
    return Trace(steps=12, launching=own, **told).without_tracing(plain / 1e3)


def loop(plain: float, trace: Trace, **more: Any) -> Evidence:
    """A loop with a step of so many milliseconds and no loader."""
    shares = {"wait": None, "copy": 0.0, "forward": 0.3, "backward": 0.5, "update": 0.1, "other": 0.1}
    return Evidence(
        step=plain / 1e3,
        shares=shares,
        steps=200,
        trace=trace,
        others=EMPTY,
        process={"on_gpu": True, "parameters": {"float32": 1}},
        **more,
    )


ANSWERS = traced(24.98, wall=50.0, busy=2.37, host=50.0, kernels=606, kernel=3.85e-6)
ANSWERS_2 = traced(14.36, wall=27.6, busy=1.27, host=27.6, kernels=379, kernel=3.31e-6)
MASKS = traced(8.62, wall=13.6, busy=1.16, host=13.5, kernels=379, kernel=3.06e-6)
PATCHES = traced(5.64, wall=7.03, busy=1.52, host=7.02, kernels=139, kernel=10.7e-6, pinned_bytes=442e3)
SIZES = (
    SizePoint(1, 0.00432, 113246208), SizePoint(2, 0.00464, 220200960), SizePoint(4, 0.00489, 419430400),
)  # fmt: skip


@pytest.mark.parametrize(
    ("run", "share"),
    [
        (loop(24.98, ANSWERS), 0.90),
        (loop(14.36, ANSWERS_2), 0.91),
        (loop(8.62, MASKS), 0.86),
        (loop(5.64, PATCHES, resized=SIZES), 0.73),
    ],
)
def test_loops_of_small_kernels_are_launch_bound(run: Evidence, share: float) -> None:
    """By what launching costs untraced: the tracing had doubled two of them."""
    found = tiny_batch.judge(run)
    assert isinstance(found, Found)
    assert found.share == pytest.approx(share, abs=0.02)
    assert "us" in found.evidence[0]
    assert reach(run).cause == "tiny-batch"


def test_a_step_that_only_tracing_makes_launch_bound_is_not() -> None:
    """24 figures read: 20.1 ms under the trace with the device busy for 8.8; 13.0 without, busy for 68%."""
    trace = traced(13.0, wall=20.06, busy=8.79, host=20.0, kernels=436, kernel=19.7e-6, syncs=24,
                   waited=0.641, gap=1.16)  # fmt: skip
    run = loop(13.0, trace)
    assert trace.busy_share == pytest.approx(0.676, abs=0.01)
    assert isinstance(tiny_batch.judge(run), RuledOut)
    assert isinstance(host_sync.judge(run), RuledOut)  # without its waits the host still needs 95% of it


def test_copies_from_pageable_memory_come_before_the_launches_beside_them() -> None:
    """12 MB a step and 51 small kernels: by what the loop's own copies took, not by an easier one."""
    trace = traced(4.385, wall=4.82, busy=1.72, host=4.81, kernels=51, kernel=4.38e-6, copy_waited=1.65,
                   pageable_bytes=12582912, copying=1.49)  # fmt: skip
    moved = Copied(bytes=12582912, pinned=0.000268, pageable=0.000936, pinning=0.000637)
    run = loop(4.385, trace, copied=moved)
    found = pageable_copy.judge(run)
    assert isinstance(found, Found)
    assert found.share == pytest.approx(0.28, abs=0.01)
    assert reach(run).cause == "pageable-copy"


GIB = 1 << 30


def died(**more: Any) -> Evidence:
    """Width 128 at batch 48 where 8 GiB are allowed."""
    overflow = {
        "asked": 402653184,
        "reserved": 8197767168,
        "allowed": 8589934592,
        "text": "CUDA out of memory.",
    }
    return Evidence(step=float("inf"), shares={}, others=EMPTY, overflow=Overflow(**{**overflow, **more}))


def test_a_script_that_dies_of_its_own_need_has_nobody_else_to_blame() -> None:
    """Also where it asked for a little less than the whole of an empty card: its context was in the way."""
    assert reach(died()).cause == "vram-overflow"
    nearly = died(asked=GIB // 2, reserved=148 * 10**9, allowed=150109880320)
    found = vram_overflow.judge(nearly)
    assert isinstance(found, Found)
    assert found.certainty > 0.9
    assert not any("3.2 MiB" in line for line in found.evidence)


def test_a_run_that_died_before_a_step_rules_nothing_out_by_its_steps() -> None:
    """Nothing was seen of how long it waits, or how long its workers take to start."""
    loader = LoaderFacts(name="loader", workers=1, batch_size=16)
    verdict = reach(replace(died(), drawn=loader))
    assert {"too-few-workers", "worker-startup"} <= set(verdict.untold)
    assert verdict.to_json()["rate"] is None


def test_another_process_that_leaves_too_little_is_to_blame() -> None:
    """All but 3 GB were held before the script started; it died with 2.4 GiB of its own."""
    others = Others(total=150754820096, bytes=146889572352, busy=0.0, holders=("pid 3851 holds 137 GiB",))
    run = died(asked=134217728, reserved=2491416576, allowed=150109880320)
    verdict = reach(Evidence(step=run.step, shares={}, others=others, overflow=run.overflow))
    assert verdict.cause == "gpu-contention"
    assert "vram-overflow" in verdict.eliminated


def test_the_report_tells_the_drivers_account() -> None:
    """In figures that a reader can check a verdict by; kernels of microseconds are not zero milliseconds."""
    rows = {row[0]: row[1] for row in readings(loop(24.98, ANSWERS)).rows}
    assert rows["the device is busy"] == "2.4 ms of a step of 25.0 ms"
    assert rows["kernels a step"] == "606, 4 us each in the mean"
    assert rows["tracing made a step longer by"] == "25.0 ms, which is taken off"
