"""What a process has used so far, all its threads together: CPU, bytes asked and read, faults, TCP.

The watch counts by thread, which is cheap and misses libraries that read in threads of their own (tensorstore
and Parquet show 130 bytes a batch there). An experiment can afford to ask for the whole process.
"""

# Paths are the kernel's own words.
# ruff: noqa: PTH115, PTH208

import os
import socket
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_LINUX = sys.platform.startswith("linux")
# struct tcp_info: 8 bytes of flags, 24 of 4 bytes, then 8 bytes each: pacing, its limit, acked, received.
_RECEIVED = struct.Struct("<128xQ")
_TCP_INFO = 11


@dataclass(frozen=True, kw_only=True)
class Counters:
    """A reading; what the platform does not tell is None."""

    wall: float
    cpu: float
    asked: int | None
    disk: int | None
    faults: int | None
    received: dict[int, int]


def read_counters() -> Counters:
    """As they stand now."""
    asked, disk = _io()
    return Counters(
        received=_received(),
        asked=asked,
        disk=disk,
        faults=_faults(),
        cpu=time.process_time(),
        wall=time.perf_counter(),
    )


def received_between(before: Counters, after: Counters) -> int | None:
    """Bytes that came over TCP connections that are still open; None where that cannot be told."""
    if not _LINUX:
        return None
    return sum(got - before.received.get(inode, 0) for inode, got in after.received.items())


def _io() -> tuple[int | None, int | None]:
    if not _LINUX:
        return None, None
    try:
        words = Path("/proc/self/io").read_bytes().split()
    except OSError:  # a kernel without task accounting
        return None, None
    return int(words[1]), int(words[9])  # rchar: N wchar: N syscr: N syscw: N read_bytes: N …


def _faults() -> int | None:
    if not _LINUX:
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _received() -> dict[int, int]:
    """Bytes received so far by each TCP connection of this process, by its inode."""
    found: dict[int, int] = {}
    if not _LINUX:
        return found
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
            if not target.startswith("socket:["):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                told = copy.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 256)
        except OSError:  # closed meanwhile, or no TCP
            continue
        if len(told) >= _RECEIVED.size:
            found[int(target[8:-1])] = _RECEIVED.unpack_from(told)[0]
    return found
