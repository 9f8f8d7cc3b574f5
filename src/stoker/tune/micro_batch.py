"""The fastest micro-batch that fits: by trials in child processes, never a size that did not run.

A batch is gone through in a whole number of parts, so that is what is searched: doubled until a part fits,
doubled on while smaller parts are faster, then halved between the fastest and its neighbours.
What counts is samples a second: the largest part that fits may be slower than half of it.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

from stoker.changes import Kind
from stoker.errors import TrialFailed
from stoker.scratch import Guards
from stoker.tune.meaning import Meaning, Probe, has_batch_norm, judge, take
from stoker.tune.micro_found import MicroBatch
from stoker.tune.micro_proof import LEAST_RUNS, check, prove
from stoker.tune.micro_trial import IDLE_SECONDS, MicroTrial, hold
from stoker.tune.trial import VRAM_SHARE

# A batch larger than any: the first trial is of the script's own, whole.
_WHOLE = 1 << 24
# Rates nearer than this are alike, and the smaller part, which needs less memory, is taken.
_ALIKE = 0.02
_MOST_TRIALS = 12
_PROBED_UPDATES = 3
# What comes after the search: runs of the fastest and the whole in turn, and probes, which take no longer.
_PROOF, _PROBES = 2 * LEAST_RUNS, 3
# Of a trial after its first updates, the least and the most, and what part of the budget: of 60 s one.
_TRIAL_SECONDS, _TRIAL_SHARE = (1.0, 4.0), 0.02
# How many times as long as the longest run so far a size's first update may take, beyond the time of others.
_STARTS = 3.0
# For the first trial of a budget that is none.
_LEAST_SECONDS = 5.0

Hold = Callable[[int], MicroTrial]


def find_micro_batch(
    command: Sequence[str],
    *,
    budget: float = 300.0,
    guards: Guards | None = None,
    ranks: int = 1,
    seconds: float | None = None,
    allow_optimization: bool = False,
    offline: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> MicroBatch:
    """Find it for a script, in so many seconds: `find_micro_batch(["train.py", "--lr", "0.1"])`.

    `guards` stop a trial that nears the memory that it may have; with several `ranks` all run the same size,
    and one that does not fit on one of them fits on none. Parts must be faster than the whole batch beyond
    doubt, where that fits, and make the weights that larger ones make; `allow_optimization` takes them with
    BatchNorm too, where they do not. A trial is of `seconds`, by the budget where they are None.
    """
    clock = _Clock(deadline=time.monotonic() + budget)
    limits = guards or Guards(vram_fraction=VRAM_SHARE)
    least, most = _TRIAL_SECONDS
    each = min(most, max(least, budget * _TRIAL_SHARE)) if seconds is None else seconds
    with tempfile.TemporaryDirectory(prefix="stoker-") as home:

        def held(size: int) -> MicroTrial:
            tell(f"micro-batch of {size}" if size < _WHOLE else "the batch as it is")
            with clock.noting() as run:
                return hold(
                    command,
                    size,
                    folder=Path(home) / str(run),
                    seconds=each,
                    most=max(_LEAST_SECONDS, clock.left),
                    start=clock.start,
                    guards=limits,
                    ranks=ranks,
                    offline=offline,
                )

        def again(size: int) -> MicroTrial | None:
            if not clock.allows(1 + _PROBES):
                return None
            return replace(held(_WHOLE), size=size) if size >= search.batch else held(size)

        def checked(size: int, beside: int | None) -> Meaning:
            tell(f"micro-batch of {size}: what it means")
            plain = {} if beside is None else {"micro_batch": beside}

            def of(settings: Mapping[str, int]) -> Probe:
                # Parts draw what is dropped otherwise, and no worse: all the rest must be the same.
                left = max(1.0, clock.left)
                return take(
                    command,
                    settings,
                    steps=_PROBED_UPDATES,
                    most=left,
                    dropout=False,
                    ranks=ranks,
                    offline=offline,
                )

            before = [of(plain) for _ in range(2)]
            changed = of({"micro_batch": size})
            asked = allow_optimization and has_batch_norm(changed)
            kind: Kind = "optimization" if asked else "numerics"
            return judge(kind, changed, before, by_weights=True)

        search = _Search(hold=held, in_time=lambda: clock.allows(1 + search.proof))
        found = search.find()
        return check(prove(found, again), search.reference(found), checked)


@dataclass
class _Clock:
    """The time that is left, and what is begun in it: nothing that cannot end, by what runs took before."""

    deadline: float
    longest: float = 0.0
    runs: int = 0

    @property
    def left(self) -> float:
        """In seconds; below 0 when it is over."""
        return self.deadline - time.monotonic()

    @property
    def start(self) -> float | None:
        """How long a size may take to its first update; the first run has all its time for it."""
        return IDLE_SECONDS + _STARTS * self.longest if self.runs > 1 else None

    def allows(self, runs: int) -> bool:
        """Whether so many more can end in time."""
        return self.left > runs * self.longest

    @contextmanager
    def noting(self) -> Iterator[int]:
        """A run; its number."""
        began = time.monotonic()
        self.runs += 1
        yield self.runs
        self.longest = max(self.longest, time.monotonic() - began)


@dataclass
class _Search:
    """Goes through numbers of parts. `hold` is the seam: a fake of it is a machine."""

    hold: Hold
    in_time: Callable[[], bool]
    most_trials: int = _MOST_TRIALS
    batch: int = 0
    # Whether sizes are left out because the time is over.
    cut: bool = False
    tried: dict[int, MicroTrial] = field(default_factory=dict)

    def find(self) -> MicroBatch:
        """The fastest that ran."""
        whole = self.hold(_WHOLE)
        if whole.batch is None or whole.outcome == "failed":
            raise TrialFailed(
                f"the script could not be tried as it is ({whole.reason}). What to do: run it first as it "
                "stands; it must draw its batches from a DataLoader"
            )
        self.batch = whole.batch
        self.tried[1] = replace(whole, size=whole.batch)
        fits = self._fit()
        if fits is None:
            return self._nothing()
        self._go_down(fits)
        self._go_up()
        return self._best()

    def reference(self, found: MicroBatch) -> int | None:
        """A size that ran, to hold what was found beside: the largest other one."""
        sizes = [one.size for one in self.tried.values() if one.outcome == "ran" and one.size != found.size]
        return max(sizes, default=None)

    @property
    def proof(self) -> int:
        """How many runs come after the search: where the whole batch does not fit nothing is to be faster."""
        return _PROBES + (_PROOF if 1 in self.tried and self.tried[1].outcome == "ran" else 0)

    def _fit(self) -> int | None:
        """The first number of parts, doubled each time, that runs; None where none does."""
        parts = 1
        while (one := self._try(parts)).outcome != "ran":
            if one.outcome == "failed":
                raise TrialFailed(f"a micro-batch of {one.size} could not be tried: {one.reason}")
            if parts == self.batch or not self.in_time():
                return None
            parts = min(2 * parts, self.batch)
        return parts

    def _go_down(self, parts: int) -> None:
        """More parts of fewer samples, until that is slower twice."""
        slower = 0
        while slower < 2 and 2 * parts <= self.batch and self._may_try(2 * parts):
            parts *= 2
            one = self._try(parts)
            if one.outcome == "failed":
                return
            slower = slower + 1 if one.rate is None or one.rate < self._rate(self._fastest()) else 0

    def _go_up(self) -> None:
        """Halve what lies between the fastest and its neighbours that were tried."""
        while True:
            at = self._fastest()
            known = sorted(self.tried)
            below = max((one for one in known if one < at), default=at)
            above = min((one for one in known if one > at), default=at)
            halves = [one for one in ((below + at) // 2, (at + above) // 2) if self._is_new(one)]
            if not halves or not self._may_try(halves[0]):
                return
            self._try(halves[0])

    def _is_new(self, parts: int) -> bool:
        """Parts by which the size differs by a sixteenth at least from all that was tried."""
        size = self._size(parts)
        return all(abs(size - one.size) > size // 16 for one in self.tried.values())

    def _may_try(self, parts: int) -> bool:
        if parts in self.tried:
            return True
        in_time = self.in_time()
        self.cut = self.cut or not in_time
        return in_time and len(self.tried) < self.most_trials

    def _try(self, parts: int) -> MicroTrial:
        if parts not in self.tried:
            self.tried[parts] = self.hold(self._size(parts))
        return self.tried[parts]

    def _size(self, parts: int) -> int:
        return ceil(self.batch / parts)

    def _fastest(self) -> int:
        """The number of parts with the best rate."""
        return max((at for at, one in self.tried.items() if one.outcome == "ran"), key=self._rate)

    def _rate(self, parts: int) -> float:
        return self.tried[parts].rate or 0.0

    def _best(self) -> MicroBatch:
        """Of those that are as fast as the fastest the whole batch, or what needs least memory."""
        best = self._rate(self._fastest())
        alike = [at for at, one in self.tried.items() if (one.rate or 0.0) >= best * (1 - _ALIKE)]
        parts = 1 if 1 in alike else max(alike)
        one = self.tried[parts]
        too_large = [other.size for other in self.tried.values() if other.outcome == "too large"]
        reason = f"the fastest of {len(self.tried)} sizes that were tried"
        if too_large:
            reason += f"; {min(too_large)} is too large"
        if failed := next((one for one in self.tried.values() if one.outcome == "failed"), None):
            reason += f"; {failed.size} could not be tried: {failed.reason}"
        if self.cut:
            reason += "; the time was up before others were: give a longer --budget"
        return self._found(one.size, one.rate, reason)

    def _nothing(self) -> MicroBatch:
        least = min(self.tried.values(), key=lambda one: one.size)
        last = f"not even {least.size}" if least.size == 1 else f"{least.size} neither, when time was over"
        return self._found(None, None, f"nothing fits, {last}: {least.reason}")

    def _found(self, size: int | None, rate: float | None, reason: str) -> MicroBatch:
        return MicroBatch(
            size=size,
            batch=self.batch,
            rate=rate,
            whole=self.tried[1].rate,
            reason=reason,
            trials=tuple(self.tried.values()),
        )
