"""The host on Windows, and GPU memory by the system's performance counters.

Tested against text in the counters' format; never run on Windows.

Under WDDM the driver does not say which process holds how much, but Windows does, and it alone tells
dedicated memory (the card's) from shared memory (the host's, over the bus). A run that spills into shared
memory does not fail: it becomes 3 to 160 times slower.
"""

import csv
import io
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import psutil

from stoker.facts.linux import usable_cores
from stoker.facts.values import Gpu, Host

# Counter names are translated on other languages' Windows (`\GPU Process Memory(*)\Dedicated Usage` works in
# English alone); the classes behind them are not.
_CLASSES = {
    "process": "Win32_PerfFormattedData_GPUPerformanceCounters_GPUProcessMemory",
    "adapter": "Win32_PerfFormattedData_GPUPerformanceCounters_GPUAdapterMemory",
}
_INSTANCE = re.compile(
    r"(?:pid_(?P<pid>\d+)_)?(?P<luid>luid_0x[0-9a-f]+_0x[0-9a-f]+)_phys_\d+", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Bytes on the card, and bytes of the host's memory used in place of it."""

    dedicated: int = 0
    shared: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(dedicated=self.dedicated + other.dedicated, shared=self.shared + other.shared)


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Usage by adapter, and by adapter and process. An adapter is named by its LUID."""

    adapters: Mapping[str, Usage]
    processes: Mapping[tuple[str, int], Usage]


def read() -> Host:
    """Read the host. Windows has no quota in files and no /dev/shm: those are `None`."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    cpus = psutil.cpu_count(logical=True)
    process = psutil.Process()
    # psutil has the mask on Linux and Windows only, and its types say so.
    mask = tuple(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else None
    return Host(
        system="windows",
        cpus=cpus,
        affinity=mask,
        usable_cores=usable_cores(cpus, mask, None),
        ram_total_bytes=memory.total,
        ram_available_bytes=memory.available,
        memory_free_bytes=memory.available,
        swap_total_bytes=swap.total,
        swap_used_bytes=swap.used,
    )


def read_counters(run: Callable[[str], str] | None = None) -> Counters | None:
    """Read the GPU memory counters; `None` where Windows does not give them (before version 1709)."""
    ask = run or _powershell
    return parse_counters(ask(_CLASSES["adapter"]), ask(_CLASSES["process"]))


def parse_counters(adapters_csv: str, processes_csv: str) -> Counters | None:
    """Take the counters' CSV apart: `Name,DedicatedUsage,SharedUsage` with a header line."""
    adapters: dict[str, Usage] = {}
    processes: dict[tuple[str, int], Usage] = {}
    for name, usage in [*_rows(adapters_csv), *_rows(processes_csv)]:
        match = _INSTANCE.search(name)
        if match is None:
            continue
        luid = match["luid"].lower()
        if match["pid"] is None:
            adapters[luid] = adapters.get(luid, Usage()) + usage
        else:
            key = (luid, int(match["pid"]))
            processes[key] = processes.get(key, Usage()) + usage
    return Counters(adapters=adapters, processes=processes) if adapters or processes else None


def _rows(text: str) -> list[tuple[str, Usage]]:
    # PowerShell may put a type line ("#TYPE …") or a byte-order mark before the header.
    lines = [line for line in text.lstrip("\ufeff").splitlines() if line.strip() and not line.startswith("#")]
    rows = []
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        dedicated, shared = row.get("DedicatedUsage") or "", row.get("SharedUsage") or ""
        if dedicated.isdigit() and shared.isdigit():
            rows.append((row.get("Name") or "", Usage(dedicated=int(dedicated), shared=int(shared))))
    return rows


def match_adapters(counters: Counters, used: Sequence[int | None]) -> list[str | None]:
    """Find the adapter behind each card of the driver, by the memory in use, which both tell.

    The driver gives no LUID. The one adapter within 512 MiB is the card's; where two come near, neither is.
    """
    chosen: list[str | None] = []
    for bytes_used in used:
        near = [
            luid
            for luid, usage in counters.adapters.items()
            if bytes_used is not None and abs(usage.dedicated - bytes_used) <= 512 << 20
        ]
        chosen.append(near[0] if len(near) == 1 else None)
    return [luid if luid is None or chosen.count(luid) == 1 else None for luid in chosen]


def add_counters(gpus: tuple[Gpu, ...], counters: Counters | None) -> tuple[Gpu, ...]:
    """Fill in what the driver does not say: bytes by process, and shared memory."""
    if counters is None:
        return gpus
    whole = []
    for gpu, luid in zip(gpus, match_adapters(counters, [gpu.used_bytes for gpu in gpus]), strict=True):
        if luid is None:
            whole.append(gpu)
            continue
        holders = []
        for holder in gpu.holders or ():
            usage = counters.processes.get((luid, holder.pid))
            if usage is None:
                holders.append(holder)
                continue
            # The driver's figure stands where it gives one (cards in compute mode).
            own = usage.dedicated if holder.bytes is None else holder.bytes
            holders.append(replace(holder, bytes=own, shared_bytes=usage.shared))
        adapter = counters.adapters[luid]
        known = None if gpu.holders is None else tuple(sorted(holders, key=lambda one: -(one.bytes or 0)))
        whole.append(replace(gpu, shared_bytes=adapter.shared, holders=known))
    return tuple(whole)


def _powershell(name: str) -> str:
    columns = "Name,DedicatedUsage,SharedUsage"
    command = f"Get-CimInstance {name} | Select-Object {columns} | ConvertTo-Csv -NoTypeInformation"
    try:
        done = subprocess.run(
            ["powershell", "-NoProfile", "-NonInteractive", "-Command", command],
            capture_output=True,
            text=True,
            timeout=15,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
