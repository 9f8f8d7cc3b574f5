"""The loop with batches of other sizes: held ones, cut or repeated along their first dimension.

Whether a step grows with its batch, and how the memory does; more are tried where that is not yet a line that
holds. A size that raises is a missing point, and the last: an exception has gone through the loop by then,
so the run ends there (`Raised`), before a line of the script's own `except` runs and with all memory that the
exception keeps.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from stoker.doctor.experiments.condition import Condition
from stoker.doctor.held import RING, Held
from stoker.doctor.peaks import fit
from stoker.watch.hooks import count_samples

Tell = Callable[..., None]
# Of the card, by the largest size that ran and as if all of its memory grew with it.
_SURELY = 0.5


def sizes_for(samples: int) -> tuple[int, ...]:
    """Sizes to try, the safest first: its own, smaller ones, and twice as many; small batches only grow.

    A batch of 1 is told only where it is the loop's own: some layers take another way there.
    """
    smaller = [size for size in (samples // 2, samples // 4) if size >= 2]
    larger = [2 * samples] if len(smaller) == 2 else [2 * samples, 4 * samples]
    return (samples, *smaller, *larger)


def resized(batch: Any, samples: int) -> Any:
    """The batch with so many samples; None where its tensors are not rows of samples."""
    own = count_samples(batch)
    leaves, spec = tree_flatten(batch)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()]
    if not own or not tensors or any(len(leaf) != own for leaf in tensors):
        return None
    return tree_unflatten([_rows(leaf, own, samples) for leaf in leaves], spec)


def _rows(leaf: Any, own: int, samples: int) -> Any:
    if not isinstance(leaf, torch.Tensor) or not leaf.dim():
        return leaf
    rows = leaf[torch.arange(samples, device=leaf.device) % own]
    return rows.pin_memory() if leaf.is_pinned() else rows


class Resized(Condition):
    """Batches of so many samples for some steps; what a step took, and the most memory reserved, is told."""

    warm = 2
    steps = 8
    most = 0.6

    def __init__(self, held: Held, samples: int, tell: Tell, device: int | None) -> None:
        self.samples, self.peak = samples, 0
        self._tell, self._device = tell, device
        self._is_counted = False
        self.held = Held()
        for _ in range(RING):
            self.held.keep(resized(held.next(), samples))

    def enter(self) -> None:
        """What an earlier size left reserved is none of this one's."""
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
            try:
                torch.cuda.reset_peak_memory_stats(self._device)
                self._is_counted = True
            except RuntimeError:  # another allocator counts nothing: the point has no peak
                self._is_counted = False

    def tell(self, seconds: float, steps: int) -> None:
        """Tell the point."""
        peak = torch.cuda.max_memory_reserved(self._device) if self._is_counted else None
        self.peak = peak or 0
        self._tell("resized", samples=self.samples, seconds=seconds, peak=peak)


def sizes(
    held: Held, tell: Tell, end: Callable[[BaseException], None], device: int | None = None
) -> Iterator[Condition]:
    """A condition for each size, none where the batch cannot be cut; `end` is for what the loop raises."""
    batch = held.next()
    samples = count_samples(batch)
    if not samples or resized(batch, samples) is None:
        tell("unresized", why="the batch's tensors are not rows of samples")
        return
    points: list[tuple[int, int]] = []
    with Raised(end):
        for size in sizes_for(samples):
            yield (tried := Resized(held, size, tell, device))
            points.append((tried.samples, tried.peak))
        if all(peak for _, peak in points):
            for size in more_sizes(points, torch.cuda.mem_get_info(device)[1]):
                yield Resized(held, size, tell, device)


def more_sizes(points: Sequence[tuple[int, int]], total: int) -> tuple[int, ...]:
    """Sizes that peaks (samples, bytes) still need to make a line that holds, as far as they surely fit."""
    line = fit(points)
    if line.holds:
        return ()
    samples, most = max(points)
    return tuple(size for size in line.asks if size / samples * most < _SURELY * total)


class Raised:
    """Has what model or backward raises told, in place of going through the script's loop.

    `end` does not return. What the script's own code between them raises goes its way, and ends the script.
    """

    def __init__(self, end: Callable[[BaseException], None]) -> None:
        self._end = end
        self._call, self._backward = nn.Module._call_impl, torch.autograd.backward
        self._calls, self._goes_back = self._guarded(self._call), self._guarded(self._backward)

    def __enter__(self) -> None:
        nn.Module._call_impl = self._calls  # type: ignore[method-assign]
        torch.autograd.backward = self._goes_back

    def __exit__(self, *_: object) -> None:
        # Of a trial that ended amid the sizes this comes late, and others may stand there by then.
        if nn.Module._call_impl is self._calls:
            nn.Module._call_impl = self._call  # type: ignore[method-assign]
        if torch.autograd.backward is self._goes_back:
            torch.autograd.backward = self._backward

    def _guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return call(*args, **kwargs)
            except Exception as error:
                self._end(error)
                raise

        return guarded
