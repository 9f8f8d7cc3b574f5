"""Which change to try next, by the diagnosis and by what was measured so far. Pure.

A change at a time, over what was kept before it. A number (workers, prefetch) is climbed: from where the
model says it is best, on up while that is faster, then down from the best as long. What the
evidence says cannot help is not tried, and said so.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from stoker.changes import ALL, Kind
from stoker.doctor.evidence import Evidence
from stoker.doctor.experiments.variants import AS_IT_IS, BF16, CHANNELS_LAST, TF32
from stoker.doctor.finding import ALARM
from stoker.doctor.model import Change, Interval, predict
from stoker.doctor.verdict import Verdict

# Headroom under which nothing more is worth a trial.
ENOUGH = 0.05
_WORKERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# Workers may sleep on reads: more than cores, where reads are what takes long.
_MOST_PER_CORE = 8
# Of a worker's time, for it to compute rather than to wait.
_BUSY = 0.6
# Of the step, for workers that start anew to be worth a trial.
_STARTUP = 0.02
# Seconds of an epoch: what is held is read in the first, so that a trial has to go through one.
_LONGEST_EPOCH = 60.0
# As the doctor's experiment calls them.
_SWITCHES = {"tf32": TF32, "autocast": BF16, "channels_last": CHANNELS_LAST}
# What else there is to ask for, and how.
_ASKED = ("batch_size", 'autocast = "fp16"', "in_order")
_ASK = "only when asked: write it into stoker.toml, under [changes], and take stoker run --with stoker.toml"

Finds = Literal["all", "workers"]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A change to try, why, and the rate that is predicted for it, as a ratio of the script's own.

    `predicted` is what the model says, corrected by what this search has measured; `modelled` the model's own
    word, which is what a calibration scores. `seconds` are those that its trial takes beyond another's.
    `lifts`: computing itself may be faster with it, so that the rate with held batches is no limit to it.
    """

    change: str
    value: Any
    why: str
    predicted: Interval | None = None
    modelled: Interval | None = None
    seconds: float = 0.0
    lifts: bool = False

    @property
    def name(self) -> str:
        """As it is written in the settings."""
        return f"{self.change} = {json.dumps(self.value)}"  # numbers, words, true and false: as in TOML


@dataclass
class Search:
    """Yields candidates; is told what came of each before the next.

    `errors` says by how much predictions for a change were wrong so far; `finds` which changes are wanted;
    `ranks` how many processes train side by side, each with its share of the cores.

    >>> for candidate in search.candidates():             # doctest: +SKIP
    ...     search.tell(candidate, was_faster)
    """

    verdict: Verdict
    run: Evidence
    kinds: frozenset[Kind]
    lacking: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    finds: Finds = "all"
    ranks: int = 1
    kept: dict[str, Any] = field(default_factory=dict)
    not_tried: list[str] = field(default_factory=list)
    _faster: dict[str, bool] = field(default_factory=dict)
    # By change: what was measured over what the model says.
    _off: dict[str, float] = field(default_factory=dict)

    def tell(self, candidate: Candidate, *, faster: bool, measured: float | None = None) -> None:
        """What came of a candidate: a ratio of the script's own rate. One that was faster is kept."""
        self._faster[candidate.name] = faster
        if measured is not None and candidate.modelled is not None:
            self._off[candidate.change] = measured / candidate.modelled.mid
        if faster:
            self.kept[candidate.change] = candidate.value

    def candidates(self) -> Iterator[Candidate]:
        """One after the other."""
        if self.finds == "workers":
            yield from self._workers()
            yield from self._prefetch()
            return
        for wanted in (
            self._threads,
            self._affinity,
            *((self._feed, self._workers) if self._feed_first else (self._workers, self._feed)),
            self._startup,
            self._prefetch,
            self._pinning,
            self._memory,
            self._collecting,
        ):
            yield from wanted()
        yield from self._numerics()
        self.not_tried += [f"{name}: {_ASK}" for name in _ASKED]

    # --- one change each ------------------------------------------------------------------------------------

    def _threads(self) -> Iterator[Candidate]:
        if self._named("thread-oversubscription"):
            why = "more threads than cores"
            yield from self._each("worker_threads", (1,), why)
            yield from self._each("threads", (self._cores, max(1, self._cores // 2)), why)

    def _affinity(self) -> Iterator[Candidate]:
        if self._named("cpu-affinity"):
            yield from self._each("worker_affinity", ("all",), "workers sit on fewer cores than there are")

    def _feed(self) -> Iterator[Candidate]:
        causes = [one.cause for one in self.verdict.named if any(cure.change == "feed" for cure in one.cures)]
        tiers: tuple[str, ...] = ("vram", "ram")
        if not causes and self.run.drawn is not None and self._named("pageable-copy"):
            causes, tiers = ["pageable-copy"], ("vram",)  # from where nothing is copied any more
        if not causes:
            if self.run.lost >= ALARM:
                self.not_tried.append("feed: it cures none of the causes that were found")
            return
        epoch = self._epoch
        if epoch is None or epoch > _LONGEST_EPOCH:
            long = "how long an epoch takes is not known" if epoch is None else f"one takes {epoch:.0f} s"
            self.not_tried.append(
                f"feed: samples are held from the second epoch on, and {long}; set it by hand: "
                '[changes] feed = "ram", or "disk" for a set that does not fit into memory'
            )
            return
        for tier in tiers:
            if tier == "ram" or ALL["feed"].lacks(tier) is None:
                why = f"{causes[0]}: samples that were read once are held"
                cures = "pageable-copy" if tier == "vram" else None
                yield from self._each("feed", (tier,), why, cures=cures, seconds=epoch)
            if "feed" in self.kept:
                return

    def _workers(self) -> Iterator[Candidate]:
        if self.run.drawn is None or self.run.drawn.workers is None:
            self.not_tried.append("num_workers: the diagnosis saw no DataLoader being drawn from")
            return
        if "feed" in self.kept:
            self.not_tried.append("num_workers, prefetch_factor: samples are held, there is nothing to read")
            return
        if self.run.lost < ALARM:
            self.not_tried.append(
                f"num_workers: {self.run.lost:.0%} of the step is lost to waiting for batches"
            )
            return
        if self.run.workers and (with_more := self.verdict.eliminated.get("too-few-workers")):
            self.not_tried.append(f"num_workers: more won't help: {with_more}")
            fewer = [count for count in _WORKERS if count <= self._cores and count < self.run.workers]
            if not self._sleeps and fewer:
                yield from self._each("num_workers", (fewer[-1],), "more workers than cores, and all compute")
            return
        ladder = self._ladder()
        start = self._best_predicted(ladder)
        if start is None:
            self.not_tried.append("num_workers: none is predicted to gain")
            return
        yield from self._climb("num_workers", ladder, start, "the loop waits for batches")

    def _startup(self) -> Iterator[Candidate]:
        if "feed" in self.kept:
            return
        share = self._starting
        if share >= _STARTUP and not (self.run.drawn is not None and self.run.drawn.persistent):
            why = f"{share:.0%} of the time workers are being started"
            yield from self._each("persistent_workers", (True,), why)
            if self._named("worker-startup"):
                yield from self._each("start_method", ("forkserver", "fork"), why)

    def _prefetch(self) -> Iterator[Candidate]:
        workers = self.kept.get("num_workers", self.run.workers)
        if not workers or self.run.lost < ALARM or "feed" in self.kept:
            return
        had = (self.run.drawn.prefetch if self.run.drawn is not None else None) or 2
        ladder = [value for value in (1, 2, 4, 8, 16) if value != had]
        start = min((value for value in ladder if value > had), default=None)
        if start is not None:
            yield from self._climb("prefetch_factor", ladder, start, "batches take unevenly long to make")

    def _pinning(self) -> Iterator[Candidate]:
        pinned = self.run.drawn.pinned if self.run.drawn is not None else None
        if self.kept.get("feed") == "vram":
            self.not_tried.append("pin_memory: samples are on the device, there is nothing to copy")
        elif pinned is not None and self._named("pageable-copy"):
            why = "copies to the device take long"
            yield from self._each("pin_memory", (not pinned,), why, cures="pageable-copy")

    def _memory(self) -> Iterator[Candidate]:
        if self._named("allocator-churn"):
            why = "memory is taken and given back"
            yield from self._each("allocator", ("expandable_segments",), why, cures="allocator-churn")
        batch = self.run.drawn.batch_size if self.run.drawn is not None else None
        if self._named("vram-overflow") and batch is not None and batch > 1:
            ran = sorted({samples for samples, _, _ in self.run.resized if samples < batch}, reverse=True)
            sizes = ran[:2] or [size for size in (batch // 2, batch // 4) if size]
            yield from self._each("micro_batch", sizes, "a part of a batch at a time needs less memory")

    def _collecting(self) -> Iterator[Candidate]:
        for named in self.verdict.named:
            if any(cure.change == "scheduled_gc" for cure in named.cures):
                why = "a rank collects garbage while the others wait for it"
                yield from self._each("gc_freeze", (True,), why, cures=named.cause)

    def _numerics(self) -> Iterator[Candidate]:
        if self.run.lost >= ALARM and not self.kept:
            self.not_tried.append("precision, layout, compile: the loop waits for data, not for the device")
            return
        why = "computing is what takes long"
        for change, value in (("tf32", True), ("autocast", "bf16"), ("channels_last", True)):
            if by := self._is_fast_enough(change):
                self.not_tried.append(f"{change}: it won't help: {by}")
            else:
                yield from self._each(change, (value,), why)
        yield from self._each("fused_optimizer", (True,), why)
        yield from self._each("cudnn_benchmark", (True,), why)
        yield from self._each("compile", ("default",), why)
        if self._named("tiny-batch"):
            yield from self._each("compile", ("reduce-overhead",), "launching is what takes long")

    def _is_fast_enough(self, change: str) -> str | None:
        """By what the doctor ruled out that a switch of precision or layout helps; None where it did not.

        It measures steps with each switch, on a GPU. Without one it looks for float64, which tells nothing
        of half precision.
        """
        by = self.verdict.eliminated.get("slow-precision")
        if by is None or not self.run.on_gpu:
            return None
        known = self.run.variants or {}
        own, switched = known.get(AS_IT_IS), known.get(_SWITCHES[change])
        if own is None:
            return by
        return by if switched is not None and switched > (1 - ENOUGH) * own else None

    # --- how values are gone through ------------------------------------------------------------------------

    def _climb(self, change: str, ladder: Sequence[int], start: int, why: str) -> Iterator[Candidate]:
        """From a value up while it is faster, then down from the best, while that is."""
        at = ladder.index(start)
        yield from self._each(change, (start,), why)
        while self.kept.get(change) == ladder[at] and at + 1 < len(ladder):
            at += 1
            yield from self._each(change, (ladder[at],), why)
        at = ladder.index(self.kept.get(change, start))
        while at > 0:
            at -= 1
            yield from self._each(change, (ladder[at],), why)
            if self.kept.get(change) != ladder[at]:
                return

    def _each(
        self, change: str, values: Sequence[Any], why: str, *, cures: str | None = None, seconds: float = 0.0
    ) -> Iterator[Candidate]:
        """Those that are allowed, can be had here, and were not tried yet.

        `cures` is the cause that they are tried for, where that may lie in computing.
        """
        known = ALL[change]
        lifts = known.kind in ("numerics", "optimization") or any(
            one.computes and one.cause == cures for one in self.verdict.named
        )
        if known.kind not in self.kinds:
            self.not_tried.append(f"{change}: of kind {known.kind}; allow it with --allow {known.kind}")
            return
        for value in values:
            reason = self.lacking.get(change) or known.lacks(value)
            if reason is not None:
                self.not_tried.append(f"{change}: {reason}")
                continue
            candidate = Candidate(
                change=change,
                value=value,
                why=why,
                predicted=self._predicted(change, value),
                modelled=self._modelled(change, value),
                seconds=seconds,
                lifts=lifts,
            )
            if candidate.name not in self._faster:
                yield candidate

    # --- what is known beforehand ---------------------------------------------------------------------------

    def _named(self, cause: str) -> bool:
        return any(one.cause == cause for one in self.verdict.named)

    @property
    def _epoch(self) -> float | None:
        """Seconds that an epoch takes; None where the loader has no length."""
        drawn = self.run.drawn
        return None if drawn is None or drawn.length is None else drawn.length * self.run.step

    @property
    def _feed_first(self) -> bool:
        """Whether held samples are predicted to be faster than any number of workers."""
        held = self._predicted("feed", "ram")
        if held is None or self.run.drawn is None or self.run.drawn.workers is None:
            return False
        told = [self._predicted("num_workers", count) for count in self._ladder()]
        return all(one is None or one.mid < held.mid for one in told)

    @property
    def _cores(self) -> int:
        return max(1, int(self.run.host.get("usable_cores") or 1) // self.ranks)

    @property
    def _starting(self) -> float:
        """Of the time, the share in which workers are being started: of more workers it is more.

        By the model alone: what each change was off by would be a share of its own.
        """
        if "num_workers" not in self.kept:
            return self.run.startup
        now = self._modelled("num_workers", self.kept["num_workers"])
        then = self._modelled("persistent_workers", True)
        return self.run.startup if now is None or then is None else 1 - now.mid / then.mid

    @property
    def _sleeps(self) -> bool:
        """Whether workers wait for something, rather than compute."""
        return self.run.busy is None or self.run.busy < _BUSY

    def _ladder(self) -> list[int]:
        most = self._cores * (_MOST_PER_CORE if self._sleeps else 2)
        return [count for count in _WORKERS if count <= most and count != self.run.workers] or [1]

    def _best_predicted(self, ladder: Sequence[int]) -> int | None:
        """The fewest workers within two in a hundred of the best that is predicted; None where none gains."""
        rates = {
            count: told.mid for count in ladder if (told := self._predicted("num_workers", count)) is not None
        }
        if not rates:
            return (
                ladder[0]
                if not self.run.workers
                else min((c for c in ladder if c > self.run.workers), default=None)
            )
        best = max(rates.values())
        if best < 1.02:
            return None
        return min(count for count, rate in rates.items() if rate >= 0.98 * best)

    def _predicted(self, change: str, value: Any) -> Interval | None:
        """What the model says, corrected by what was measured so far."""
        told, off = self._modelled(change, value), self._off_by(change)
        if told is None:
            return None
        return Interval(low=told.low * off, mid=told.mid * off, high=told.high * off)

    def _modelled(self, change: str, value: Any) -> Interval | None:
        """Of this and what is kept, beside the script as it is."""
        together = [*(Change(change=c, value=v) for c, v in self.kept.items() if c != change)]
        told = predict(self.run, [*together, Change(change=change, value=value)], self.errors)
        if told is None:
            return None
        rate = self.verdict.rate
        return Interval(low=told.rate.low / rate, mid=told.rate.mid / rate, high=told.rate.high / rate)

    def _off_by(self, change: str) -> float:
        """By the last trial of that change, else of what was kept last: what it rests on is the same."""
        known = (self._off[name] for name in (change, *reversed(self.kept)) if name in self._off)
        return next(known, 1.0)
