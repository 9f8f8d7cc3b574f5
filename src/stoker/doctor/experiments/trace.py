"""Some steps under torch's profiler: the driver's own account of the device, and where the host stood.

Host time alone books the device's work on whoever waits for it first, and events on the stream cannot see a
gap between two kernels of one phase. The driver's account (CUPTI) has every kernel and every copy with its
times, and every call of the host into the driver. It costs the host some microseconds an operation, which is
taken off by what the loop's steps took before (`Trace.without_tracing`).
"""

import json
import os
import tempfile
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from stoker.doctor.device import Trace
from stoker.doctor.experiments.condition import Condition

STEPS, SETTLING = "stoker: steps", "stoker: settling"
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver")
_WAITS = (
    "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cuStreamSynchronize",
    "cuCtxSynchronize", "cuEventSynchronize",
)  # fmt: skip
_COPIES = ("cudaMemcpyAsync", "cudaMemcpy", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2")
_ALLOCATES = ("cudaMalloc", "cudaFree", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap")
_LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cudaMemsetAsync", "cudaMemcpyAsync")
# Microseconds; a host that gives the device nothing for longer is about something else. Launching from Python
# takes 25 to 60 a kernel under the trace in the mean, an optimizer's preparations some hundreds.
_LONGEST_LAUNCH = 500.0
_PINS = ("aten::pin_memory", "aten::_pin_memory")

Event = Mapping[str, Any]
Span = tuple[float, float]
Wait = tuple[Span, Any]


class Traced(Condition):
    """The loop as it is, its own batches included, for a few steps; `plain` is what one took before."""

    warm = 1  # the driver's tracing takes its time to begin
    steps = 12
    most = 0.8

    def __init__(self, tell: Callable[..., None], plain: float) -> None:
        self._tell, self._plain = tell, plain
        self.trace: Trace | None = None
        self._profile: Any = None
        self._range: Any = None
        self._why: str | None = None

    def enter(self) -> None:
        """Start the profiler, where the script has none of its own."""
        if torch._C._autograd._profiler_enabled():
            self._why = "the script has a profiler of its own"
            return
        if torch.version.cuda is not None and _version(torch.version.cuda) >= (12, 6):
            # Else the driver's tracing stays loaded, which was seen to slow all that follows by 10 to 20%
            # (pytorch#144455). Before CUDA 12.6 letting go of it crashed where CUDA graphs are used.
            os.environ.setdefault("TEARDOWN_CUPTI", "1")
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a script may have made errors of them
                self._profile = profile(activities=activities)
                self._profile.start()
        except RuntimeError as error:  # no CUPTI, or another tool holds it
            self._profile, self._why = None, f"the profiler would not start: {error}"

    def begin(self) -> None:
        """The steps begin."""
        self._range = record_function(STEPS)
        self._range.__enter__()

    def settle(self) -> None:
        """Wait for the device, apart from what the loop itself waits for."""
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None
            with record_function(SETTLING):
                super().settle()
        else:
            super().settle()

    def leave(self) -> None:
        """The steps are over."""
        if self._profile is None:
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._profile.stop()
        except RuntimeError as error:  # the script has started one of its own meanwhile
            self._profile, self._why = None, f"the profiler would not stop: {error}"

    def tell(self, seconds: float, steps: int) -> None:
        """Read the trace and tell what it comes to."""
        if self._profile is None:
            self._tell("untraced", why=self._why)
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(path))
            # Kernels have names of templates, in whatever letters their sources had.
            text = path.read_text(encoding="utf-8", errors="replace")
        events = json.loads(text, strict=False)["traceEvents"]
        self._profile = None
        found = summarize(events, steps)
        if found is None:
            self._tell("untraced", why="the profiler told of nothing on the device")
            return
        self.trace = found.without_tracing(self._plain)
        self._tell("trace", **asdict(self.trace))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def summarize(events: Sequence[Event], steps: int) -> Trace | None:
    """What the profiler's events come to; None where there was nothing on a device. Pure.

    Times in a trace are microseconds.
    """
    events = [event for event in events if event.get("ph") == "X"]
    marks = {
        event["name"]: event
        for event in events
        if event.get("cat") == "user_annotation" and event["name"] in (STEPS, SETTLING)
    }
    if STEPS not in marks:
        return None
    began, host_end = _span(marks[STEPS])
    events = [event for event in events if float(event["ts"]) >= began]  # the steps before were to warm up
    on_device = sorted(
        (_span(event) for event in events if event.get("cat") in _ON_DEVICE), key=lambda s: s[0]
    )
    if not on_device:
        return None
    end = max(_span(marks[SETTLING])[1] if SETTLING in marks else host_end, host_end)
    main = marks[STEPS].get("tid")
    calls = sorted(
        (event for event in events if event.get("cat") in _CALLS and float(event["ts"]) < host_end),
        key=lambda event: float(event["ts"]),
    )
    copies = {
        event.get("args", {}).get("correlation"): event
        for event in events
        if event.get("cat") == "gpu_memcpy"
    }
    waits, copy_waits = _waits(calls, copies)
    waits = _with_their_operations(waits, events)
    held_up = sorted(
        [span for span, _ in (*waits, *copy_waits)]
        + [_span(event) for event in calls if event["name"] in _ALLOCATES]
    )
    kernels = [_seconds(event) for event in events if event.get("cat") == "kernel"]
    to_device = [event for event in copies.values() if "HtoD" in event["name"]]
    each = 1e-6 / steps
    return Trace(
        steps=steps,
        wall=(end - began) * each,
        busy=_covered(on_device) * each,
        host=(host_end - began) * each,
        kernels=len(kernels) / steps,
        kernel=sum(kernels) / len(kernels) if kernels else None,
        syncs=len(waits) / steps,
        waited=_covered(sorted(span for span, _ in waits)) * each,
        gap=_gaps([span for span, _ in waits], on_device) * each,
        copy_waited=_covered(sorted(span for span, _ in copy_waits)) * each,
        pageable_bytes=_bytes(event for event in to_device if "Pinned" not in event["name"]) / steps,
        pinned_bytes=_bytes(event for event in to_device if "Pinned" in event["name"]) / steps,
        copying=_covered(sorted(_span(event) for event in to_device)) * each,
        pinning=_covered(
            sorted(_span(one) for one in events if one["name"] in _PINS and one.get("tid") == main)
        )
        * each,
        allocations=sum(event["name"] in _ALLOCATES for event in calls) / steps,
        allocating=_covered([_span(event) for event in calls if event["name"] in _ALLOCATES]) * each,
        launching=_launching(calls, held_up, began) * each,
    )


def _waits(calls: Iterable[Event], copies: Mapping[Any, Event]) -> tuple[list[Wait], list[Wait]]:
    """Calls in which the host waits for the device; those for a copy to it apart.

    A copy from or to memory that is not pinned holds the host by itself; a call that waits belongs to the
    copy right before it on its thread, if there is one (`.item()` and `.to()` are made of the two).
    """
    waits: list[Wait] = []
    copy_waits: list[Wait] = []
    before: dict[Any, str | None] = {}
    for call in calls:
        thread, name = call.get("tid"), call["name"]
        if name in _COPIES:
            copied = copies.get(call.get("args", {}).get("correlation"))
            kind = None if copied is None else copied["name"]
            before[thread] = kind
            if kind is not None and "Pageable" in kind:
                (copy_waits if "HtoD" in kind else waits).append((_span(call), thread))
        elif name in _WAITS:
            last = before.pop(thread, None)
            if last is not None and "HtoD" in last:
                copy_waits.append((_span(call), thread))
            elif last is not None and "Pageable" in last and waits:
                waits[-1] = ((waits[-1][0][0], _span(call)[1]), thread)  # one wait, in two calls
            else:
                waits.append((_span(call), thread))
        elif not name.startswith(("cudaEvent", "cudaStreamIsCapturing", "cudaStreamQuery", "cudaGet")):
            before.pop(thread, None)
    return waits, copy_waits


def _with_their_operations(waits: Sequence[Wait], events: Iterable[Event]) -> list[Wait]:
    """Each wait as the whole of the operation that asks for it: `.item()`, a mask with all its kernels.

    Without the question none of that would be done.
    """
    operations: dict[Any, list[Span]] = {}
    named = (one for one in events if one.get("cat") == "cpu_op" and one["name"].startswith("aten::"))
    for event in sorted(named, key=lambda one: float(one["ts"])):
        outermost = operations.setdefault(event.get("tid"), [])
        if not outermost or _span(event)[0] >= outermost[-1][1]:
            outermost.append(_span(event))
    found: list[Wait] = []
    for (start, end), thread in waits:
        spans = operations.get(thread, [])
        at = bisect_left(spans, (start, float("inf"))) - 1
        inside = at >= 0 and spans[at][1] >= end
        found.append((spans[at] if inside else (start, end), thread))
    return found


def _gaps(waits: Iterable[Span], on_device: Sequence[Span]) -> float:
    """How long the device had nothing to do after each wait; what runs then ends the gap at once."""
    starts = [start for start, _ in on_device]
    ends: list[float] = []
    for _, end in on_device:
        ends.append(max(end, ends[-1] if ends else end))
    total = 0.0
    for _, over in waits:
        at = bisect_left(starts, over)
        if at < len(starts) and (at == 0 or ends[at - 1] <= over):
            total += starts[at] - over
    return total


def _launching(calls: Iterable[Event], held_up: Sequence[Span], began: float) -> float:
    """The host's time up to each launch since the one before; what held it up and long pauses apart.

    Threads are not told apart: the one that goes backward launches while the one that called it waits.
    """
    total, since, at = 0.0, began, 0
    for call in calls:
        if not call["name"].startswith(_LAUNCHES):
            continue
        until = max(since, _span(call)[1])
        while at < len(held_up) and held_up[at][1] <= since:
            at += 1
        inside: list[Span] = []
        for start, end in held_up[at:]:
            if start >= until:
                break
            inside.append((max(start, since), min(end, until)))
        total += min(until - since - _covered(inside), _LONGEST_LAUNCH)
        since = until
    return total


def _covered(spans: Iterable[Span]) -> float:
    """The time in which at least one of them lay, given by when they begin."""
    total, until = 0.0, float("-inf")
    for start, end in spans:
        if end > until:
            total += end - max(start, until)
            until = end
    return total


def _span(event: Event) -> Span:
    start = float(event["ts"])
    return start, start + float(event.get("dur", 0.0))


def _seconds(event: Event) -> float:
    return float(event.get("dur", 0.0)) / 1e6


def _bytes(events: Iterable[Event]) -> float:
    return float(sum(event.get("args", {}).get("bytes", 0) for event in events))
