"""Control groups made for a while, versions 1 and 2: a group with a limit, and how a command enters it."""

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from stoker.facts import cgroup

# Version 1's files for what version 2 writes into one.
_PERIOD_US = 100_000
# A killed process leaves its group when it is reaped.
_LEAVE_S = 5.0
# Enters the group named first, and becomes the rest.
_ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


def quota_settings(cores: float, version: int) -> dict[str, str]:
    """Files and values that give a group so many cores' time."""
    quota = int(cores * _PERIOD_US)
    if version == 2:
        return {"cpu.max": f"{quota} {_PERIOD_US}"}
    return {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(quota)}


def memory_settings(size: int, version: int) -> dict[str, str]:
    """Files and values that give a group so many bytes, page cache included."""
    return {"memory.max" if version == 2 else "memory.limit_in_bytes": str(size)}


def disk_settings(reads: int, folder: Path, version: int) -> dict[str, str]:
    """Files and values that let a group read so many times a second from the disk of a folder."""
    disk = disk_of(folder)
    if disk is None:
        raise OSError(f"{folder} is on no block device: choose a temporary folder on a disk (TMPDIR)")
    if version == 2:
        return {"io.max": f"{disk} riops={reads}"}
    return {"blkio.throttle.read_iops_device": f"{disk} {reads}"}


def disk_of(folder: Path) -> str | None:
    """The whole disk under a folder, as major:minor."""
    device = folder.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not block.exists():
        return None
    if (block / "partition").exists():
        return (block.resolve().parent / "dev").read_text().strip()
    return (block / "dev").read_text().strip()


def version_of(controller: str) -> int | None:
    """The version that this controller is mounted as."""
    chain = cgroup.find(controller)
    return None if chain is None else chain.version


@contextlib.contextmanager
def made(controller: str, settings: dict[str, str]) -> Iterator[tuple[str, ...]]:
    """A group with these settings; the words that come before a command that runs in it."""
    chain = cgroup.find(controller)
    if chain is None:
        raise OSError(f"no {controller} control group is mounted")
    # Under version 2 a group with processes of its own takes no limited children: theirs is the outermost.
    above = chain.groups[0] if chain.version == 1 else chain.groups[-1]
    if chain.version == 2:
        (above / "cgroup.subtree_control").write_text(f"+{'io' if controller == 'blkio' else controller}")
    group = above / f"run-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    try:
        for name, value in settings.items():
            (group / name).write_text(value)
        yield ("sh", "-c", _ENTER, str(group))
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    """End what is still in it, and remove it."""
    deadline = time.monotonic() + _LEAVE_S
    while True:
        left = [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
