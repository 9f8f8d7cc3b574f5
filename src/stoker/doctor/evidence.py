"""All that a diagnosis has found out, as numbers: what the causes are judged by. Pure once it is made.

What was not measured is None, and `missing` says why; no cause may rest on it, for or against.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import fmean, median
from typing import Any

from stoker.doctor.allocations import Allocations
from stoker.doctor.apart import drained, replayed
from stoker.doctor.device import Allocator, Clocks, Copied, Others, Overflow, Sync, Trace
from stoker.doctor.device_evidence import context_bytes, missing_of, read_device
from stoker.doctor.ending import Ending
from stoker.doctor.epochs import Epochs
from stoker.doctor.experiments.generators import Generator, read_generator
from stoker.doctor.experiments.passes import Pass, Reread, Stub, read_reread, read_stub
from stoker.doctor.finding import ALARM
from stoker.doctor.foreign import foreign_cores
from stoker.doctor.own_steps import own_steps
from stoker.doctor.padding import read_padding
from stoker.doctor.ranks import Together, ranks_beside
from stoker.doctor.resources import Memory, Threads, read_memory, read_threads
from stoker.doctor.sizes import Sizes, read_sizes, with_tried
from stoker.doctor.steadiness import settled_step, spread_of
from stoker.doctor.trends import growth_of, more_work_of, rare_stalls_of, stalls_of
from stoker.scratch import Message
from stoker.watch import Record, Step
from stoker.watch.phases import PHASES, Batch
from stoker.watch.tally import Making

_NOT_OF_THE_PROCESS = ("t", "draws", "updates", "compiled", "work", "padding", "loaders")
# Of a record of days, the last steps: what is slow now.
MOST_STEPS = 100_000
# Batches whose own times are kept.
_MOST_BATCHES = 4096
# Bytes a batch: less are those of the counters that were read beside it.
_NO_READING = 4096
# Of the cores that may be used, for them to be what limits a run.
FULL = 0.85


@dataclass(frozen=True, kw_only=True)
class LoaderFacts:
    """The loader whose batches reach the steps. `iterable`: it draws from an IterableDataset, a stream."""

    name: str
    workers: int | None = None
    batch_size: int | None = None
    persistent: bool | None = None
    prefetch: int | None = None
    pinned: bool | None = None
    epochs: int = 0
    length: int | None = None
    iterable: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One run. Times are seconds a step, unless they say otherwise.

    `compute` is what a step takes with held batches, `from_memory` with batches that a feed hands out of
    memory, and by what share that may be off, `loader` what the loader needs for a step's batches with
    nobody computing, `loader_with` the same with another number of workers. `making` holds means a batch,
    `epochs` those of the first epoch and of the later ones; `made` is what each batch took, in order.
    `foreign` are cores that other processes may have taken from it.
    `step_with` is (workers, seconds a step, their spread) of the loop with another number of workers.
    `ranks_here` is how many ranks share the machine with this one, itself too.
    `startup` is the share of time from `iter()` to an epoch's first batch, where workers make it; `starts` is
    how many epochs begin, a step.
    `typical` is the median step, `settled` the mean of those beside which no loader was starting up;
    `spread`, a share, by how much the mean step may be off, nine times in ten; `compute_spread` of `compute`.
    `resized` are points (samples, seconds a step, peak reserved bytes or None) of the loop at other sizes,
    `fresh` the first steps of processes of their own: the loop's own size first.
    `growth` is what the last steps take of the first, waits apart, and `more_work` how much more goes in.
    `stalls` is the share of time in steps that the loop itself holds up, each so many steps after the one
    before; `rare_stalls` the same where there are one or two of them, of which `stalls` tells nothing.
    `memory` and `threads` are what the counters tell, `one_thread` a step with one thread in each process.
    `dataset` is how many samples there are; `unkept` why kept ones would not be the script's, as random ones
    would not ("" where nothing speaks against it).
    `ending` is what the script lacked when it died; one that never made a step has a `step` without end.
    `generator` is one of the script's own in which the loop stands, where it draws from no loader.
    `reread` are samples read again after the run, `stub` is making batches with parts answered from memory.

    Of a GPU: `copied` is an update's bytes moved again; `trace` some steps by the driver's account; `syncs`
    where the host waits for the device; `variants` seconds a step with something switched, `as it is` beside
    them; `others` the card before the script started; `overflow` how it ran out of memory.
    """

    step: float
    shares: Mapping[str, float | None]
    startup: float = 0.0
    starts: float = 0.0
    ranks_here: int = 1
    steps: int = 0
    typical: float | None = None
    settled: float | None = None
    spread: float | None = None
    samples: float | None = None
    batches: float = 1.0
    compute: float | None = None
    compute_spread: float | None = None
    from_memory: tuple[float, float | None] | None = None
    loader: float | None = None
    loader_with: tuple[int, float] | None = None
    step_with: tuple[int, float, float | None] | None = None
    resized: tuple[tuple[int, float, int | None], ...] = ()
    fresh: tuple[Allocations, ...] = ()
    drawn: LoaderFacts | None = None
    making: Mapping[str, Any] = field(default_factory=dict)
    epochs: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None
    made: tuple[float, ...] = ()
    batch_bytes: int | None = None
    dataset: int | None = None
    unkept: str | None = None
    padding: float | None = None
    recompiled: tuple[int, float] | None = None
    growth: float | None = None
    grown: float | None = None
    more_work: float | None = None
    stalls: float | None = None
    stall_every: int | None = None
    rare_stalls: float | None = None
    process: Mapping[str, Any] = field(default_factory=dict)
    host: Mapping[str, Any] = field(default_factory=dict)
    throttled: float | None = None
    cores: float | None = None
    foreign: float | None = None
    memory: Memory | None = None
    sizes: Sizes | None = None
    threads: Threads | None = None
    one_thread: float | None = None
    ending: Ending | None = None
    generator: Generator | None = None
    reread: Reread | None = None
    stub: Stub | None = None
    copied: Copied | None = None
    trace: Trace | None = None
    syncs: tuple[Sync, ...] | None = None
    variants: Mapping[str, float] | None = None
    others: Others | None = None
    allocator: Allocator | None = None
    clocks: Clocks | None = None
    overflow: Overflow | None = None
    together: Together | None = None
    """What several ranks do together; None of a script alone."""
    overhead: Mapping[str, Any] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def wait(self) -> float:
        """Seconds of a step that the loop waits for data; 0 where no loader was seen."""
        share = self.shares.get("wait")
        return share * self.step if share else 0.0

    @property
    def waits_known(self) -> bool:
        """Whether waiting for data was measured: not where no loader was seen."""
        return self.shares.get("wait") is not None

    @property
    def starting(self) -> float:
        """The share of a step that starting workers costs: up to an epoch's first batch, less its making."""
        if self.drawn is not None and self.drawn.persistent:
            return 0.0
        return max(0.0, self.startup - self.starts * (self.make or 0.0) / self.step)

    @property
    def lost(self) -> float:
        """The share of a step that is lost to waiting for data, workers starting up apart; 0 if not measured.

        No more than what held batches would save; and all of that where the cores are full, since what the
        loop itself does takes longer beside its workers; not where their start or their threads fill them.
        """
        waiting = max(0.0, (self.shares.get("wait") or 0.0) - self.starting)
        if self.compute is None:
            return waiting
        saved = max(0.0, 1 - self.compute / self.step)
        used, otherwise = (self.cores or 0.0) + (self.foreign or 0.0), max(self.starting, self.freed or 0.0)
        full = self.workers and self.own_cores is not None and used >= FULL * self.own_cores
        return saved if full and waiting >= ALARM > otherwise else min(waiting, saved)

    @property
    def again(self) -> Pass | None:
        """Samples read again, where as much was asked for as at first: no dataset that remembers its own."""
        if self.reread is None or self.reread.again.asked is None:
            return None
        again, first = self.reread.again, self.making.get("bytes") or 0.0
        return again if first < _NO_READING or (again.asked or 0.0) >= 0.5 * first else None

    @property
    def workers(self) -> int:
        """Worker processes that make batches; 0 where the loop does it itself."""
        return (self.drawn.workers or 0) if self.drawn is not None else 0

    @property
    def make(self) -> float | None:
        """Seconds that making a batch takes whoever makes it; None where no batch was told of."""
        if not self.making.get("batches"):
            return None
        return sum(self.making.get(name) or 0.0 for name in ("read", "transform", "collate", "queued"))

    def part_of_making(self, name: str) -> float:
        """A part's share of making a batch."""
        return (self.making.get(name) or 0.0) / self.make if self.make else 0.0

    def calls(self, name: str) -> float | None:
        """Calls of a kind for each sample; None where samples were not counted."""
        if not self.samples or not self.making.get("batches"):
            return None
        return float(self.making.get("calls", {}).get(name, 0.0)) / (self.samples / self.batches)

    @property
    def streams(self) -> bool:
        """Whether its loader draws from an IterableDataset, as far as that is known."""
        return self.drawn is not None and bool(self.drawn.iterable)

    @property
    def on_gpu(self) -> bool | None:
        """Whether the model is on a GPU; None where that was not looked at."""
        found: bool | None = self.process.get("on_gpu")
        return found

    @property
    def own_cores(self) -> float | None:
        """Cores that the script may use at once, by the machine, its quota and the mask that it has now."""
        bounds = [self.host.get("usable_cores"), self.process.get("affinity")]
        return min((float(bound) for bound in bounds if bound is not None), default=None)

    @property
    def crowded(self) -> bool:
        """Whether threads of one kind, those of the process or of its workers, are more than the cores."""
        if self.threads is None or self.own_cores is None:
            return False
        main, worker = self.threads.main, self.threads.worker or 1
        beside = worker * self.threads.workers
        return (main > 1 and main > self.own_cores) or (worker > 1 and beside > self.own_cores)

    @property
    def freed(self) -> float | None:
        """The share of a step that one thread in each process saves; None where that was not tried."""
        if self.one_thread is None:
            return None
        return max(0.0, 1 - self.one_thread / (self.step * (1 - self.startup)))

    def saturates(self, cores: float) -> bool:
        """Whether the process and its workers use nearly all of so many cores."""
        return self.cores is not None and self.cores >= FULL * cores

    @property
    def busy(self) -> float | None:
        """CPU time over wall time where batches are made: 1 is computing, 0 is waiting for something."""
        if not self.make:
            return None
        return float(self.making.get("cpu") or 0.0) / self.make


def read(
    record: Record,
    messages: Sequence[Message],
    host: Mapping[str, Any],
    more: Mapping[str, Any],
    number: int | None = None,
) -> Evidence | None:
    """What a record and the messages of its diagnosis tell of one rank, the first unless told otherwise.

    None where not one step was made, and the run's ending tells nothing either.
    """
    number = min(record.ranks) if number is None else number
    rank = record.ranks[number]
    mine = [one for one in messages if len(record.ranks) == 1 or one.rank == number]
    told = {message.kind: message.body for message in mine}
    began = told.get("began", {}).get("t")
    ended = told.get("observed", {}).get("t")
    all_steps = deque(rank.steps(), maxlen=MOST_STEPS)
    if began is None and len(all_steps) == MOST_STEPS:
        began = all_steps[0].t
    steps = _between(all_steps, began, ended)
    lines = list(rank.resources())
    if not steps:
        return _without_steps(rank.about, mine, lines, host, more)
    seconds = [step.seconds for step in steps]
    drawn = _drawn(told.get("observed", {}).get("loaders") or rank.about.get("loaders") or [])
    workers = (drawn[1].workers or 0) if drawn is not None else 0
    making, epochs = Making(), Epochs(None if drawn is None else drawn[1].length)
    made: deque[float] = deque(maxlen=_MOST_BATCHES)

    def fetched(since: float | None) -> Iterator[Batch]:
        for batch in rank.batches():
            if (drawn is None or batch.loader == drawn[0]) and _within(batch.t, since, ended):
                yield batch

    # Of batches that workers take long over none may have been begun since.
    for batch in fetched(began if any(True for _ in fetched(began)) else None):
        making.add(batch)
        epochs.add(batch)
        made.append(batch.read + batch.transform + batch.collate + (batch.queued or 0.0))
    per_step = 1.0
    fed = [step for step in steps if step.samples is not None]
    samples = fmean(step.samples for step in fed if step.samples is not None) if fed else None
    if told.get("observed", {}).get("draws"):
        per_step = max(1.0, told["observed"]["draws"] / len(steps))
    elif drawn is not None and drawn[1].batch_size and samples:
        per_step = max(1.0, round(samples / drawn[1].batch_size))
    resources = [line for line in lines if _within(line["t"], began, ended)]
    missing = {**(told.get("storage", {}).get("missing") or {}), **(more.get("missing") or {})}
    updates = told.get("observed", {}).get("updates")
    on_device = read_device(mine, resources, more.get("cards") or (), steps=len(steps), updates=updates)
    missing.update(missing_of(mine))
    process = {k: v for k, v in told.get("observed", {}).items() if k not in _NOT_OF_THE_PROCESS}
    if process.get("on_gpu"):
        process["context_bytes"] = context_bytes(mine, on_device["others"])
    own = own_steps(steps, rank.meetings())
    part = sum(step.seconds for step in own) / sum(seconds)
    stalls, every = stalls_of(own)
    filling = _filling(drawn, making)
    compute, compute_spread = replayed(
        all_steps, told.get("replay"), missing, workers=workers, filling=filling
    )
    held, held_spread = replayed(all_steps, told.get("from_memory"), {}, workers=workers, filling=filling)
    if "unheld" in told:
        missing["from memory"] = told["unheld"]["why"]
    begun = [step for step in steps if step.startup]
    # A loop that makes its own batches starts nothing: the first of an epoch takes as long as any.
    alone = drawn is not None and drawn[1].workers == 0
    growth = growth_of([step.seconds - (step.wait or 0.0) for step in own])
    return Evidence(
        step=fmean(seconds),
        shares=_shares(steps),
        startup=0.0 if alone else sum(step.startup for step in begun) / sum(seconds),
        starts=len(begun) / len(steps),
        ranks_here=max(ranks_beside(record, number), process.get("world") or 1),
        steps=len(steps),
        typical=median(seconds),
        spread=spread_of(seconds),
        samples=samples,
        batches=per_step,
        settled=settled_step(steps, workers),
        compute=compute,
        compute_spread=compute_spread,
        from_memory=None if held is None else (held, held_spread),
        loader=_scaled(drained(told.get("drain"), missing), per_step),
        loader_with=more.get("loader_with"),
        step_with=more.get("step_with"),
        drawn=None if drawn is None else drawn[1],
        making=making.to_json() if making.batches else {},
        epochs=epochs.compared(),
        made=tuple(made),
        batch_bytes=_batch_bytes(told),
        dataset=told.get("batch", {}).get("dataset"),
        unkept=told.get("storage", {}).get("unkept"),
        padding=read_padding(told),
        recompiled=_recompiled(told),
        growth=growth[0],
        grown=_scaled(growth[1], part),
        more_work=more_work_of(told.get("observed", {}).get("work") or ()),
        stalls=_scaled(stalls, part),
        stall_every=every,
        rare_stalls=_scaled(rare_stalls_of(own), part),
        process=process,
        host=host,
        throttled=_throttled(resources),
        cores=cores_used(resources),
        foreign=foreign_cores(lines, began, ended),
        memory=read_memory(lines, told.get("drain", {}).get("sized") or ()),
        sizes=with_tried(read_sizes(lines), more.get("worker_with")),
        threads=read_threads(resources, told.get("observed", {}).get("threads")),
        one_thread=more.get("one_thread"),
        ending=more.get("ending"),
        generator=read_generator(told.get("generator")),
        **on_device,
        reread=read_reread(told.get("storage", {})),
        stub=read_stub(told.get("storage", {})),
        overhead=rank.about.get("overhead") or {},
        missing=missing,
    )


def _without_steps(
    about: Mapping[str, Any],
    messages: Sequence[Message],
    lines: Sequence[Mapping[str, Any]],
    host: Mapping[str, Any],
    more: Mapping[str, Any],
) -> Evidence | None:
    """What is known of a run that died before a step could be observed, where its ending tells something."""
    told = {message.kind: message.body for message in messages}
    on_device = read_device(messages, lines, more.get("cards") or (), steps=0)
    if more.get("ending") is None and on_device["overflow"] is None:
        return None
    drawn = _drawn(about.get("loaders") or [], fed=False)
    return Evidence(
        step=inf,
        shares=dict.fromkeys(PHASES),
        drawn=None if drawn is None else drawn[1],
        batch_bytes=_batch_bytes(told),
        host=host,
        memory=read_memory(lines),
        ending=more.get("ending"),
        **on_device,
        missing={"replay": "the script died before", "drain": "the script died before"},
    )


def _filling(drawn: tuple[int, LoaderFacts] | None, making: Making) -> float:
    """Seconds for which workers go on once nobody draws: each has so many batches to make."""
    if drawn is None or not drawn[1].workers or not making.batches:
        return 0.0
    made = sum(making.spent.get(name, 0.0) for name in ("read", "transform", "collate", "queued"))
    return (drawn[1].prefetch or 2) * made / making.batches


def _batch_bytes(told: Mapping[str, Mapping[str, Any]]) -> int | None:
    """Of the held batches, in the mean; of the first one where none were held."""
    held = told.get("batch", {}).get("bytes")
    return told.get("first", {}).get("bytes") if held is None else held


def _between(steps: Iterable[Step], began: float | None, ended: float | None) -> list[Step]:
    """Those of the observed part; of a record alone, all but the first, which is no step like the others."""
    if began is None:
        return list(steps)[1:]
    return [step for step in steps if step.t > began and (ended is None or step.t <= ended + 1e-3)]


def _shares(steps: Iterable[Step]) -> dict[str, float | None]:
    steps = list(steps)
    total = sum(step.seconds for step in steps)
    shares: dict[str, float | None] = {
        name: sum(getattr(step, name) or 0.0 for step in steps) / total for name in PHASES
    }
    if all(step.wait is None for step in steps):
        shares["wait"] = None
    return shares


def _drawn(loaders: Sequence[Mapping[str, Any]], *, fed: bool = True) -> tuple[int, LoaderFacts] | None:
    """The loader that fed most steps; `fed=False`: of one step not made, any that has workers will do."""
    trained = [loader for loader in loaders if loader.get("fed" if fed else "num_workers")]
    if not trained:
        return None
    loader = max(trained, key=lambda one: one.get("fed") or 0)
    return int(loader["id"]), LoaderFacts(
        name=loader["name"],
        workers=loader.get("num_workers"),
        batch_size=loader.get("batch_size"),
        persistent=loader.get("persistent_workers"),
        prefetch=loader.get("prefetch_factor"),
        pinned=loader.get("pin_memory"),
        epochs=loader.get("epochs") or 0,
        length=loader.get("length"),
        iterable=loader.get("iterable"),
    )


def _within(t: float, began: float | None, ended: float | None) -> bool:
    return (began is None or t >= began) and (ended is None or t <= ended)


def _recompiled(told: Mapping[str, Mapping[str, Any]]) -> tuple[int, float] | None:
    """Graphs compiled while the loop was observed, and the share of that time; None without torch.compile."""
    before, after = told.get("began", {}).get("compiled"), told.get("observed", {}).get("compiled")
    if before is None or after is None:
        return None
    wall = told["observed"]["t"] - told["began"]["t"]
    return after[0] - before[0], min(1.0, (after[1] - before[1]) / wall) if wall > 0 else 0.0


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by


def _throttled(resources: Sequence[Mapping[str, Any]]) -> float | None:
    """Of the periods of a CPU quota, the share in which it was used up; None without a quota."""
    lines = [line for line in resources if line.get("throttled_periods") is not None]
    if len(lines) < 2:
        return None
    periods = (lines[-1].get("quota_periods") or 0) - (lines[0].get("quota_periods") or 0)
    throttled = lines[-1]["throttled_periods"] - lines[0]["throttled_periods"]
    return throttled / periods if periods else None


def cores_used(resources: Sequence[Mapping[str, Any]]) -> float | None:
    """Cores that the process and its workers had, in the mean; those that ended are children waited for."""
    if len(resources) < 2 or resources[-1]["t"] <= resources[0]["t"]:
        return None
    spent = [
        sum((one.get("cpu_s") or 0.0) + (one.get("children_cpu_s") or 0.0) for one in living)
        for living in ((line, *(line.get("processes") or ())) for line in (resources[0], resources[-1]))
    ]
    return max(0.0, spent[1] - spent[0]) / float(resources[-1]["t"] - resources[0]["t"])
