"""Control groups, versions 1 and 2 and both at once: what the groups above this process let it have.

A limit set on any group above binds, so every group up to the mount point is read and the tightest counts.
All paths hang under `root`, so that a recorded tree can stand in for the machine.
"""

from dataclasses import dataclass
from pathlib import Path

# Version 1 writes "no limit" as the largest page-aligned number; any limit beyond this is none.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, kw_only=True)
class Chain:
    """The groups of one controller above a process, innermost first."""

    version: int
    groups: tuple[Path, ...]


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory under the group's limits; `free_bytes` counts reclaimable file cache as free."""

    limit_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    oom_kills: int | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryFiles:
    """Where the group whose memory limit binds tells of its use, and that limit."""

    usage: Path
    stat: Path
    events: Path
    limit_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """The tightest CPU quota, in cores, and how often the group was held back by it."""

    quota_cores: float | None = None
    throttled_periods: int | None = None
    throttled_s: float | None = None


def find(controller: str, root: Path = Path("/")) -> Chain | None:
    """Find this process' groups for a controller (cpu, memory, cpuset, blkio)."""
    paths = _own_paths(read_text(root / "proc/self/cgroup") or "")
    mounts = _mounts(read_text(root / "proc/self/mountinfo") or "")
    for version, key in ((1, controller), (2, "")):
        if key not in paths or key not in mounts:
            continue
        mount_root, mount_point = mounts[key]
        base = root / mount_point.lstrip("/")
        chain = Chain(version=version, groups=_up_to(base, _below(paths[key], mount_root)))
        if version == 1 or _governs(chain, controller):
            return chain
    return None


def cpu_of(chain: Chain | None) -> Cpu:
    """Read the quota that binds, and the throttling where it binds."""
    if chain is None:
        return Cpu()
    quotas = [(quota, group) for group in chain.groups if (quota := _quota(group, chain.version)) is not None]
    tightest, group = min(quotas, default=(None, chain.groups[0]), key=lambda pair: pair[0])
    counts = read_pairs(group / "cpu.stat")
    throttled = counts.get("throttled_usec")
    seconds = None if throttled is None else throttled / 1e6
    if seconds is None and "throttled_time" in counts:
        seconds = counts["throttled_time"] / 1e9
    return Cpu(quota_cores=tightest, throttled_periods=counts.get("nr_throttled"), throttled_s=seconds)


def cpu_stat_file(chain: Chain | None) -> Path | None:
    """Return the cpu.stat of the group whose quota binds, for those who read it again and again."""
    if chain is None:
        return None
    quotas = [(quota, group) for group in chain.groups if (quota := _quota(group, chain.version)) is not None]
    group = min(quotas, default=(0.0, chain.groups[0]), key=lambda pair: pair[0])[1]
    return group / "cpu.stat"


def memory_of(chain: Chain | None) -> Memory:
    """Read the tightest memory limit, and what is left under all of them."""
    if chain is None:
        return Memory()
    limits = [(limit, group) for group in chain.groups if (limit := _limit(group, chain.version)) is not None]
    limit, group = min(limits, default=(None, chain.groups[0]), key=lambda pair: pair[0])
    free = []
    for bound, bounded in limits:
        used = _used(bounded, chain.version)
        if used is not None:
            counts = read_pairs(bounded / "memory.stat")
            # Clean file cache is dropped when memory is asked for, so it is no obstacle.
            cache = counts.get("total_inactive_file" if chain.version == 1 else "inactive_file", 0)
            free.append(max(0, bound - max(0, used - cache)))
    events = read_pairs(group / _events_name(chain.version))
    return Memory(
        limit_bytes=limit,
        used_bytes=_used(group, chain.version),
        free_bytes=min(free, default=None),
        oom_kills=events.get("oom_kill"),
    )


def memory_files(chain: Chain | None) -> MemoryFiles | None:
    """Return the files of the group whose limit binds, for those who read them again and again."""
    if chain is None:
        return None
    limits = [(limit, group) for group in chain.groups if (limit := _limit(group, chain.version)) is not None]
    limit, group = min(limits, default=(None, chain.groups[0]), key=lambda pair: pair[0])
    return MemoryFiles(
        usage=group / _usage_name(chain.version),
        stat=group / "memory.stat",
        events=group / _events_name(chain.version),
        limit_bytes=limit,
    )


def cpuset_of(chain: Chain | None) -> int | None:
    """Count the cores that the group's CPU set allows."""
    for group in () if chain is None else chain.groups:
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            cores = parse_cores(read_text(group / name) or "")
            if cores:
                return len(cores)
    return None


def parse_cores(text: str) -> tuple[int, ...]:
    """Take a kernel list of cores ("0-3,8") apart."""
    cores: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            cores.extend(range(int(first), int(last or first) + 1))
    return tuple(cores)


def read_text(path: Path) -> str | None:
    """Read a small kernel file; `None` where it is not there or not ours to read."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None


def read_pairs(path: Path) -> dict[str, int]:
    """Read a kernel file of names and numbers, one pair a line."""
    pairs = {}
    for line in (read_text(path) or "").splitlines():
        words = line.split()
        if len(words) == 2 and words[1].isdigit():
            pairs[words[0]] = int(words[1])
    return pairs


def _own_paths(text: str) -> dict[str, str]:
    """Map each controller to this process' group; version 2 has the empty name."""
    paths = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for name in controllers.split(",") if number != "0" else [""]:
            paths[name] = path
    return paths


def _mounts(text: str) -> dict[str, tuple[str, str]]:
    """Map each controller to the root of its mount and where that is mounted."""
    mounts: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, tail = before.split(), after.split()
        if len(fields) < 5 or len(tail) < 1:
            continue
        if tail[0] == "cgroup2":
            mounts.setdefault("", (fields[3], fields[4]))
        elif tail[0] == "cgroup" and len(tail) > 2:
            for option in tail[2].split(","):
                mounts.setdefault(option, (fields[3], fields[4]))
    return mounts


def _below(path: str, mount_root: str) -> str:
    """Return the group's path below its mount; a group outside of what is mounted is the mount itself."""
    if mount_root not in ("", "/"):
        path = path[len(mount_root) :] if f"{path}/".startswith(f"{mount_root}/") else ""
    return "" if ".." in path.split("/") else path.strip("/")


def _up_to(base: Path, below: str) -> tuple[Path, ...]:
    innermost = base / below
    return (innermost, *innermost.parents[: len(Path(below).parts)]) if below else (base,)


# Of version 2, by version 1's names: a file that is there where the controller is switched on.
_SHOWS = {
    "cpu": "cpu.stat",
    "memory": "memory.current",
    "cpuset": "cpuset.cpus.effective",
    "blkio": "io.stat",
}


def _governs(chain: Chain, controller: str) -> bool:
    """Say whether version 2 has the controller switched on for any of these groups."""
    return any((group / _SHOWS[controller]).exists() for group in chain.groups)


def _quota(group: Path, version: int) -> float | None:
    if version == 1:
        quota = (read_text(group / "cpu.cfs_quota_us") or "").strip()
        period = (read_text(group / "cpu.cfs_period_us") or "").strip()
    else:
        quota, _, period = (read_text(group / "cpu.max") or "").strip().partition(" ")
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None  # "max" and -1 are no quota
    return int(quota) / int(period)


def _limit(group: Path, version: int) -> int | None:
    name = "memory.limit_in_bytes" if version == 1 else "memory.max"
    text = (read_text(group / name) or "").strip()
    return int(text) if text.isdigit() and int(text) < _NO_LIMIT else None


def _usage_name(version: int) -> str:
    return "memory.usage_in_bytes" if version == 1 else "memory.current"


def _events_name(version: int) -> str:
    return "memory.oom_control" if version == 1 else "memory.events"


def _used(group: Path, version: int) -> int | None:
    text = (read_text(group / _usage_name(version)) or "").strip()
    return int(text) if text.isdigit() else None
