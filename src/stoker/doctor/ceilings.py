"""How fast a run would be after its causes are cured, one after the other. Pure.

Causes that cost the same waiting are not added up: what is left of it is what the loader still takes, by
the parts of making a batch that remain. What the loop itself does is its own, and its shares are added up.
None of that makes a step shorter than the model needs, or than the loader does that works beside it.
"""

from stoker.doctor.causes import loop_stall
from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import Found
from stoker.doctor.remains import loader_left, saved_by

# Causes whose cure makes the loader faster than it was when it was drained.
OF_THE_LOADER = frozenset({
    "storage-latency", "cold-cache", "read-amplification", "reopened-files", "query-per-sample",
    "cpu-transform", "too-few-workers", "no-overlap", "per-sample-overhead", "handoff", "ram-pressure",
    "small-shm", "cpu-quota", "cpu-affinity", "thread-oversubscription",
})  # fmt: skip
# Of what a model takes, what must be left of it, whatever lies in computing.
_LEAST = 0.01


class After:
    """A run of which more and more is cured."""

    def __init__(self, run: Evidence) -> None:
        self._run = run
        self._frees: dict[str, float] = {}
        self._takes = 1.0
        self._beside = bool(run.workers)
        self._loader_known = run.loader is not None
        self._bounded = False
        # Shares of the step that are saved: waiting by the causes alone, and what the loop itself did.
        self._waiting = self._of_the_loop = 0.0
        self._compute = run.compute
        self._computes = False

    def cure(self, cause: str, found: Found) -> float | None:
        """Steps a second with this one cured as well; None where its share, or what is left, is not known."""
        self._bounded |= found.computes or cause == loop_stall.ID
        if cause in OF_THE_LOADER:
            self._cure_loader(found)
        elif found.share is not None:
            self._cure_loop(found.share, found)
        if found.share is None:
            return None
        run = self._run
        left = 1 - max(self._waiting, self._saved()) - self._of_the_loop
        if left <= 0 and (self._compute is None or self._computes or self._of_the_loop >= 1):
            return None  # they overlap: what they save together was not measured
        seconds = run.step * max(0.0, left)
        if self._compute is not None:
            # A replay is as slow as the loop that it is held in: no slower than that without what is cured.
            seconds = max(seconds, min(self._compute, run.step * (1 - self._of_the_loop)))
        if self._bounded and self._beside and self._loader_known:
            seconds = max(seconds, min(loader_left(run, self._frees, self._takes), run.step))
        return 1 / seconds

    def _cure_loader(self, found: Found) -> None:
        for name, part in found.frees.items():
            self._frees[name] = max(part, self._frees.get(name, 0.0))
        self._takes *= found.takes
        self._beside |= found.overlaps
        self._waiting = max(self._waiting, found.share or 0.0)
        # What it takes once others are cured, nobody told.
        told = bool(found.frees) or found.takes < 1 or found.overlaps
        self._loader_known &= told
        self._bounded |= told

    def _cure_loop(self, share: float, found: Found) -> None:
        self._of_the_loop += share
        self._computes |= found.computes
        if found.computes and self._compute is not None:
            self._compute -= min(share * self._run.step, (1 - _LEAST) * self._compute)

    def _saved(self) -> float:
        """The share of the step that the loader's own cures save together."""
        run = self._run
        if not self._frees and self._takes == 1 and self._beside == bool(run.workers):
            return 0.0
        return saved_by(run, self._frees, self._takes, beside=self._beside)
