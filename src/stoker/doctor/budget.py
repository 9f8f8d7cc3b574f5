"""The memory budget: what a run needs, from measured peaks, beside what is free. Pure; unmeasured is None.

VRAM is a line: fixed + per sample, through the peaks at the smallest and the largest size that ran, and
checked at every other one. A batch of 1 is no point of it: kernels and workspaces differ there. RAM is the
loop's own, each worker's private memory, and the batches that lie in queues.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from stoker.doctor.evidence import Evidence

# By how much the line may miss a size that it was not made from.
_CLOSE = 0.03
# Of the card, kept free: what fragments, and what a longer sample takes.
_HEADROOM = 0.05


@dataclass(frozen=True, kw_only=True)
class Vram:
    """Memory on the card: `fixed` + `per_sample` x samples, in bytes, context included.

    `error` is by how much the line missed at a size that it was not made from, as a share; `asks` are sizes
    still to be run before it may be trusted. `peak` is that of the script's own batch, `others` what other
    processes hold. `largest` is the largest batch that fits, by a line that holds.
    """

    fixed: int | None = None
    per_sample: int | None = None
    error: float | None = None
    peak: int | None = None
    context: int | None = None
    others: int | None = None
    total: int | None = None
    free: int | None = None
    largest: int | None = None
    asks: tuple[int, ...] = ()
    why: str | None = None

    def to_json(self) -> dict[str, Any]:
        """All of it, by name."""
        return {**vars(self), "asks": list(self.asks)}


@dataclass(frozen=True, kw_only=True)
class Ram:
    """Memory of the host, in bytes: the loop's own, each worker's, and the batches that wait.

    `workers` is the private memory of all `count` of them, `queue` the batches that wait in shared memory
    (`each_queue` a worker's), `pinned` the one copied into pinned memory. `free` and `shm_free` are what was
    free before the script started, by the machine and by the control group.
    """

    count: int | None = None
    main: int | None = None
    workers: int | None = None
    each_worker: int | None = None
    queue: int | None = None
    each_queue: int | None = None
    pinned: int | None = None
    need: int | None = None
    free: int | None = None
    limit: int | None = None
    shm_free: int | None = None
    most_workers: int | None = None
    limited_by: str | None = None
    why: str | None = None

    def to_json(self) -> dict[str, Any]:
        """All of it, by name."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Both."""

    vram: Vram
    ram: Ram

    def to_json(self) -> dict[str, Any]:
        """The budget as `stoker doctor --json` prints it."""
        return {"vram": self.vram.to_json(), "ram": self.ram.to_json()}


def draw_budget(run: Evidence) -> Budget:
    """The budget of a run."""
    return Budget(vram=_vram(run), ram=_ram(run))


# --- the card ---------------------------------------------------------------------------------------------


def _vram(run: Evidence) -> Vram:
    points = [(samples, peak) for samples, _, peak in run.resized if peak]
    if not points:
        return Vram(why="no peak of the card's memory was measured")
    context = run.process.get("context_bytes")
    total = None if run.others is None else run.others.total
    others = None if run.others is None else run.others.bytes
    free = None if total is None or others is None else total - others
    own = None if run.drawn is None else run.drawn.batch_size
    line = fit(points)
    around = context or 0
    peak = next((peak for samples, peak in points if samples == own), None)
    found = Vram(
        peak=None if peak is None else peak + around,
        context=context,
        others=others,
        total=total,
        free=free,
    )
    if line.fixed is None or line.per_sample is None:
        return replace(found, asks=line.asks, why=line.why)
    found = replace(
        found,
        fixed=line.fixed + around,
        per_sample=line.per_sample,
        error=line.error,
        asks=line.asks,
        why=line.why,
    )
    return found if free is None else replace(found, largest=largest_batch(found, free))


@dataclass(frozen=True, kw_only=True)
class Line:
    """Peaks by samples: a straight line, how far it missed, and what to run before it may be trusted."""

    fixed: int | None = None
    per_sample: int | None = None
    error: float | None = None
    asks: tuple[int, ...] = ()
    why: str | None = None

    @property
    def holds(self) -> bool:
        """Whether it was checked, and was close."""
        return self.error is not None and self.error <= _CLOSE


def fit(points: Sequence[tuple[int, int]]) -> Line:
    """A line through peaks (samples, bytes): by the smallest and the largest size, checked by those between.

    Batches of 1 are left out. With two sizes it is not checked, and a third is asked for; where it misses
    one by more than 3%, the upper sizes alone are tried, and then more sizes are asked for.
    """
    known = sorted({samples: peak for samples, peak in points if samples > 1}.items())
    if len(known) < 2:
        sizes = [samples for samples, _ in known] or [2]
        return Line(asks=(2 * sizes[0], 4 * sizes[0]), why=f"{len(known)} sizes above 1 make no line")
    if len(known) == 2:
        fixed, each, _ = _through(known)
        return Line(
            fixed=fixed, per_sample=each, asks=_between(known), why="the line was checked at no third size"
        )
    for first in range(len(known) - 2):  # small sizes may have workspaces of their own
        fixed, each, error = _through(known[first:])
        if error <= _CLOSE and each >= 0:
            return Line(fixed=fixed, per_sample=each, error=error)
    fixed, each, error = _through(known)
    return Line(
        fixed=fixed,
        per_sample=each,
        error=error,
        asks=_between(known),
        why=f"the line misses a size that ran by {error:.1%}: more sizes are needed",
    )


def _through(known: Sequence[tuple[int, int]]) -> tuple[int, int, float]:
    (low, least), (high, most) = known[0], known[-1]
    each = (most - least) / (high - low)
    fixed = least - each * low
    missed = [abs(fixed + each * samples - peak) / peak for samples, peak in known[1:-1]]
    return round(fixed), round(each), max(missed, default=0.0)


def _between(known: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """A size in the widest gap, and one above."""
    sizes = [samples for samples, _ in known]
    gap = max(range(len(sizes) - 1), key=lambda at: sizes[at + 1] - sizes[at])
    middle = (sizes[gap] + sizes[gap + 1]) // 2
    return (middle, 2 * sizes[-1]) if middle not in sizes else (2 * sizes[-1],)


def vram_for(vram: Vram, batch: int) -> int | None:
    """What a batch of so many samples needs on the card."""
    if vram.fixed is None or vram.per_sample is None:
        return None
    return vram.fixed + vram.per_sample * batch


def largest_batch(vram: Vram, room: int) -> int | None:
    """The largest batch that so much memory has room for, a twentieth kept free; None without a line."""
    if vram.fixed is None or vram.per_sample is None or vram.per_sample <= 0:
        return None
    return max(0, int((room * (1 - _HEADROOM) - vram.fixed) // vram.per_sample))


# --- the host ---------------------------------------------------------------------------------------------


def _ram(run: Evidence) -> Ram:
    if run.sizes is None:
        return Ram(
            free=run.host.get("memory_free_bytes"),
            limit=run.host.get("memory_limit_bytes"),
            shm_free=run.host.get("shm_free_bytes"),
            why="the sizes of the processes were not read",
        )
    drawn, batch = run.drawn, run.batch_bytes
    ahead = 2 if drawn is None or drawn.prefetch is None else drawn.prefetch
    each_queue = None if batch is None else ahead * batch
    pinned = batch if batch is not None and drawn is not None and drawn.pinned else None
    found = Ram(
        main=run.sizes.main,
        count=run.workers,
        workers=None if run.sizes.worker is None else run.workers * run.sizes.worker,
        each_worker=run.sizes.worker,
        queue=None if each_queue is None else run.workers * each_queue,
        each_queue=each_queue,
        pinned=pinned,
        free=run.host.get("memory_free_bytes"),
        limit=run.host.get("memory_limit_bytes"),
        shm_free=run.host.get("shm_free_bytes"),
        why=None if run.sizes.worker or not run.workers else "no worker's private memory was read",
    )
    most, by = most_workers(found)
    return replace(found, need=ram_with(found, None), most_workers=most, limited_by=by)


def ram_with(ram: Ram, workers: int | None) -> int | None:
    """What the run needs with so many workers; None: with those that it has."""
    count = ram.count if workers is None else workers
    if ram.main is None or count is None:
        return None
    if count and (ram.each_worker is None or ram.each_queue is None):
        return None
    each = (ram.each_worker or 0) + (ram.each_queue or 0)
    return ram.main + count * each + (ram.pinned or 0)


def most_workers(ram: Ram) -> tuple[int | None, str | None]:
    """How many workers memory and /dev/shm have room for, and which of them ends first."""
    fits = {}
    if ram.free is not None and ram.main is not None and ram.each_worker is not None:
        each = ram.each_worker + (ram.each_queue or 0)
        fits["memory"] = max(0, (ram.free - ram.main - (ram.pinned or 0)) // each)
    if ram.shm_free is not None and ram.each_queue:
        fits["/dev/shm"] = max(0, ram.shm_free // ram.each_queue)
    if not fits:
        return None, None
    by = min(fits, key=lambda name: fits[name])
    return fits[by], by
