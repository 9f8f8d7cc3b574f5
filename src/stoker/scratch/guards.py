"""What stops a script before it hurts the machine: readings, and which guard they trip."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from stoker.facts import host
from stoker.facts.words import size
from stoker.scratch.values import GuardName, Guards

_ROOM_LEFT = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The memory of the run's processes and what is free around them; `None` where it cannot be read."""

    ram_bytes: int | None = None
    ram_free_bytes: int | None = None
    shm_free_bytes: int | None = None
    room_free_bytes: int | None = None
    output_bytes: int = 0


def judge(reading: Reading, guards: Guards) -> tuple[GuardName, str] | None:
    """The guard that this reading trips, with its reason."""
    ram, free = reading.ram_bytes, reading.ram_free_bytes
    if guards.ram_bytes is not None and ram is not None and ram > guards.ram_bytes:
        return "ram", f"its processes hold {size(ram)} of memory, over the {size(guards.ram_bytes)} allowed"
    if free is not None and free < guards.ram_headroom_bytes:
        held = f"; its processes hold {size(ram)}" if ram is not None else ""
        return (
            "ram",
            f"{size(free)} of memory is left, under the {size(guards.ram_headroom_bytes)} kept free{held}",
        )
    shm = reading.shm_free_bytes
    if shm is not None and shm <= guards.shm_headroom_bytes:
        return (
            "shm",
            f"{size(shm)} is left in /dev/shm, where over {size(guards.shm_headroom_bytes)} must stay free",
        )
    if reading.room_free_bytes is not None and reading.room_free_bytes < _ROOM_LEFT:
        return (
            "room",
            f"the files it wrote fill the {size(guards.room_bytes)} held for them; raise room_bytes",
        )
    if reading.output_bytes > guards.output_bytes:
        return "output", f"it printed {size(reading.output_bytes)}, over the {size(guards.output_bytes)} kept"
    return None


def read(
    processes: Sequence[psutil.Process], *, ram_limit: int | None, root: str | None, outputs: Sequence[int]
) -> Reading:
    """Take a reading. `root` is the private root as seen from outside, where there is one."""
    return Reading(
        ram_bytes=_held(processes, ram_limit),
        ram_free_bytes=host.read().memory_free_bytes,
        shm_free_bytes=_free(f"{root or ''}/dev/shm"),
        room_free_bytes=_free(root) if root is not None else None,
        output_bytes=sum(os.fstat(number).st_size for number in outputs),
    )


def root_of(processes: Sequence[psutil.Process]) -> str | None:
    """The private root, seen through the youngest process that has it."""
    own = Path("/").stat()
    for process in reversed(processes):
        root = f"/proc/{process.pid}/root"
        try:
            found = Path(root).stat()
        except OSError:
            continue  # it ended meanwhile
        if (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino):
            return root
    return None


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started."""
    try:
        text = Path("/proc/vmstat").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)


def _held(processes: Sequence[psutil.Process], limit: int | None) -> int:
    """What the processes hold: the sum of RSS while that is under the limit, else of PSS.

    RSS counts shared pages once a process, so it is never less; it costs 10 us, PSS a walk over
    all pages of the process with its memory lock held.
    """
    resident = sum(_of(process, "rss") for process in processes)
    if limit is None or resident <= limit:
        return resident
    return sum(_of(process, "pss") for process in processes)


def _of(process: psutil.Process, kind: str) -> int:
    try:
        if kind == "rss":
            return int(process.memory_info().rss)
        found = process.memory_full_info()
    except psutil.Error:
        return 0  # it ended meanwhile
    return int(getattr(found, "pss", found.uss))


def _free(path: str) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    if not found.f_blocks:
        return None  # it has no size: what is free there is the machine's memory
    return found.f_bavail * found.f_frsize
