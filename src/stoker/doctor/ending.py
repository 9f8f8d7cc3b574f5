"""How a scratch run came to an end that was not ours, as far as that tells a cause. Pure.

A worker that is killed for want of memory, or that meets a full /dev/shm, ends a run before its experiments,
often before its first step: then this is what there is to judge by.
"""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stoker.scratch import Result

# The message of a run whose worker has died, or whose `next()` raised.
DEATH = "death"
# torch's own words where a batch finds no room in shared memory.
_NO_SHM = ("shared memory(shm)", "out of shared memory", "</torch_")
_BUS_ERROR = "killed by signal: Bus error"
_KILLED = "killed by signal: Killed"
# Of Python, of torch on the host, and of the C library. No word of torch's `OutOfMemoryError`, which is of a
# card: its allocator's messages, and those of CUDA and its libraries, say nothing of the host.
_NO_MEMORY = re.compile(r"(?<!OutOf)MemoryError|DefaultCPUAllocator|Cannot allocate memory|std::bad_alloc")
_OF_A_CARD = re.compile(r"OutOfMemoryError|\b(?:CUDA|HIP)\b|cudaError|CU(?:BLAS|DNN)_STATUS")


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What the run lacked when it ended. `sure`: the kernel or a guard said so, and not a signal alone.

    `oom_kills` are processes of its memory group that the kernel killed meanwhile, None where that is not
    counted; `held` that the guard of the diagnosis stopped it before that.
    """

    lacked: Literal["memory", "shm"]
    sure: bool
    why: str
    oom_kills: int | None = None
    held: bool = False


def read_ending(result: Result, oom_kills: int | None) -> Ending | None:
    """What a run lacked when it ended; None where it was ended by us, or of something else."""
    if result.outcome in ("done", "ended-early", "timed-out"):
        return None
    deaths = [message.body for message in result.messages if message.kind == DEATH]
    raised = [str(death["text"]) for death in deaths] + [result.reason]
    said = [*raised, result.stderr_tail]
    signals = {int(number) for death in deaths for number in death["signals"]} | {result.signal}
    if any(word in text for text in said for word in _NO_SHM) and not _says(said, _BUS_ERROR):
        why = next(line for line in _last_first(said) if any(word in line for word in _NO_SHM))
        return Ending(lacked="shm", sure=True, why=why)
    if signal.SIGBUS in signals or _says(said, _BUS_ERROR):
        return Ending(lacked="shm", sure=False, why="a process was ended by a bus error")
    if result.guard == "ram":
        return Ending(
            lacked="memory", sure=True, why=result.reason, oom_kills=oom_kills, held=result.signal is None
        )
    if oom_kills:
        return Ending(lacked="memory", sure=True, why="the kernel killed a process", oom_kills=oom_kills)
    if signal.SIGKILL in signals or _says(said, _KILLED):
        # Not counted, or by somebody else's hand.
        return Ending(lacked="memory", sure=False, why="a process was killed (SIGKILL)", oom_kills=oom_kills)
    for line in _last_first(raised):
        if _NO_MEMORY.search(line) and not _OF_A_CARD.search(line):
            return Ending(lacked="memory", sure=True, why=line, oom_kills=oom_kills)
    return None


def _says(said: Sequence[str], words: str) -> bool:
    return any(words in text for text in said)


def _last_first(said: Sequence[str]) -> list[str]:
    """The lines of all of them, the last one first."""
    return [line.strip() for text in said for line in text.splitlines()][::-1]
