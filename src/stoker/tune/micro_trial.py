"""A trial of a micro-batch: a few updates in a child process, measured in samples a second, or why not."""

import atexit
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any, Literal

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from stoker import changes
from stoker.changes import held
from stoker.scratch import Child, Guards, Limits, Result, run
from stoker.scratch import Plan as ScratchPlan

_HOOK = "stoker.tune.micro_trial:prepare"
# Updates that are dropped, with what is compiled and allocated in them; and the fewest that make a rate.
_WARM = 3
_LEAST = 5
_IDLE_SECONDS = 60.0
# Times that the allocator found no memory and gave its cache back, in a trial: more is thrashing.
_MOST_RETRIES = 3
# What is said by torch, Python and numpy where memory ends, on a card or the host.
_MEMORY_WORDS = (
    "OutOfMemoryError",
    "out of memory",
    "MemoryError",
    "can't allocate memory",
    "Cannot allocate memory",
    "Unable to allocate",
)
# ran: it has a rate. too large: memory ended, or a guard stopped it before. failed: anything else.
Outcome = Literal["ran", "too large", "failed"]


@dataclass(frozen=True, kw_only=True)
class MicroTrial:
    """What came of one. `batch` is the script's own batch, of one rank; `rate` samples a second of all."""

    size: int
    outcome: Outcome
    reason: str
    batch: int | None
    rate: float | None
    vram: int | None

    def to_json(self) -> dict[str, Any]:
        """All of it, by name."""
        return {
            "size": self.size,
            "outcome": self.outcome,
            "reason": self.reason,
            "rate": self.rate,
            "vram": self.vram,
        }


def hold(
    command: Sequence[str],
    size: int,
    *,
    folder: Path,
    seconds: float = 4.0,
    most: float = 120.0,
    guards: Guards | None = None,
    ranks: int = 1,
) -> MicroTrial:
    """Hold a trial: for so many seconds after its first updates; ended at `most`."""
    folder.mkdir(parents=True, exist_ok=True)
    result = run(
        ScratchPlan(
            command=tuple(command),
            hook=_HOOK,
            argument={"size": size, "seconds": seconds},
            limits=Limits(seconds=most, idle_seconds=min(_IDLE_SECONDS, most)),
            guards=guards or Guards(),
            output=folder,
            ranks=ranks,
        )
    )
    return read(size, result, ranks)


def read(size: int, result: Result, ranks: int = 1) -> MicroTrial:
    """What came of a scratch run."""
    told = {message.kind: message.body for message in result.messages if message.rank == 0}
    batches = [m.body["samples"] for m in result.messages if m.kind == "batch"]
    measured: Mapping[str, Any] = told.get("measured", {})
    rate = measured.get("rate")
    outcome, reason = _outcome(result, rate, told.get("thrash"))
    return MicroTrial(
        size=size,
        outcome=outcome,
        reason=reason,
        batch=max(batches) if batches else None,
        rate=rate * ranks if outcome == "ran" and rate is not None else None,
        vram=measured.get("vram"),
    )


def _outcome(result: Result, rate: float | None, thrash: Mapping[str, Any] | None) -> tuple[Outcome, str]:
    if thrash is not None:
        return "too large", f"the allocator ran out of memory {thrash['retries']} times"
    if result.outcome == "stopped":
        return ("too large" if result.guard in ("ram", "shm") else "failed"), result.reason
    if result.outcome == "crashed":
        return ("too large" if result.signal == SIGKILL else "failed"), result.reason
    if result.outcome == "failed":
        said = f"{result.reason}\n{result.stderr_tail}"
        short = result.reason.splitlines()[0] if result.reason else "it failed"
        return (
            ("too large", short) if any(word in said for word in _MEMORY_WORDS) else ("failed", result.reason)
        )
    if rate is None:
        return "failed", f"{result.steps or 0} updates make no rate ({result.outcome}: {result.reason})"
    return "ran", ""


def prepare(child: Child, argument: Mapping[str, Any]) -> None:
    """The hook of a trial's scratch run."""
    changes.put({"micro_batch": argument["size"]})
    parts = held.installed()
    assert parts is not None
    parts.on_first_batch = lambda samples: child.report("batch", samples=samples)
    marks: list[tuple[float, int]] = []
    reported = 0.0

    def measure() -> None:
        first = min(_WARM, len(marks)) - 1
        if len(marks) > first + 1 >= 1:
            (began, before), (ended, after) = marks[first], marks[-1]
            child.report("measured", rate=(after - before) / (ended - began), vram=_peak())

    def stepped(*_: Any) -> None:
        nonlocal reported
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # an update is over when the card has made it
        marks.append((time.monotonic(), parts.samples))
        child.progress(len(marks))
        if child.rank:
            return  # rank 0 measures, and ends them all
        if (retries := _retries()) > _MOST_RETRIES:
            child.report("thrash", retries=retries)
            child.end(len(marks))
        if len(marks) < _WARM + _LEAST:
            return
        over = marks[-1][0] - marks[_WARM - 1][0] >= argument["seconds"]
        if over or marks[-1][0] - reported >= 1.0:  # now and then, for a trial whose time ends before
            reported = marks[-1][0]
            measure()
        if over:
            child.end(len(marks))

    register_optimizer_step_post_hook(stepped)
    if not child.rank:
        atexit.register(measure)  # of a script that ends before


def _peak() -> int | None:
    return torch.cuda.max_memory_reserved() if torch.cuda.is_initialized() else None


def _retries() -> int:
    return int(torch.cuda.memory_stats().get("num_alloc_retries", 0)) if torch.cuda.is_initialized() else 0
