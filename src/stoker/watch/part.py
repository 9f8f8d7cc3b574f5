"""What lay between two updates, and the step that one or several such parts make up."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stoker.watch.clock import DeviceClock, PhaseEnd
from stoker.watch.loaders import Draw
from stoker.watch.notes import IDLE, Moment
from stoker.watch.phases import GRAPH, OTHER, PHASES, WAIT, Meeting, Step
from stoker.watch.timeline import Mark


class Met(NamedTuple):
    """A collective: when this rank came and was let go, by the host, and what tells it by the device."""

    kind: str
    bytes: int | None
    phase: str
    arrived: float
    done: float
    moments: tuple[Moment, Moment]


@dataclass(slots=True)
class Part:
    """One part: nanoseconds by the host's clock, and the marks that tell them by the device's.

    Where a part begins and ends there is an event. `pairs` are the numbers of those around copies beside.
    `gc` and `gc_wait` are nanoseconds for which garbage was collected, in all and in draws.
    """

    unix: float
    samples: int | None
    loader: int | None
    totals: list[int]
    startup: int
    start: Moment
    marks: list[PhaseEnd]
    pairs: list[int]
    gc: int = 0
    gc_wait: int = 0
    met: list[Met] = field(default_factory=list)


def part_of(
    unix: float,
    totals: list[int],
    draws: Sequence[Draw],
    start: Moment,
    marks: Sequence[Mark],
    pairs: list[int],
) -> Part:
    """Put a part together. Draws whose fate is open go with their loader's."""
    part = Part(unix, None, None, totals, 0, start, [], pairs)
    for phase, event, now in marks:
        if isinstance(phase, Draw):
            part.marks.append((WAIT if phase.waits else OTHER, phase.waits and phase.startup, event, now))
        else:
            part.marks.append((phase, False, event, now))
    for draw in draws:
        waits = draw.waits
        totals[WAIT if waits else OTHER] += draw.ns
        if not waits:
            continue
        if draw.startup:
            part.startup += draw.ns
        part.loader = draw.loader.id
        if draw.samples is not None:
            part.samples = draw.samples + (part.samples or 0)
    return part


def ready(parts: Sequence[Part], clock: DeviceClock) -> bool:
    """Whether the device has passed the step's last mark; a step on the host is always ready."""
    for part in parts:
        if part.marks:
            last = part.marks[-1][2]
            if last is not None and last >= clock.marks_passed:
                return False
            if part.pairs and part.pairs[-1] >= clock.pairs_passed:
                return False
    return True


def step_of(
    parts: Sequence[Part], number: int, *, loaders_seen: bool, device: int | None, clock: DeviceClock
) -> Step:
    """The step that these parts make up. Steps are asked for in order: the clock goes along."""
    if len(parts) == 1:
        nanoseconds = parts[0].totals
    else:
        nanoseconds = [sum(column) for column in zip(*(part.totals for part in parts), strict=True)]
    seconds = [spent / 1e9 for spent in nanoseconds[: GRAPH + 1]]
    startup = sum(part.startup for part in parts) / 1e9
    on_device: dict[str, Any] | None = None
    measured = _by_device(parts, clock)
    if measured is not None:
        host = dict(zip(PHASES, seconds, strict=False))
        host["other"] += seconds[GRAPH]
        seconds, startup, beside = measured
        on_device = {
            "index": device,
            "host": host,
            "copy_beside": beside,
            "graph": seconds[GRAPH],
        }
    wait, copy, forward, backward, update, other, graph = seconds
    counted = [part.samples for part in parts if part.samples is not None]
    drawn_from = [part.loader for part in parts if part.loader is not None]
    return Step(
        number,
        parts[-1].unix,
        sum(counted) if counted else None,
        drawn_from[-1] if drawn_from else None,
        wait if loaders_seen else None,
        copy,
        forward,
        backward,
        update,
        other + graph,
        startup,
        on_device,
        sum(part.gc for part in parts) / 1e9,
        sum(part.gc_wait for part in parts) / 1e9,
    )


def meetings_of(
    parts: Sequence[Part], number: int, *, device: int | None, clock: DeviceClock
) -> Iterator[Meeting]:
    """The collectives in these parts, before the clock goes past them: by the device's where there is one."""
    for met in (met for part in parts for met in part.met):
        times: tuple[float | None, float | None] = (met.arrived, met.done)
        if device is not None:
            times = clock.unix_of(met.moments[0], met.arrived), clock.unix_of(met.moments[1], met.done)
        arrived, done = times
        if arrived is not None and done is not None:
            yield Meeting(number, met.kind, met.bytes, met.phase, arrived, done)


def _by_device(parts: Sequence[Part], clock: DeviceClock) -> tuple[list[float], float, float] | None:
    """Seconds by the device's clock: by phase, of start-up, of copies beside; None without all its events."""
    totals = [0.0] * (GRAPH + 1)
    startup = 0.0
    beside = sum(clock.take_pair(pair) for part in parts if part.marks for pair in part.pairs)
    for part in parts:
        start = part.start
        if not part.marks or start is None or start == IDLE:
            return None
        spans = clock.spans(start, part.marks)
        if spans is None:
            return None
        for (phase, starts, _, _), spent in zip(part.marks, spans, strict=True):
            totals[phase] += spent
            if starts:
                startup += spent
    return [spent / 1e9 for spent in totals], startup / 1e9, beside / 1e9
