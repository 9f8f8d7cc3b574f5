"""What the training thread notes down as it goes, for the reader to make sense of.

A note is four values in a flat list: what happened, when (`perf_counter_ns`), what tells the device's time
there (a moment), and one more thing as said below. Taking a note costs one call; everything that can be
worked out later is, in another process (`scribe.py`). A list of numbers, and not of objects: objects bring
the garbage collector's rounds on (44 young ones in an observed stretch of 2,100 steps, none in a bare one,
when each step left some), and numbers travel as they are.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

Note: TypeAlias = tuple[int, int, Any, Any]
Take: TypeAlias = Callable[[Note], None]
WIDTH = 4
# What another thread than the training one drew: when, ITER_BEGINS or DRAW_ENDS, the loader's id, samples.
Aside: TypeAlias = tuple[int, int, int, int | None]

# What tells the device's time at a note: the number of an event (`device.EventLog`); or that the device had
# nothing to do then; or, with None, nothing.
Moment: TypeAlias = int | None
IDLE = -1

(
    ITER_BEGINS,  # the loader's id
    DRAW_BEGINS,  # the loader's id
    EVALUATION_DRAW_BEGINS,  # the loader's id: a `next()` with gradients off
    DRAW_ENDS,  # samples in the batch
    DRAW_FAILS,  # `next()` gave no batch; or `iter()` has ended
    FORWARD_BEGINS,
    ANSWERED,  # a forward with gradients off
    BACKWARD_BEGINS,
    UPDATE_BEGINS,
    UPDATE_ENDS,  # the optimizer's id; None for an update that was only captured
    CLOSURE_BEGINS,  # the loop's own code, called by an optimizer
    WAIT_BEGINS,  # the thread blocks on another
    COPY_BEGINS,
    COPY_WAS_NONE,  # what looked like a copy moved nothing
    COPIED_BESIDE,  # the number of a pair of events on another stream
    GRAPH_BEGINS,
    GRAPH_ENDS,  # the id of the optimizer whose update was captured in it, or None
    PHASE_ENDS,  # which of the above it ends
    LOOP_BEGINS,  # whether on another thread than before; what came before was set-up
    STEP_MARKED,  # the loop itself says that a step has ended
    PAUSE_ENDS,  # what came since the last step is nobody's
    DEVICE_FOUND,  # its index
    OPTIMIZERS_KNOWN,  # how many
    ARRIVED,  # at a collective of all ranks: its bytes and kind (`packed`)
    RELEASED,  # from it; False where it was none to wait for
    COLLECTED,  # nanoseconds for which garbage was collected until then
) = range(26)

# Collectives: gradients that DistributedDataParallel brings together, buffers that it brings into line, and
# the functions of torch.distributed.
DDP, BUFFERS = range(2)
FUNCTIONS = (
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter",
    "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier",
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list",
)  # fmt: skip
_COLLECTIVES = ("ddp", "buffers", *FUNCTIONS)
_KIND_BITS = 5


def packed(kind: int, size: int | None) -> int:
    """A collective as a note holds it: one number for its kind and its bytes, where those are known."""
    return (0 if size is None else size + 1) << _KIND_BITS | kind


def unpacked(more: int) -> tuple[str, int | None]:
    """The collective's kind in words, and its bytes."""
    size = more >> _KIND_BITS
    return _COLLECTIVES[more & ((1 << _KIND_BITS) - 1)], size - 1 if size else None
