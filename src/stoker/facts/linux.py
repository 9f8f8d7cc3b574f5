"""The host on Linux: /proc, /sys and control groups. Run for real."""

import os
from pathlib import Path

from stoker.facts import cgroup
from stoker.facts.values import Host, Pressure


def read(root: Path = Path("/")) -> Host:
    """Read the host; `root` may be a recorded tree."""
    cpus = cgroup.parse_cores(cgroup.read_text(root / "sys/devices/system/cpu/online") or "")
    affinity = _affinity(root)
    group = {name: cgroup.find(name, root) for name in ("cpu", "memory", "cpuset")}
    cpu, memory = cgroup.cpu_of(group["cpu"]), cgroup.memory_of(group["memory"])
    ram = _meminfo(cgroup.read_text(root / "proc/meminfo") or "")
    available = ram.get("MemAvailable")
    free = [found for found in (available, memory.free_bytes) if found is not None]
    shm_total, shm_free = _space(root / "dev/shm")
    swap_total, swap_free = ram.get("SwapTotal"), ram.get("SwapFree")
    versions = sorted({f"v{chain.version}" for chain in group.values() if chain is not None})
    return Host(
        system="linux",
        cpus=len(cpus) or os.cpu_count(),
        affinity=affinity,
        cpuset_cores=cgroup.cpuset_of(group["cpuset"]),
        quota_cores=cpu.quota_cores,
        usable_cores=usable_cores(len(cpus) or os.cpu_count(), affinity, cpu.quota_cores),
        cgroup="+".join(versions) or None,
        throttled_periods=cpu.throttled_periods,
        throttled_s=cpu.throttled_s,
        ram_total_bytes=ram.get("MemTotal"),
        ram_available_bytes=available,
        memory_limit_bytes=memory.limit_bytes,
        memory_used_bytes=memory.used_bytes,
        memory_free_bytes=min(free, default=None),
        oom_kills=memory.oom_kills,
        swap_total_bytes=swap_total,
        swap_used_bytes=None if swap_total is None or swap_free is None else swap_total - swap_free,
        shm_total_bytes=shm_total,
        shm_free_bytes=shm_free,
        cpu_pressure=parse_pressure(cgroup.read_text(root / "proc/pressure/cpu")),
        memory_pressure=parse_pressure(cgroup.read_text(root / "proc/pressure/memory")),
        io_pressure=parse_pressure(cgroup.read_text(root / "proc/pressure/io")),
    )


def usable_cores(cpus: int | None, affinity: tuple[int, ...] | None, quota: float | None) -> float | None:
    """Return how many cores can run at once: the least of count, mask and quota."""
    bounds = [float(cpus)] if cpus is not None else []
    if affinity is not None:
        bounds.append(float(len(affinity)))
    if quota is not None:
        bounds.append(quota)
    return min(bounds, default=None)


def parse_pressure(text: str | None) -> Pressure | None:
    """Take a file of /proc/pressure apart; kernels without PSI have none."""
    lines = {}
    for line in (text or "").splitlines():
        kind, _, rest = line.partition(" ")
        lines[kind] = dict(pair.split("=", 1) for pair in rest.split() if "=" in pair)
    some, full = lines.get("some"), lines.get("full")
    if some is None:
        return None
    return Pressure(
        some_avg10=float(some["avg10"]),
        some_avg60=float(some["avg60"]),
        some_total_us=int(some["total"]),
        full_avg10=None if full is None else float(full["avg10"]),
        full_total_us=None if full is None else int(full["total"]),
    )


def _affinity(root: Path) -> tuple[int, ...] | None:
    for line in (cgroup.read_text(root / "proc/self/status") or "").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return cgroup.parse_cores(line.partition(":")[2]) or None
    return None


def _meminfo(text: str) -> dict[str, int]:
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    return found


def _space(path: Path) -> tuple[int | None, int | None]:
    try:
        room = os.statvfs(path)
    except OSError:
        return None, None
    return room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
