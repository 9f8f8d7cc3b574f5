"""The host on macOS: psutil, and sysctl for what psutil lacks. Tested against text in its format; never
run on a Mac.
"""

import subprocess
from collections.abc import Callable

import psutil

from stoker.facts.values import Host

_LEVELS = {"1": "normal", "2": "warning", "4": "critical"}
_ASKED = ("hw.perflevel0.logicalcpu", "kern.memorystatus_vm_pressure_level")


def read(sysctl: Callable[[], str] | None = None) -> Host:
    """Read the host. macOS has no control groups, no affinity masks and no /dev/shm: those are `None`."""
    values = parse_sysctl((sysctl or _sysctl)())
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    cpus = psutil.cpu_count(logical=True)
    fast = values.get("hw.perflevel0.logicalcpu", "")
    return Host(
        system="macos",
        cpus=cpus,
        usable_cores=None if cpus is None else float(cpus),
        performance_cores=int(fast) if fast.isdigit() else None,
        ram_total_bytes=memory.total,
        ram_available_bytes=memory.available,
        memory_free_bytes=memory.available,
        memory_pressure_level=_LEVELS.get(values.get("kern.memorystatus_vm_pressure_level", "")),
        swap_total_bytes=swap.total,
        swap_used_bytes=swap.used,
    )


def parse_sysctl(text: str) -> dict[str, str]:
    """Take `name: value` lines apart; lines of complaint about unknown names have no such name."""
    pairs = (line.partition(": ") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon and name.strip() in _ASKED}


def _sysctl() -> str:
    try:
        # An Intel Mac does not know the first name: sysctl then fails, yet prints the others.
        done = subprocess.run(
            ["/usr/sbin/sysctl", *_ASKED], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
