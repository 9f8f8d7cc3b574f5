"""What an observer noted, made into steps as the recorder and the scribe do, without a process between."""

from collections import deque

from stoker.watch.clock import DeviceClock
from stoker.watch.observer import Observer
from stoker.watch.part import Part, ready, step_of
from stoker.watch.phases import Step
from stoker.watch.reader import Reader


def read(observer: Observer) -> Reader:
    """Read all that was noted so far."""
    reader = Reader()
    reader.loaders.know(len(observer.loaders.all))
    reader.read(observer.notes, observer.aside)
    return reader


def steps_of(
    done: deque[list[Part]], clock: DeviceClock | None = None, device: int | None = None
) -> list[Step]:
    """The steps that these parts make up."""
    clock = clock or DeviceClock()
    return [
        step_of(parts, number, loaders_seen=True, device=device, clock=clock)
        for number, parts in enumerate(done)
    ]


def resolve(observer: Observer) -> list[Step]:
    """All steps, of a device that has passed them."""
    reader, clock = read(observer), DeviceClock()
    clock.pass_marks(observer.events.take_marks(len(observer.events.marks)))
    clock.pass_pairs(observer.events.take_pairs())
    assert all(ready(parts, clock) for parts in reader.done)
    return steps_of(reader.done, clock, reader.device)
