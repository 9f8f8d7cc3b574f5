"""What the counters beside a run tell of its memory and of its threads. Pure.

Lines are those of `resources.jsonl`: one a second, with the memory sizes of each process now and then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PAGE = 4096
# Of what a worker has when first seen, what it may have met a fault for and still be a forked one: those of
# the ward had 7%, a spawned one 108%.
_FORKED = 0.5
# Seconds in which a worker copies what every worker does.
_SETTLED = 1.0
# What a worker has besides those that compute: the one that sends batches off, and torch's own.
_OF_EVERY_WORKER = 2


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory of the process, its workers and their group. None is what was not counted.

    `filled` is the most of its limit that the group had, page cache included. `came_back` are bytes a second
    that had been pushed out of memory and were needed again; `read` those that came from a disk. `stalled` is
    the share of time in which some task of the machine waited for memory. `growing` is how many bytes a
    second the process and its workers grew by in the later half.

    `copied` is what a worker shared with the others when it had settled and has for itself by now, in the
    mean; `born` what it was born with.
    """

    limit: int | None = None
    filled: float | None = None
    least_free: int | None = None
    came_back: float | None = None
    read: float | None = None
    stalled: float | None = None
    growing: float | None = None
    held: int | None = None
    copied: float | None = None
    born: float | None = None
    shm_least_free: int | None = None


@dataclass(frozen=True, kw_only=True)
class Threads:
    """Threads of the process, and of a worker beside those that every worker has (the most of them).

    `system` is the share of CPU time in the kernel; `switches` how often a second the kernel took a core away
    from the threads that train and that fetch; `worker_cores` how many a worker may use (the fewest).
    """

    main: int
    worker: int | None = None
    workers: int = 0
    system: float | None = None
    switches: float | None = None
    worker_cores: int | None = None

    @property
    def computing(self) -> int:
        """Threads that may compute at once, in all processes."""
        return self.main + self.workers * (self.worker or 1)


def read_memory(lines: Sequence[Mapping[str, Any]], sized: Sequence[Mapping[str, Any]] = ()) -> Memory | None:
    """What the lines of a run tell of its memory; None where there are none.

    `sized` are readings of settled workers before any of them ends; without them the lines have to do.
    """
    if not lines:
        return None
    last = lines[-1]
    used, limit = _known(lines, "group_memory_bytes"), last.get("group_memory_limit_bytes")
    copies = _copies(lines, sized or _while_settled(lines))
    return Memory(
        limit=limit,
        filled=max(used) / limit if used and limit else None,
        least_free=min(_known(lines, "ram_available_bytes"), default=None),
        came_back=_scaled(_rate(lines, "group_refaults"), _PAGE),
        read=_sum_rate(lines, "read_bytes"),
        stalled=_scaled(_rate(lines, "memory_pressure_total_us"), 1e-6),
        growing=_growing(lines),
        held=_held(last),
        copied=sum(copied for copied, _ in copies) / len(copies) if copies else None,
        born=sum(born for _, born in copies) / len(copies) if copies else None,
        shm_least_free=min(_known(lines, "shm_free_bytes"), default=None),
    )


def read_threads(lines: Sequence[Mapping[str, Any]], main: int | None) -> Threads | None:
    """What they tell of its threads; `main` are those that torch computes with in the training process."""
    if not lines or main is None:
        return None
    workers = lines[-1].get("processes") or []
    each = [one["threads"] - _OF_EVERY_WORKER for one in workers if one.get("threads")]
    cpu, system = _sum_rate(lines, "cpu_s"), _sum_rate(lines, "cpu_system_s")
    return Threads(
        main=main,
        worker=max(1, *each) if each else None,
        workers=len(workers),
        system=None if not cpu or system is None else system / cpu,
        switches=_sum_rate(lines, "switches_forced"),
        worker_cores=min(_known(workers, "cores_allowed"), default=None),
    )


def _known(lines: Sequence[Mapping[str, Any]], name: str) -> list[int]:
    return [line[name] for line in lines if line.get(name) is not None]


def _rate(lines: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """How fast a counter went up, a second."""
    known = [line for line in lines if line.get(name) is not None]
    if len(known) < 2 or known[-1]["t"] <= known[0]["t"]:
        return None
    return float(known[-1][name] - known[0][name]) / float(known[-1]["t"] - known[0]["t"])


def _sum_rate(lines: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The same for the process and those workers that were there all the time."""
    own = _rate(lines, name)
    if own is None:
        return None
    by_pid = [{one["pid"]: one.get(name) for one in line.get("processes") or []} for line in lines]
    seconds = lines[-1]["t"] - lines[0]["t"]
    for pid, before in by_pid[0].items():
        after = by_pid[-1].get(pid)
        if before is not None and after is not None:
            own += (after - before) / seconds
    return own


def _held(line: Mapping[str, Any]) -> int | None:
    """What the process and its workers have; pages that they share count in each."""
    sizes = [one.get("rss_bytes") for one in (line, *(line.get("processes") or []))]
    return None if any(size is None for size in sizes) else sum(size or 0 for size in sizes)


def _growing(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """By how much the same processes grew in the later half, bytes a second; None where more have come."""
    later = lines[len(lines) // 2 :]
    first, last = (len(line.get("processes") or []) for line in (later[0], later[-1]))
    return None if len(later) < 2 or last > first else _sum_rate(later, "rss_bytes")


def _while_settled(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Lines from a second after the first worker was seen, without the last one: it may be ending by then."""
    seen = next((line["t"] for line in lines if line.get("processes")), None)
    return [] if seen is None else [line for line in lines[:-1] if line["t"] >= seen + _SETTLED]


def _copies(
    lines: Sequence[Mapping[str, Any]], sized: Sequence[Mapping[str, Any]]
) -> list[tuple[float, float]]:
    """For each worker: bytes that it goes on to copy once it has settled, and bytes that it was born with.

    A forked worker is born with the pages of the process that starts it, all of them shared. One that is
    written to, be it by the counting of references alone, becomes its own, so that less is shared; what the
    worker keeps by itself, a cache or a leak, leaves that as it is. Each page copied is a fault, so there are
    no more of them. A spawned worker has met a fault for nearly all that it has: it shares nothing, and
    copies nothing.
    """
    born: dict[int, int | None] = {}
    for line in (*lines, *sized):
        for one in line.get("processes") or []:
            anonymous = one.get("anonymous_bytes")
            if one["pid"] in born or anonymous is None or line.get("anonymous_bytes") is None:
                continue
            forked = one.get("faults_minor", 0) * _PAGE < _FORKED * anonymous
            # Either may have grown since the worker was born, hardly both at once.
            born[one["pid"]] = min(anonymous, line["anonymous_bytes"]) if forked else None
    before: dict[int, tuple[int, int]] = {}
    rises: dict[int, list[float]] = {}
    for line in sized:
        for one in line.get("processes") or []:
            pid = one["pid"]
            if born.get(pid) is None or one.get("written_bytes") is None:
                continue
            own = min(one["anonymous_bytes"], one["written_bytes"] - (one.get("shmem_bytes") or 0))
            shared, faulted = one["anonymous_bytes"] - own, one.get("faults_minor", 0) * _PAGE
            if pid in before:
                rise = min(before[pid][0] - shared, faulted - before[pid][1])
                rises.setdefault(pid, []).append(float(max(0, rise)))
            before[pid] = shared, faulted
    return [(_going_on(some), float(born[pid] or 0)) for pid, some in rises.items()]


def _going_on(rises: Sequence[float]) -> float:
    """Their sum without the greatest: what goes on is in more than one of them.

    A worker of the ward's `handoff-arm-40` copied 63 MiB at once, after 1 MiB in the seconds before, and none
    of it is the dataset's; that it was a collection of all garbage is likely, and was not proved.
    """
    return sum(rises) - max(rises) if len(rises) > 1 else sum(rises)


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by
