"""The memory budget: what a run needs, from measured peaks, beside what is free. Pure; unmeasured is None.

VRAM is about a line, fixed + per sample, through peaks of sizes that ran; what a size needs is told by
playing its allocations where they are known (`forecast.py`). RAM is the loop's own, each worker's private
memory, and the batches that lie in queues.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stoker.doctor.evidence import Evidence
from stoker.doctor.forecast import Forecast, Need, foresee

# Of the card, kept free: for what a longer sample takes.
_HEADROOM = 0.05
# Of the script's own size: batches whose need is told.
_TIMES = (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8)


@dataclass(frozen=True, kw_only=True)
class Vram:
    """Memory on the card, in bytes, context included: about `fixed` + `per_sample` x samples.

    `by_batch` is what batches need, each with the least and the most that it may turn out to be: of a process
    of its own. `error` is by how much a size that ran was missed by what was told without it, as a share;
    `asks` are sizes still to be run before it may be trusted. `probed` are sizes at which convolutions ran
    alone, `unlike` what runs and those do not have in common. `peak` is that of the script's own batch,
    `others` what other processes hold. `largest` is the largest batch that fits for sure.
    """

    fixed: int | None = None
    per_sample: int | None = None
    error: float | None = None
    spread: float | None = None
    peak: int | None = None
    context: int | None = None
    others: int | None = None
    total: int | None = None
    free: int | None = None
    largest: int | None = None
    by_batch: Mapping[int, Need] = field(default_factory=dict)
    ran: tuple[int, ...] = ()
    asks: tuple[int, ...] = ()
    probed: tuple[int, ...] = ()
    unlike: tuple[str, ...] = ()
    why: str | None = None
    forecast: Forecast | None = None

    def to_json(self) -> dict[str, Any]:
        """All of it, by name."""
        told = {name: value for name, value in vars(self).items() if name != "forecast"}
        table = [{"samples": samples, **need._asdict()} for samples, need in self.by_batch.items()]
        rows = {name: list(told[name]) for name in ("ran", "asks", "probed", "unlike")}
        return {**told, "by_batch": table, **rows}


@dataclass(frozen=True, kw_only=True)
class Ram:
    """Memory of the host, in bytes: the loop's own, each worker's, and the batches that wait.

    `workers` is the private memory of all `count` of them, `queue` the batches that wait in shared memory
    (`each_queue` a worker's), `pinned` the one copied into pinned memory. `free` and `shm_free` are what was
    free before the script started, by the machine and by the control group. Where `ranks` share the machine,
    all is of one of them: what it needs, and its part of what is free. `tried`: a worker's memory is that of
    so many that were tried, in a loop that has none.
    """

    ranks: int = 1
    count: int | None = None
    main: int | None = None
    workers: int | None = None
    each_worker: int | None = None
    tried: int | None = None
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
    context = run.process.get("context_bytes")
    total = None if run.others is None else run.others.total
    others = None if run.others is None else run.others.bytes
    own = None if run.drawn is None else run.drawn.batch_size
    free = None if total is None or others is None else total - others
    if free is not None and run.overflow is not None and run.overflow.allowed is not None:
        free = min(free, run.overflow.allowed)  # a script may be kept to a part of the card
    around = context or 0
    first = next((one.peak for one in run.fresh if one.samples == own), None)
    later = None if run.allocator is None else run.allocator.reserved_peak
    peak = first if first is not None else next((peak for samples, peak in points if samples == own), None)
    if later is not None:  # the first steps are not the highest where samples differ in length
        peak = later if peak is None else max(peak, later)
    grown = 1.0 if not first or later is None else max(1.0, later / first)
    found = Vram(
        peak=None if peak is None else peak + around,
        context=context,
        others=others,
        total=total,
        free=free,
    )
    if not points and len(run.fresh) < 2:
        why = "no batch of another size was run" if peak else "no peak of the card's memory was measured"
        return replace(found, why=why)
    forecast = foresee(points, run.fresh, grown)
    line = forecast.line
    if line.fixed is None or line.per_sample is None:
        return replace(found, asks=line.asks, why=line.why)
    found = replace(
        found,
        fixed=line.fixed + around,
        per_sample=line.per_sample,
        error=forecast.error,
        spread=forecast.spread,
        ran=tuple(samples for samples, _ in forecast.ran),
        asks=() if forecast.runs else line.asks,
        probed=forecast.chosen.sizes,
        unlike=forecast.unlike,
        why=forecast.why,
        forecast=forecast,
    )
    largest = None if free is None else largest_batch(found, free)
    return replace(found, largest=largest, by_batch=_by_batch(found, own))


def vram_for(vram: Vram, batch: int) -> Need | None:
    """What a batch of so many samples needs on the card."""
    need = None if vram.forecast is None else vram.forecast.at(batch)
    return None if need is None else Need(*(one + (vram.context or 0) for one in need))


def largest_batch(vram: Vram, room: int) -> int | None:
    """The largest batch that so much memory has room for; None without a forecast.

    As if needs only grew with the batch: what is played goes up and down a little, so a single batch is
    better judged by its own need (`is_too_much`).
    """
    if vram.per_sample is None or vram.per_sample <= 0 or vram_for(vram, 2) is None:
        return None
    # Twice what the line has room for: what is played may grow slower than it.
    most = 2 * room // vram.per_sample + 1
    return bisect_left(range(1, most), True, key=lambda batch: is_too_much(vram_for(vram, batch), room))


def is_too_much(need: Need | None, room: int) -> bool:
    """Whether it may take more than so much memory, a twentieth of it kept free; what is not told may."""
    return need is None or max(need.high, round(need.mid / (1 - _HEADROOM))) > room


def sizes_around(own: int) -> tuple[int, ...]:
    """Batches whose need is told, of a script with its own."""
    return tuple(dict.fromkeys(size for times in _TIMES if (size := round(own * times)) > 1))


def _by_batch(vram: Vram, own: int | None) -> dict[int, Need]:
    """Around the script's own size, up to eight times it and no more than has room."""
    if own is None:
        return {}
    told = {size: vram_for(vram, size) for size in sorted({*sizes_around(own), *vram.ran}) if size > 1}
    room = vram.free
    return {
        size: need for size, need in told.items() if need is not None and (room is None or need.mid <= room)
    }


# --- the host ---------------------------------------------------------------------------------------------


def _ram(run: Evidence) -> Ram:
    room = Ram(
        ranks=run.ranks_here,
        free=_part(run, "memory_free_bytes"),
        limit=run.host.get("memory_limit_bytes"),
        shm_free=_part(run, "shm_free_bytes"),
    )
    if run.sizes is None:
        return replace(room, why="the sizes of the processes were not read")
    drawn, batch = run.drawn, run.batch_bytes
    ahead = 2 if drawn is None or drawn.prefetch is None else drawn.prefetch
    each_queue = None if batch is None else ahead * batch
    pinned = batch if batch is not None and drawn is not None and drawn.pinned else None
    found = replace(
        room,
        main=run.sizes.main,
        count=run.workers,
        workers=None if run.sizes.worker is None else run.workers * run.sizes.worker,
        each_worker=run.sizes.worker,
        queue=None if each_queue is None else run.workers * each_queue,
        each_queue=each_queue,
        pinned=pinned,
        tried=run.sizes.tried,
        why=None if run.sizes.worker or not run.workers else "no worker's private memory was read",
    )
    most, by = most_workers(found)
    return replace(found, need=ram_with(found, None), most_workers=most, limited_by=by)


def _part(run: Evidence, name: str) -> int | None:
    """One rank's part of what the machine has: the others need as much."""
    whole: int | None = run.host.get(name)
    return None if whole is None else whole // run.ranks_here


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
