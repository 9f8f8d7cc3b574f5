"""What lay between two updates, as the training thread leaves it behind: small, and flat.

A part of a run without a device is a few numbers packed into bytes, which the garbage collector does
not look at: a run may leave thousands a second, and tracked objects in their place bring its collections
on (none in a bare stretch of 2,100 steps, 44 young ones in an observed one, when they were objects).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from stoker.watch.loaders import Draw
from stoker.watch.phases import DRAW, DRAWN, GRAPH, OTHER, PHASES, WAIT, Step
from stoker.watch.timeline import Device, Event

_NUMBERS = struct.Struct("<dqq8q")
_NONE = -1


@dataclass(slots=True)
class DevicePart:
    """The same with a device: the numbers, and the events that tell them by the device's clock."""

    numbers: bytes
    start: Event | None
    marks: list[Any]
    waits: bytes
    startups: bytes
    side_copies: list[tuple[Event, Event]]


Part: TypeAlias = bytes | DevicePart


def pack(
    unix: float,
    totals: list[int],
    draws: Sequence[Draw],
    start: Event | None,
    marks: list[Any],
    side_copies: list[tuple[Event, Event]],
) -> Part:
    """Put a part together. Draws whose fate is open go with their loader's."""
    samples = loader = _NONE
    for draw in draws:
        if not draw.waits:
            totals[OTHER] += draw.ns
            continue
        totals[WAIT] += draw.ns
        if draw.startup:
            totals[DRAW] += draw.ns  # its place is free now: the numbers end with the start-up's share
        loader = draw.loader.id
        if draw.samples is not None:
            samples = draw.samples if samples == _NONE else samples + draw.samples
    numbers = _NUMBERS.pack(unix, samples, loader, *totals)
    if not marks:
        return numbers
    timed = [draw for draw in draws if not draw.background]
    return DevicePart(
        numbers=numbers,
        start=start,
        marks=marks,
        waits=bytes(draw.waits for draw in timed),
        startups=bytes(draw.startup for draw in timed),
        side_copies=side_copies,
    )


def ready(parts: Sequence[Part]) -> bool:
    """Whether the device has passed the step's last mark; a step on the host is always ready."""
    for part in parts:
        if isinstance(part, DevicePart):
            last = part.marks[-1]
            if last is not None and not last.query():
                return False
            if not all(end.query() for _, end in part.side_copies):
                return False
    return True


def step_of(parts: Sequence[Part], number: int, *, loaders_seen: bool, device: Device | None) -> Step:
    """The step that these parts make up."""
    if len(parts) == 1 and isinstance(parts[0], bytes):
        unix, samples, loader, *nanoseconds = _NUMBERS.unpack(parts[0])
    else:
        unix, samples, loader, nanoseconds = _joined(parts)
    wait, copy, forward, backward, update, other, graph, startup = (n / 1e9 for n in nanoseconds)
    extra: dict[str, Any] | None = None
    by_device = _by_device(parts)
    if by_device is not None:
        host = (wait, copy, forward, backward, update, other + graph)
        wait, copy, forward, backward, update, other, graph, startup, beside = by_device
        extra = {
            "index": None if device is None else device.index,
            "host": {name: round(value, 7) for name, value in zip(PHASES, host, strict=True)},
            "copy_beside": round(beside, 7),
            "graph": round(graph, 7),
        }
    return Step(
        number,
        unix,
        None if samples == _NONE else samples,
        None if loader == _NONE else loader,
        wait if loaders_seen else None,
        copy,
        forward,
        backward,
        update,
        other + graph,
        startup,
        extra,
    )


def _joined(parts: Sequence[Part]) -> tuple[float, int, int, list[int]]:
    """Several parts as one: the last one's time, everything else summed."""
    sums = [0] * 8
    samples = loader = _NONE
    unix = 0.0
    for part in parts:
        numbers = part if isinstance(part, bytes) else part.numbers
        unix, more, drawn_from, *nanoseconds = _NUMBERS.unpack(numbers)
        sums = [a + b for a, b in zip(sums, nanoseconds, strict=True)]
        if more != _NONE:
            samples = more + max(0, samples)
        if drawn_from != _NONE:
            loader = drawn_from
    return unix, samples, loader, sums


def _by_device(parts: Sequence[Part]) -> tuple[float, ...] | None:
    """Seconds by the device's clock: the phases, graph, start-up, copies beside; None without events."""
    on_device = [part for part in parts if isinstance(part, DevicePart)]
    totals = [0.0] * (DRAW + 1)
    startup = beside = 0.0
    whole = len(on_device) == len(parts)
    for part in on_device:
        earlier, draw = part.start, 0
        for phase, event in zip(part.marks[::2], part.marks[1::2], strict=True):
            if earlier is None or event is None:
                whole = False
            elif event is not earlier:
                spent = earlier.elapsed_time(event) / 1e3
                if phase in (DRAW, DRAWN):
                    waits = draw < len(part.waits) and part.waits[draw]
                    totals[WAIT if waits else OTHER] += spent
                    startup += spent if waits and part.startups[draw] else 0.0
                else:
                    totals[phase] += spent
            draw += phase == DRAWN
            earlier = event
        beside += sum(begin.elapsed_time(end) for begin, end in part.side_copies) / 1e3
    return (*totals[: GRAPH + 1], startup, beside) if whole and on_device else None
