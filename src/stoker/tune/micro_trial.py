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
from stoker.tune.agreement import Agreement
from stoker.tune.aside import notes_of

_HOOK = "stoker.tune.micro_trial:prepare"
# Updates that are dropped, with what is compiled and allocated in them; and the fewest that make a rate.
_WARM = 3
_LEAST = 5
IDLE_SECONDS = 60.0
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
    notes: tuple[str, ...] = ()

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
    start: float | None = None,
    guards: Guards | None = None,
    ranks: int = 1,
    offline: bool = False,
) -> MicroTrial:
    """Hold a trial: for so many seconds after its first updates; ended at `most`.

    It hangs where no update is made in a minute, or the first one not in `start`; None: in all its time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    result = run(
        ScratchPlan(
            command=tuple(command),
            hook=_HOOK,
            argument={"size": size, "seconds": seconds, "ranks": ranks},
            limits=Limits(
                seconds=most, idle_seconds=min(IDLE_SECONDS, most), start_seconds=min(start or most, most)
            ),
            guards=guards or Guards(),
            output=folder,
            ranks=ranks,
            offline=offline,
        )
    )
    return read(size, result, ranks)


def read(size: int, result: Result, ranks: int = 1) -> MicroTrial:
    """What came of a scratch run."""
    batches = [m.body["samples"] for m in result.messages if m.kind == "batch"]
    # Of each rank the last: all of them are in step.
    measured = {m.rank: m.body for m in result.messages if m.kind == "measured"}
    rate = sum(body["rate"] for body in measured.values()) if len(measured) == ranks else None
    taken = [body["vram"] for body in measured.values() if body["vram"] is not None]
    outcome, reason = _outcome(result, rate, ranks)
    return MicroTrial(
        size=size,
        outcome=outcome,
        reason=reason,
        batch=max(batches) if batches else None,
        rate=rate if outcome == "ran" else None,
        vram=max(taken, default=None),
        notes=notes_of(result),
    )


def _outcome(result: Result, rate: float | None, ranks: int) -> tuple[Outcome, str]:
    if thrash := next((message for message in result.messages if message.kind == "thrash"), None):
        who = f"rank {thrash.rank}: " if ranks > 1 else ""
        return "too large", f"{who}the allocator ran out of memory {thrash.body['retries']} times"
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
    """The hook of a trial's scratch run, in each of its ranks."""
    changes.put({"micro_batch": argument["size"]})
    parts = held.installed()
    assert parts is not None
    parts.on_first_batch = lambda samples: child.report("batch", samples=samples)
    agreement = Agreement(child, argument["ranks"])
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
        made = len(marks)
        child.progress(made)
        agreement.note(made)
        if (retries := _retries()) > _MOST_RETRIES:
            child.report("thrash", retries=retries)
            child.end(made)  # of all ranks: a size that is too large for one is for all
        if made < _WARM + _LEAST:
            return
        if agreement.leads and marks[-1][0] - marks[_WARM - 1][0] >= argument["seconds"]:
            agreement.call(made)
        over = agreement.is_over(made)
        if over or marks[-1][0] - reported >= 1.0:  # now and then, for a trial whose time ends before
            reported = marks[-1][0]
            measure()
        if over:
            agreement.leave(made)

    register_optimizer_step_post_hook(stepped)
    atexit.register(measure)  # of a script that ends before


def _peak() -> int | None:
    return torch.cuda.max_memory_reserved() if torch.cuda.is_initialized() else None


def _retries() -> int:
    return int(torch.cuda.memory_stats().get("num_alloc_retries", 0)) if torch.cuda.is_initialized() else 0
