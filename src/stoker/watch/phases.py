"""The phases of a step, and the step itself as a value."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

PHASES = ("wait", "copy", "forward", "backward", "update", "other")
WAIT, COPY, FORWARD, BACKWARD, UPDATE, OTHER = range(6)
# A replayed CUDA graph may hold forward, backward and update at once. Its time cannot be split
# without events inside the graph, which is the user's; it is told apart and counted as `other`.
GRAPH = 6
# Standing in a loader: `wait` if the batch reaches a step, else `other`.
DRAW = 7


class Step(NamedTuple):
    """One optimizer update: how long it took and where the time went, in seconds.

    The phases are exclusive and sum to the step. With a device they are device time by CUDA
    events; `device["host"]` then holds the same split by the host's clock. `wait` is None where no
    loader was seen: waiting for data could then not be told from `other`. `gc` is how long garbage was
    collected meanwhile, in whatever phases, and `gc_wait` the part of it in `wait`; None in older records.
    """

    # A tuple, not a dataclass: it is made for every step, beside the training thread, in 0.28 us where a
    # frozen dataclass takes 1.2 (2 cores, Python 3.11).
    step: int
    t: float
    samples: int | None
    loader: int | None
    wait: float | None
    copy: float
    forward: float
    backward: float
    update: float
    other: float
    startup: float = 0.0
    device: Mapping[str, Any] | None = None
    gc: float | None = None
    gc_wait: float | None = None

    @property
    def seconds(self) -> float:
        """The whole step."""
        return (self.wait or 0.0) + self.copy + self.forward + self.backward + self.update + self.other

    def to_line(self) -> str:
        """The step as one line of `steps.jsonl` holds it."""
        samples, loader = self.samples, self.loader
        return (
            f'{{"step":{self.step},"t":{self.t:.6f},"samples":{"null" if samples is None else samples},'
            f'"loader":{"null" if loader is None else loader},'
            f'"wait":{_seconds(self.wait)},"copy":{self.copy:.7f},'
            f'"forward":{self.forward:.7f},"backward":{self.backward:.7f},"update":{self.update:.7f},'
            f'"other":{self.other:.7f},"startup":{self.startup:.7f},'
            f'"device":{"null" if self.device is None else _device_line(self.device)},'
            f'"gc":{_seconds(self.gc)},"gc_wait":{_seconds(self.gc_wait)}}}'
        )


def _seconds(value: float | None) -> str:
    return "null" if value is None else f"{value:.7f}"


def _device_line(device: Mapping[str, Any]) -> str:
    index, host = device["index"], device["host"]
    phases = ",".join([f'"{name}":{seconds:.7f}' for name, seconds in host.items()])
    return (
        f'{{"index":{"null" if index is None else index},"host":{{{phases}}},'
        f'"copy_beside":{device["copy_beside"]:.7f},"graph":{device["graph"]:.7f}}}'
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One batch as its loader made it: seconds in reads, transforms, collate, hand-off and pinning.

    `worker` is None where the training process loads for itself. Off-CPU time inside the dataset
    counts as `read`, time in the run queue as `queued`; `calls` counts what was seen called (items,
    opens, reads, recvs, queries). Of `handoff`, `handoff_cpu` was spent on a core: the rest waited for one,
    or for an interpreter that was at work on the next batch.
    """

    loader: int
    worker: int | None
    seq: int
    t: float
    samples: int | None
    read: float
    transform: float
    collate: float
    handoff: float | None
    pin: float | None
    cpu: float
    queued: float | None
    bytes: int | None
    disk: int | None
    faults: int | None
    calls: Mapping[str, int]
    handoff_cpu: float | None = None


class Meeting(NamedTuple):
    """One collective of all ranks as one of them met it, in seconds.

    The rank came at `arrived`, with nothing left to do but wait, and was let go at `done`; `phase` is where
    its loop stood. With a device both are by its clock, which no other rank shares.
    """

    step: int
    kind: str
    bytes: int | None
    phase: str
    arrived: float
    done: float

    @property
    def stood(self) -> float:
        """Seconds in it."""
        return self.done - self.arrived

    def to_line(self) -> str:
        """The meeting as one line of `meetings.jsonl` holds it."""
        size = "null" if self.bytes is None else self.bytes
        return (
            f'{{"step":{self.step},"kind":"{self.kind}","bytes":{size},"phase":"{self.phase}",'
            f'"arrived":{self.arrived:.7f},"done":{self.done:.7f}}}'
        )
