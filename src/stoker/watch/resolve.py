"""Marks become a step: sums over the host's clock, and over the device's where there are events."""

from collections.abc import Callable, Sequence

from stoker.watch.loaders import Draw
from stoker.watch.phases import FORWARD, GRAPH, OTHER, PHASES, WAIT, Step
from stoker.watch.timeline import Bucket, Device, Event, Mark, Part


def ready(parts: Sequence[Part]) -> bool:
    """Whether the device has passed the step's last mark; a step on the host is always ready."""
    last = parts[-1].marks[-1].event if parts[-1].marks else None
    if last is None or not last.query():
        return last is None
    return all(end.query() for part in parts for _, end in part.side_copies)


def step_of(parts: Sequence[Part], number: int, *, loaders_seen: bool, device: Device | None) -> Step:
    """The step that these parts make up. Events that were read go back to the device's pool."""
    marks = _trimmed(parts) if number == 0 else [mark for part in parts for mark in part.marks]
    start = parts[0].start if number else None
    host, host_startup = _sums(marks, start, lambda earlier, mark: (mark.ns - earlier.ns) / 1e9)
    on_device = len(marks) > 1 and all(m.event is not None for m in (*([start] if start else []), *marks))
    totals, startup = host, host_startup
    extra: dict[str, object] | None = None
    if on_device:
        totals, startup = _sums(marks, start, _elapsed)
        extra = {
            "index": parts[0].device_index,
            "host": {name: round(value, 7) for name, value in zip(PHASES, host, strict=False)},
            "copy_beside": round(sum(a.elapsed_time(b) for p in parts for a, b in p.side_copies) / 1e3, 7),
            "graph": round(totals[GRAPH], 7),
        }
    totals[OTHER] += totals[GRAPH]
    if device is not None:
        device.give_back(_read_events(parts))
    draws = [draw for part in parts for draw in part.draws if draw.waits or draw.background]
    counts = [draw.samples for draw in draws if draw.samples is not None]
    return Step(
        step=number,
        t=parts[-1].unix,
        samples=sum(counts) if counts else None,
        loader=draws[-1].loader.id if draws else None,
        wait=totals[WAIT] if loaders_seen else None,
        copy=totals[1],
        forward=totals[2],
        backward=totals[3],
        update=totals[4],
        other=totals[OTHER],
        startup=startup,
        device=extra,
    )


def _elapsed(earlier: Mark, mark: Mark) -> float:
    assert earlier.event is not None
    return 0.0 if mark.event is earlier.event else earlier.event.elapsed_time(mark.event) / 1e3


def _sums(
    marks: Sequence[Mark], start: Mark | None, seconds: Callable[[Mark, Mark], float]
) -> tuple[list[float], float]:
    """Seconds in each phase, and the part of the wait in which a loader was starting."""
    totals = [0.0] * 7
    startup = 0.0
    earlier = start
    for mark in marks:
        if earlier is not None:
            spent = seconds(earlier, mark)
            phase = _phase(mark.bucket)
            totals[phase] += spent
            if phase == WAIT and isinstance(mark.bucket, Draw) and mark.bucket.startup:
                startup += spent
        earlier = mark
    return totals, startup


def _phase(bucket: Bucket) -> int:
    if isinstance(bucket, Draw):
        return WAIT if bucket.waits else OTHER
    return bucket


def _trimmed(parts: Sequence[Part]) -> list[Mark]:
    """The first step's marks, from where its batch was asked for: what came before was set-up.

    Each mark ends a stretch, so the mark before the first stretch that counts is the start.
    """
    marks = [mark for part in parts for mark in part.marks]
    for at, mark in enumerate(marks):
        bucket = mark.bucket
        if (isinstance(bucket, Draw) and bucket.waits) or bucket in (FORWARD, WAIT):
            return marks[max(0, at - 1) :]
    return marks


def _read_events(parts: Sequence[Part]) -> list[Event]:
    """Every event of these parts, once, but the last mark's, which is where the next step starts."""
    events = {id(mark.event): mark.event for part in parts for mark in (part.start, *part.marks)}
    events |= {id(event): event for part in parts for pair in part.side_copies for event in pair}
    if parts[-1].marks:
        events.pop(id(parts[-1].marks[-1].event), None)
    for part in parts:
        part.side_copies = []
    return [event for event in events.values() if event is not None]
