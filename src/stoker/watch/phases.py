"""The phases of a step, and the step itself as a value."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PHASES = ("wait", "copy", "forward", "backward", "update", "other")
WAIT, COPY, FORWARD, BACKWARD, UPDATE, OTHER = range(6)
# A replayed CUDA graph may hold forward, backward and update at once. Its time cannot be split
# without events inside the graph, which is the user's; it is told apart and counted as `other`.
GRAPH = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One optimizer update: how long it took and where the time went, in seconds.

    The phases are exclusive and sum to the step. With a device they are device time by CUDA
    events; `device["host"]` then holds the same split by the host's clock. `wait` is None where no
    loader was seen: waiting for data could then not be told from `other`.
    """

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

    @property
    def seconds(self) -> float:
        """The whole step."""
        return (self.wait or 0.0) + self.copy + self.forward + self.backward + self.update + self.other

    def to_json(self) -> dict[str, Any]:
        """The step as one line of `steps.jsonl` holds it."""
        return {
            "step": self.step,
            "t": round(self.t, 6),
            "samples": self.samples,
            "loader": self.loader,
            **{name: _rounded(getattr(self, name)) for name in PHASES},
            "startup": round(self.startup, 7),
            "device": self.device,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One batch as its loader made it: seconds in reads, transforms, collate, hand-off and pinning.

    `worker` is None where the training process loads for itself. Off-CPU time inside the dataset
    counts as `read`, time in the run queue as `queued`; `calls` counts what was seen called (items,
    opens, reads, recvs, queries).
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

    def to_json(self) -> dict[str, Any]:
        """The batch as one line of `batches.jsonl` holds it."""
        times = ("read", "transform", "collate", "handoff", "pin", "cpu", "queued")
        return {
            "loader": self.loader,
            "worker": self.worker,
            "seq": self.seq,
            "t": round(self.t, 6),
            "samples": self.samples,
            **{name: _rounded(getattr(self, name)) for name in times},
            "bytes": self.bytes,
            "disk": self.disk,
            "faults": self.faults,
            "calls": dict(self.calls),
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 7)
