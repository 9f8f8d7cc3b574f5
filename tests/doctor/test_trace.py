"""The driver's account, by traces written by hand and by a real one of the CPU."""

from typing import Any

import pytest
import torch

from stoker.doctor.device import Trace
from stoker.doctor.experiments.condition import Conditions
from stoker.doctor.experiments.trace import SETTLING, STEPS, Traced, summarize

MAIN, BACKWARD = 1, 2


def event(cat: str, name: str, ts: float, dur: float, tid: int = MAIN, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


def of(*events: dict[str, Any], host: float = 1000.0, settling: float = 0.0) -> Trace:
    """A trace of one step with these; times in microseconds."""
    marks = [event("user_annotation", STEPS, 0, host), event("user_annotation", SETTLING, host, settling)]
    found = summarize([*marks, *events, {"ph": "M", "name": "process_name"}], 1)
    assert found is not None
    return found


def kernel(ts: float, dur: float, stream: int = 7) -> dict[str, Any]:
    return event("kernel", "sgemm", ts, dur, stream)


def test_the_device_is_busy_where_any_stream_is() -> None:
    """Two kernels at once count once; the step lasts until the device has settled."""
    trace = of(kernel(100, 400), kernel(300, 400, stream=8), kernel(900, 300), host=1000, settling=200)
    assert trace.busy == pytest.approx(900e-6)
    assert trace.wall == pytest.approx(1200e-6)
    assert trace.host == pytest.approx(1000e-6)
    assert trace.kernels == 3
    assert trace.kernel == pytest.approx(1100e-6 / 3)


def test_steps_before_the_traced_ones_are_left_out() -> None:
    """They warm the profiler up; what ran then is not theirs."""
    marks = event("user_annotation", STEPS, 500, 500)
    early = [kernel(0, 400), event("cuda_runtime", "cudaStreamSynchronize", 100, 300)]
    found = summarize([marks, *early, kernel(600, 100)], 1)
    assert found is not None
    assert (found.kernels, found.syncs) == (1, 0)
    assert found.busy == pytest.approx(100e-6)


def test_item_is_one_wait_and_the_gap_after_it_is_seen() -> None:
    """A copy back and the wait for it; the device then has nothing to do until the next launch."""
    trace = of(
        kernel(0, 300),
        event("cuda_runtime", "cudaMemcpyAsync", 100, 5, correlation=9),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 300, 10, 7, correlation=9, bytes=4),
        event("cuda_runtime", "cudaStreamSynchronize", 106, 210),
        kernel(380, 100),
    )
    assert trace.syncs == 1
    assert trace.waited == pytest.approx(210e-6)
    assert trace.gap == pytest.approx((380 - 316) * 1e-6)
    assert trace.own == pytest.approx(790e-6)


def test_a_wait_costs_the_whole_operation_that_asks() -> None:
    """A mask is counted on the device, and its size waited for; what another thread does is not in it."""
    trace = of(
        kernel(0, 300),
        event("cpu_op", "aten::index", 80, 300),
        event("cpu_op", "aten::nonzero", 90, 250),
        event("cpu_op", "aten::mm", 50, 900, BACKWARD),
        event("cuda_runtime", "cudaMemcpyAsync", 100, 5, correlation=9),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 300, 10, 7, correlation=9, bytes=8),
        event("cuda_runtime", "cudaStreamSynchronize", 106, 210),
    )
    assert trace.syncs == 1
    assert trace.waited == pytest.approx(300e-6)


def test_a_copy_back_to_pageable_memory_waits_by_itself_and_counts_once() -> None:
    """The copy's own call stands until the device has come there; the wait after it is the same one."""
    trace = of(
        kernel(0, 300),
        event("cuda_runtime", "cudaMemcpyAsync", 100, 220, correlation=9),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 300, 10, 7, correlation=9, bytes=4),
        event("cuda_runtime", "cudaStreamSynchronize", 321, 4),
    )
    assert trace.syncs == 1
    assert trace.waited == pytest.approx(225e-6)


def test_waits_for_copies_to_the_device_are_not_syncs() -> None:
    """They are the copy's: from pageable memory, with its bytes."""
    trace = of(
        event("cuda_runtime", "cudaMemcpyAsync", 0, 500, correlation=3),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 10, 480, 7, correlation=3, bytes=4096),
        event("cuda_runtime", "cudaStreamSynchronize", 501, 20),
        event("cuda_runtime", "cudaMemcpyAsync", 600, 5, correlation=4),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 610, 10, 7, correlation=4, bytes=100),
    )
    assert trace.syncs == 0
    assert trace.copy_waited == pytest.approx(520e-6)
    assert (trace.pageable_bytes, trace.pinned_bytes) == (4096, 100)
    assert trace.copying == pytest.approx(490e-6)


def test_our_own_wait_at_the_end_is_not_the_loops() -> None:
    """The device is settled after the last step; that is no sync of the script."""
    trace = of(
        kernel(0, 1900),
        event("cuda_runtime", "cudaDeviceSynchronize", 1001, 900),
        host=1000, settling=910,
    )  # fmt: skip
    assert trace.syncs == 0
    assert trace.busy_share == pytest.approx(1900 / 1910)


def test_allocations_and_pinning_are_told() -> None:
    """Calls for memory of the driver; pinning on the thread that trains, and not on the loader's."""
    trace = of(
        kernel(0, 10),
        event("cuda_runtime", "cudaMalloc", 20, 100),
        event("cuda_runtime", "cudaFree", 130, 50),
        event("cpu_op", "aten::pin_memory", 200, 300),
        event("cpu_op", "aten::_pin_memory", 210, 280),
        event("cpu_op", "aten::pin_memory", 200, 900, BACKWARD),
    )
    assert trace.allocations == 2
    assert trace.allocating == pytest.approx(150e-6)
    assert trace.pinning == pytest.approx(300e-6)


def launch(ts: float, dur: float = 10, tid: int = MAIN) -> dict[str, Any]:
    return event("cuda_runtime", "cudaLaunchKernel", ts, dur, tid)


def test_launching_is_the_way_from_launch_to_launch() -> None:
    """On whichever thread: waits and allocations on the way are none of it, nor what comes after the last."""
    trace = of(
        kernel(20, 10),
        launch(20),
        event("cuda_runtime", "cudaMalloc", 40, 100),
        launch(170, tid=BACKWARD),
        event("cuda_runtime", "cudaDeviceSynchronize", 190, 300),
        launch(510),
    )
    assert trace.launching == pytest.approx((30 + 50 + 40) * 1e-6)


def test_a_host_that_works_for_long_between_two_launches_is_not_launching_meanwhile() -> None:
    """Of a pause of 8 ms half a millisecond counts, as much as an optimizer's preparations may take."""
    trace = of(kernel(20, 10), launch(0), launch(8000), launch(8100), host=9000)
    assert trace.launching == pytest.approx((10 + 500 + 100) * 1e-6)
    assert trace.own == pytest.approx(9e-3)


def test_what_tracing_adds_is_taken_off_the_host_and_not_off_the_device_or_its_waits() -> None:
    """A step of 20 ms that takes 13 untraced, of which the device works for 8.8 and the host waits 0.6."""
    busy = event("kernel", "sgemm", 0, 8800, 7)
    wait = event("cuda_runtime", "cudaDeviceSynchronize", 9000, 600)
    trace = of(busy, wait, launch(400), launch(800), host=20000).without_tracing(0.013)
    assert trace.wall == pytest.approx(0.013)
    assert trace.added == pytest.approx(0.007)
    assert (trace.busy, trace.waited) == pytest.approx((0.0088, 0.0006))
    assert trace.own == pytest.approx(0.013 - 0.0006)
    assert trace.launching == pytest.approx(810e-6 * (12.4 / 19.4))


def test_a_step_is_never_made_shorter_than_what_the_device_did_in_it() -> None:
    """Nor longer than it was: traced steps may happen to be quick ones."""
    trace = of(kernel(0, 900), host=1000)
    assert trace.without_tracing(0.0005).wall == pytest.approx(900e-6)
    assert trace.without_tracing(0.002) == trace


def test_a_trace_without_a_device_is_none() -> None:
    """Of a loop on CPUs, taken for real: the profiler runs, and tells of nothing on a device."""
    told: list[tuple[str, dict[str, Any]]] = []
    traced = Traced(lambda kind, **body: told.append((kind, body)), 0.001)
    conditions = Conditions(iter([traced]))
    assert conditions.start()
    net = torch.nn.Linear(4, 4)
    steps = 0
    while True:
        net(torch.rand(2, 4)).sum().backward()
        steps += 1
        if not conditions.stepped():
            break
    assert steps == Traced.warm + Traced.steps
    assert told == [("untraced", {"why": "the profiler told of nothing on the device"})]
