"""What a run's steps add up to: shares, rates, an ETA. Pure; the live view, the summary and exports read it.

Two rates are kept apart. `burst` is what a progress bar shows: one over the median of recent steps.
`sustained` is steps over wall time, stalls, validation and checkpoints included. The ETA is made of
the second.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from stoker.watch.phases import PHASES, Batch, Step

_RECENT = 256
_MAKING = ("read", "transform", "collate", "queued", "handoff", "pin")


@dataclass(slots=True)
class Tally:
    """Running sums over the steps of one rank. The first step (warm-up, compiling) is kept apart."""

    steps: int = 0
    samples: int | None = None
    seconds: float = 0.0
    by_phase: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    startup: float = 0.0
    waits_known: bool = False
    first: Step | None = None
    began: float | None = None
    last: float | None = None
    _recent: deque[Step] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def add(self, step: Step) -> None:
        """One more step."""
        self.last = step.t
        if self.first is None:
            self.first, self.began = step, step.t
            return
        self.steps += 1
        self.seconds += step.seconds
        self.startup += step.startup
        if step.samples is not None:
            self.samples = (self.samples or 0) + step.samples
        self.waits_known |= step.wait is not None
        by_phase = self.by_phase
        by_phase["wait"] += step.wait or 0.0
        by_phase["copy"] += step.copy
        by_phase["forward"] += step.forward
        by_phase["backward"] += step.backward
        by_phase["update"] += step.update
        by_phase["other"] += step.other
        self._recent.append(step)

    @property
    def wall(self) -> float | None:
        """Seconds from the end of the first step to the end of the last."""
        return (
            self.last - self.began
            if self.steps and self.began is not None and self.last is not None
            else None
        )

    def shares(self) -> dict[str, float | None]:
        """Each phase's share of the step, 0..1; None where it was not measured."""
        if not self.seconds:
            return dict.fromkeys(PHASES)
        shares: dict[str, float | None] = {n: s / self.seconds for n, s in self.by_phase.items()}
        if not self.waits_known:
            shares["wait"] = None
        return shares

    def recent_shares(self) -> dict[str, float | None]:
        """The same over the last steps."""
        recent = Tally()
        for step in [*list(self._recent)[:1], *self._recent]:
            recent.add(step)
        return recent.shares()

    @property
    def burst(self) -> float | None:
        """Steps a second, by the median of the last steps."""
        # A copy first: a notebook asks on its own thread while the recorder adds.
        times = [step.seconds for step in list(self._recent) if step.seconds > 0]
        return 1 / median(times) if times else None

    @property
    def sustained(self) -> float | None:
        """Steps a second over wall time, whatever happened between them."""
        return self.steps / self.wall if self.wall else None

    @property
    def samples_per_second(self) -> float | None:
        """Samples a second, sustained."""
        return self.samples / self.wall if self.samples is not None and self.wall else None

    def eta(self, remaining_steps: float | None) -> float | None:
        """Seconds for so many more steps at the sustained rate."""
        if remaining_steps is None or not self.sustained:
            return None
        return remaining_steps / self.sustained

    def to_json(self) -> dict[str, object]:
        """The sums as JSON holds them."""
        shares: Mapping[str, float | None] = self.shares()
        return {
            "steps": self.steps + (self.first is not None),
            "samples": self.samples,
            "seconds": self.wall,
            "first_step": None if self.first is None else self.first.seconds,
            "shares": shares,
            "startup_share": self.startup / self.seconds if self.seconds else None,
            "rates": {
                "burst": self.burst,
                "sustained": self.sustained,
                "samples_per_second": self.samples_per_second,
            },
        }


@dataclass(slots=True)
class Making:
    """Running sums over the batches of one loader: what making one costs, and of what."""

    batches: int = 0
    spent: dict[str, float] = field(default_factory=dict)
    # Batches whose time in the run queue was not read, and their reads, in which it is then.
    unqueued: int = 0
    unqueued_read: float = 0.0
    cpu: float = 0.0
    # Of the hand-over, on a core; None where no worker told of it.
    handoff_cpu: float | None = None
    counted: int = 0
    bytes: int = 0
    disk: int = 0
    faults: int = 0
    calls: dict[str, int] = field(default_factory=dict)

    def add(self, batch: Batch) -> None:
        """One more batch."""
        self.batches += 1
        self.cpu += batch.cpu
        if batch.handoff_cpu is not None:
            self.handoff_cpu = (self.handoff_cpu or 0.0) + batch.handoff_cpu
        for name in _MAKING:
            seconds = getattr(batch, name)
            if seconds is not None:
                self.spent[name] = self.spent.get(name, 0.0) + seconds
        if batch.queued is None:
            self.unqueued += 1
            self.unqueued_read += batch.read
        if batch.bytes is not None:
            self.counted += 1
            self.bytes += batch.bytes
            self.disk += batch.disk or 0
            self.faults += batch.faults or 0
        for call, times in batch.calls.items():
            self.calls[call] = self.calls.get(call, 0) + times

    def to_json(self) -> dict[str, object]:
        """Means a batch, in seconds, bytes and calls; None where nothing was counted."""
        each, spent = max(1, self.batches), self._spent()
        return {
            "batches": self.batches,
            **{name: spent[name] / each if name in spent else None for name in _MAKING},
            "cpu": self.cpu / each,
            "handoff_cpu": None if self.handoff_cpu is None else self.handoff_cpu / each,
            "bytes": self.bytes / self.counted if self.counted else None,
            "disk": self.disk / self.counted if self.counted else None,
            "faults": self.faults / self.counted if self.counted else None,
            "calls": {call: times / each for call, times in sorted(self.calls.items())},
        }

    def _spent(self) -> dict[str, float]:
        """The sums, with the run queue's share of short fetches, whose counters are seldom read.

        They queue as long as those whose counters were read, in the mean, and no longer than they were off
        the CPU, which was booked as `read`.
        """
        if not self.unqueued or "queued" not in self.spent:
            return self.spent
        mean = self.spent["queued"] / (self.batches - self.unqueued)
        more = min(mean * self.unqueued, self.unqueued_read)
        return {
            **self.spent,
            "queued": self.spent["queued"] + more,
            "read": max(0.0, self.spent["read"] - more),
        }
