"""What is asked of a loop on a GPU after the drain, in order: each where those before it leave it open."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from stoker.doctor.experiments.condition import Condition
from stoker.doctor.experiments.copy import LEAST_BYTES, move_again
from stoker.doctor.experiments.resize import sizes
from stoker.doctor.experiments.syncs import SyncLines
from stoker.doctor.experiments.trace import Traced
from stoker.doctor.experiments.variants import variants
from stoker.doctor.held import Held
from stoker.watch.observer import Observer

# A device that is idle for most of a step gains nothing by computing faster.
_BUSY = 0.5
# Less than one sync in so many steps, and no line is looked for.
_FEW_SYNCS = 0.2


def conditions(
    observer: Observer,
    held: Held | None,
    tell: Callable[..., None],
    *,
    step: float,
    emptied: bool,
    end: Callable[[BaseException], None],
    sizes_alone: bool = False,
) -> Iterator[Condition]:
    """The driver's account first, which decides what else is worth asking; other sizes last: they may raise.

    `held` is None where the loop's data does not come from one loader, `step` what a step took while the loop
    was observed.
    """
    if observer.device is None:
        return
    if not sizes_alone:
        yield from _on_its_own_batches(observer, held, tell, step=step, emptied=emptied)
    if held is not None:
        yield from sizes(held, tell, end, observer.device.index)


def _on_its_own_batches(
    observer: Observer, held: Held | None, tell: Callable[..., None], *, step: float, emptied: bool
) -> Iterator[Condition]:
    traced = Traced(tell, step)
    yield traced
    trace = traced.trace
    if torch.cuda.is_initialized() and (trace is None or trace.syncs >= _FEW_SYNCS):
        yield SyncLines(tell)
    copied = 0.0 if trace is None else trace.pageable_bytes + trace.pinned_bytes
    if copied >= LEAST_BYTES:
        move_again(round(copied), tell)
    roots: Any = observer.roots.modules()
    precision = trace is None or trace.busy_share >= _BUSY
    yield from variants(held, tell, roots=roots, precision=precision, emptied=emptied)
