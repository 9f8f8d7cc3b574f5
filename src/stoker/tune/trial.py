"""A trial: the user's own loop in a child process, with changes put over it, measured or stopped.

Of several ranks each is a process; they begin and end together, and what stops one stops the trial.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from statistics import median
from typing import Any, Literal

from stoker.scratch import Guards, Limits, Message, Result, run
from stoker.scratch import Plan as ScratchPlan
from stoker.tune.stretches import WARM_STEPS, Rates, epoch_of, length, rates
from stoker.watch import Record

_HOOK = "stoker.tune.measure:prepare"
# Without a step for so long, a trial hangs.
IDLE_SECONDS = 60.0
# Of the card: a size that fits to the last byte does not fit for long, with fragments, or samples that vary.
VRAM_SHARE = 0.95
# measured: it has a rate. stopped: a guard did that. failed: the script's own error, or a setting's that it
# cannot run with. crashed: by a signal. hung: no step for long. short: it ended, or its time did, before a
# stretch was whole. thrashed: the card's memory was full again and again.
Outcome = Literal["measured", "stopped", "failed", "crashed", "hung", "short", "thrashed"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What came of one. `first`: seconds to the end of its first step (imports, cold files, compiling).

    `vram` is the most that was reserved after the first steps, `vram_share` of the card at any time. `host`:
    the machine that it ran on; rates are compared within one. None: not known.
    """

    settings: Mapping[str, Any]
    outcome: Outcome
    reason: str
    rates: Rates | None
    first: float | None
    seconds: float
    vram: int | None
    told: tuple[str, ...]
    record: Path | None
    host: str | None = None
    vram_share: float | None = None

    @property
    def rate(self) -> float | None:
        """The median over its stretches."""
        return median(self.rates.each) if self.rates is not None else None

    def to_json(self) -> dict[str, Any]:
        """All of it, by name."""
        return {
            "settings": dict(self.settings),
            "outcome": self.outcome,
            "reason": self.reason,
            "rate": self.rate,
            "rates": list(self.rates.each) if self.rates else [],
            "unit": self.rates.unit if self.rates else None,
            "stretch_steps": self.rates.stretch_steps if self.rates else None,
            "size": self.rates.size if self.rates else None,
            "disturbed": self.rates.disturbed if self.rates else None,
            "first": self.first,
            "seconds": self.seconds,
            "vram": self.vram,
            "vram_share": self.vram_share,
            "told": list(self.told),
            "record": None if self.record is None else str(self.record),
            "host": self.host,
        }


def hold(
    command: Sequence[str],
    settings: Mapping[str, Any],
    *,
    folder: Path,
    seconds: float = 8.0,
    most: float = 120.0,
    idle: float = IDLE_SECONDS,
    start: float | None = None,
    guards: Guards | None = None,
    ranks: int = 1,
    offline: bool = False,
) -> Trial:
    """Hold a trial in a folder of its own: for so many seconds after its first steps; ended at `most`.

    It hangs where no step is made in `idle` seconds, or the first one not in `start`; None: in all its time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    result = run(
        ScratchPlan(
            command=tuple(command),
            hook=_HOOK,
            argument={
                "runs": str(folder),
                "run": "record",
                "settings": dict(settings),
                "seconds": seconds,
                "ranks": ranks,
            },
            limits=Limits(seconds=most, idle_seconds=min(idle, most), start_seconds=min(start or most, most)),
            guards=guards or Guards(),
            writable=(folder,),
            output=folder,
            ranks=ranks,
            offline=offline,
        )
    )
    return read(settings, result, folder / "record", ranks)


def read(settings: Mapping[str, Any], result: Result, record: Path, ranks: int = 1) -> Trial:
    """What came of a scratch run."""
    told = {message.kind: message for message in result.messages}
    measured = [message.body for message in result.messages if message.kind == "measured"]
    taken = [body["vram"] for body in measured if body["vram"] is not None]
    shares = [body["vram_share"] for body in measured if body["vram_share"] is not None]
    found = None
    if "warm" in told and result.outcome in ("done", "ended-early", "timed-out"):
        found = _rates(record, told["warm"].body["steps"], ranks)
    outcome, reason = _outcome(result, found, told.get("thrash"), ranks)
    if outcome == "short" and "warm" not in told and (result.steps or 0) > WARM_STEPS:
        reason = f"it ended before its samples were held ({result.outcome}: {result.reason})"
    return Trial(
        settings=settings,
        outcome=outcome,
        reason=reason,
        rates=found if outcome == "measured" else None,
        first=told["first"].at if "first" in told else None,
        seconds=result.seconds,
        vram=max(taken, default=None),
        told=tuple(dict.fromkeys(line for body in measured for line in body["told"])),  # ranks say the same
        record=record if (record / "run.json").exists() else None,
        host=gethostname(),
        vram_share=max(shares, default=None),
    )


def _rates(record: Path, warm: int, count: int) -> Rates | None:
    """By the steps that all ranks have made: one is over when the last rank has made it."""
    if not (record / "run.json").exists():
        return None
    ranks = Record.open(record).ranks
    if len(ranks) < count:
        return None
    steps = list(zip(*(list(rank.steps())[warm - 1 :] for rank in ranks.values()), strict=False))
    if len(steps) < 2:
        return None
    first = ranks[min(ranks)]
    loaders = first.about.get("loaders") or []
    found = rates(
        [max(one.t for one in same) for same in steps],
        [_sum(one.samples for one in same) for same in steps],
        length(loaders, len(steps) - 1),
        list(first.resources()),
        turns={at for at, same in enumerate(steps) if any(one.startup for one in same)},
        epoch=epoch_of(loaders, len(steps) + warm - 1),
    )
    return found if found.each else None


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(one or 0 for one in known)


def _outcome(result: Result, found: Rates | None, thrash: Message | None, ranks: int) -> tuple[Outcome, str]:
    if thrash is not None:
        who = f"rank {thrash.rank}: " if ranks > 1 else ""
        return "thrashed", f"{who}the allocator ran out of memory {thrash.body['retries']} times"
    if result.guard == "idle":
        return "hung", result.reason
    if result.outcome == "stopped":
        return "stopped", result.reason
    if result.outcome in ("failed", "crashed"):
        # Of several ranks the last line may be another's.
        said = result.stderr_tail.strip().splitlines() if ranks == 1 else []
        reason = f"{result.reason}: {said[-1]}" if said and said[-1] not in result.reason else result.reason
        return ("failed" if result.outcome == "failed" else "crashed"), reason
    if found is None:
        return "short", f"{result.steps or 0} steps make no whole stretch ({result.outcome}: {result.reason})"
    return "measured", ""
