"""The fastest micro-batch that fits: by trials in child processes, never a size that did not run.

A batch is gone through in a whole number of parts, so that is what is searched: doubled until a part fits,
doubled on while smaller parts are faster, then halved between the fastest and its neighbours.
What counts is samples a second: the largest part that fits may be slower than half of it.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from pathlib import Path

from stoker.changes import Kind
from stoker.errors import TrialFailed
from stoker.scratch import Guards
from stoker.tune.meaning import Meaning, judge, take
from stoker.tune.micro_found import MicroBatch
from stoker.tune.micro_proof import check
from stoker.tune.micro_trial import MicroTrial, hold

# A batch larger than any: the first trial is of the script's own, whole.
_WHOLE = 1 << 24
# Rates nearer than this are alike, and the smaller part, which needs less memory, is taken.
_ALIKE = 0.02
_MOST_TRIALS = 12
# Of the card: a size that fits to the last byte does not fit for long, with fragments, or samples that vary.
_VRAM = 0.95
_PROBED_UPDATES = 3

Hold = Callable[[int], MicroTrial]


def find_micro_batch(
    command: Sequence[str],
    *,
    budget: float = 300.0,
    guards: Guards | None = None,
    ranks: int = 1,
    seconds: float = 4.0,
    allow_optimization: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> MicroBatch:
    """Find it for a script: `find_micro_batch(["train.py", "--lr", "0.1"])`.

    `guards` stop a trial that nears the memory that it may have; with several `ranks` all run the same size,
    and one that does not fit on one of them fits on none. Parts must make the weights that larger ones make;
    `allow_optimization` takes them with BatchNorm too, where they do not.
    """
    deadline = time.monotonic() + budget
    limits = guards or Guards(vram_fraction=_VRAM)
    with tempfile.TemporaryDirectory(prefix="stoker-") as home:

        def held(size: int) -> MicroTrial:
            tell(f"micro-batch of {size}" if size < _WHOLE else "the batch as it is")
            most = max(20.0, deadline - time.monotonic())
            folder = Path(home) / str(size)
            return hold(command, size, folder=folder, seconds=seconds, most=most, guards=limits, ranks=ranks)

        def checked(size: int, beside: int | None) -> Meaning:
            tell(f"micro-batch of {size}: what it means")
            plain = {} if beside is None else {"micro_batch": beside}
            # Parts draw what is dropped otherwise, and no worse: all the rest must be the same.
            of = partial(take, command, steps=_PROBED_UPDATES, dropout=False, ranks=ranks)
            before = [of(plain) for _ in range(2)]
            changed = of({"micro_batch": size})
            kind: Kind = "optimization" if allow_optimization else "numerics"
            return judge(kind, changed, before, by_weights=True)

        search = _Search(hold=held, in_time=lambda: time.monotonic() < deadline)
        found = search.find()
        return check(found, search.reference(found), checked)


@dataclass
class _Search:
    """Goes through numbers of parts. `hold` is the seam: a fake of it is a machine."""

    hold: Hold
    in_time: Callable[[], bool]
    most_trials: int = _MOST_TRIALS
    batch: int = 0
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
        return parts in self.tried or (len(self.tried) < self.most_trials and self.in_time())

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
