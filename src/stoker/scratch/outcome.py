"""How a run ended, in the words of its result. Pure."""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace

from stoker.scratch.values import GuardName, Outcome


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What the supervisor saw at the end; the first that is set counts, in this order."""

    refused: str | None = None
    ended: bool = False
    guard: tuple[GuardName, str] | None = None
    timeout_s: float | None = None
    asked: str | None = None
    exit_status: int | None = None
    error: str | None = None
    """The uncaught exception that the script's process told of, or the last line of its stderr."""
    uncaught: str | None = None
    """An exception that some process told of, also of those that have not ended."""
    rank: int | None = None
    """Which of several processes it is that ended."""
    oom_killed: bool = False
    steps: int | None = None
    steps_limit: int | None = None
    offline: bool = False


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The part of a result that an ending decides."""

    outcome: Outcome
    reason: str
    exit_code: int | None = None
    signal: int | None = None
    guard: GuardName | None = None


# What gloo, NCCL and the store say to the ranks that are left when one is gone.
_LOST = ("closed by peer", "reset by peer", "Broken pipe", "remote process exited", "TCPStore")


_NO_NETWORK = "it was offline, with a loopback of its own: if it needs a network, leave out --offline"


def first_to_fail(exits: Mapping[int, int], errors: Mapping[int, str]) -> int | None:
    """Of the ranks that ended, in that order, the one to blame: not those that only tell of its loss.

    None where none has ended.
    """
    failed = [rank for rank, status in exits.items() if status]
    killed = [rank for rank in failed if os.WIFSIGNALED(exits[rank]) and not _aborted(exits[rank])]
    own = [rank for rank in failed if rank in errors and not any(word in errors[rank] for word in _LOST)]
    return next(iter((*killed, *own, *failed, *reversed(exits))), None)


def uncaught(errors: Mapping[int, str], ranks: int) -> str | None:
    """What went wrong first, by what ranks told: not that they have lost another."""
    for rank, text in errors.items():
        if not any(word in text for word in _LOST):
            return text if ranks == 1 else f"rank {rank}: {text}"
    return None


def _aborted(status: int) -> bool:
    """As NCCL ends a rank that waits for one that is gone."""
    return os.WTERMSIG(status) == signal.SIGABRT


def decide(ending: Ending) -> Verdict:
    """Say what an ending means; where it may be for want of a network, that there was none."""
    verdict = _decide(ending)
    late = verdict.outcome == "timed-out" and ending.uncaught is not None
    failed = late or verdict.outcome in ("failed", "crashed")
    if not ending.offline or not failed or ending.refused is not None:
        return verdict
    return replace(verdict, reason=f"{verdict.reason} ({_NO_NETWORK})")


def _decide(ending: Ending) -> Verdict:
    if ending.refused is not None:
        return Verdict(outcome="failed", reason=ending.refused)
    if ending.ended:
        return Verdict(outcome="done", reason=f"ended at step {_count(ending.steps)}")
    if ending.guard is not None:
        name, reason = ending.guard
        if name == "idle" and ending.uncaught is not None:  # it joins its workers, or ranks wait for it
            return Verdict(outcome="failed", reason=f"{ending.uncaught} (then {reason})")
        return Verdict(outcome="stopped", reason=reason, guard=name)
    if ending.timeout_s is not None:
        return Verdict(
            outcome="timed-out",
            reason=f"{ending.timeout_s:g} s had passed at step {_count(ending.steps)}",
        )
    if ending.asked is not None:
        return Verdict(outcome="ended-early", reason=ending.asked)
    if ending.exit_status is None:
        return Verdict(outcome="crashed", reason="the process that held it was killed", signal=signal.SIGKILL)
    verdict = _of_exit(ending, os.waitstatus_to_exitcode(ending.exit_status))
    if ending.rank is None or not ending.exit_status:
        return verdict
    return replace(verdict, reason=f"rank {ending.rank}: {verdict.reason}")


def _of_exit(ending: Ending, code: int) -> Verdict:
    if code < 0:
        if ending.oom_killed and -code == signal.SIGKILL:
            return Verdict(
                outcome="stopped", guard="ram", signal=-code, reason="out of memory: the kernel killed it"
            )
        return Verdict(outcome="crashed", reason=f"killed by signal {-code} ({_name(-code)})", signal=-code)
    if code:
        told = f": {ending.error}" if ending.error else ""
        return Verdict(outcome="failed", reason=f"exit code {code}{told}", exit_code=code)
    if ending.steps_limit is not None:
        made = f"{_count(ending.steps)} of {ending.steps_limit} steps"
        return Verdict(outcome="ended-early", reason=f"the script ended after {made}", exit_code=0)
    return Verdict(outcome="done", reason="the script ended", exit_code=0)


def _count(steps: int | None) -> str:
    return "n/a" if steps is None else str(steps)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a real-time signal"
