"""What memory a run needs with some changes, by the budget of the run as it is. Pure; unmeasured is None."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.doctor.budget import Budget, ram_with, vram_for
from stoker.doctor.evidence import Evidence

# Changes after which the card, or the host, holds other things than what was measured there.
_OF_THE_CARD = frozenset({
    "accumulate", "allocator", "amp", "autocast", "channels_last", "checkpointing", "compile", "detach",
    "dtype", "feed", "fp16_gradients", "gpu_transform", "keep_cache", "pad",
})  # fmt: skip
_OF_THE_HOST = frozenset({"feed", "memory_map", "pack"})


def vram_need(run: Evidence, budget: Budget, changes: Mapping[str, Any]) -> int | None:
    """Bytes of the card; of another batch the most that it may turn out to be, or the peak that it had."""
    if _OF_THE_CARD & set(changes):
        return None
    if "batch_size" not in changes:
        return budget.vram.peak
    size = changes["batch_size"]
    if size is None:
        return None
    told = vram_for(budget.vram, size)
    if told is not None:
        return told.high
    peak = next((peak for samples, _, peak in run.resized if samples == size), None)
    return None if peak is None else peak + (budget.vram.context or 0)


def ram_need(run: Evidence, budget: Budget, changes: Mapping[str, Any]) -> int | None:
    """Bytes of the host: queues grow with the batches in them, in number and in size."""
    drawn, ram = run.drawn, budget.ram
    if _OF_THE_HOST & set(changes):
        return None
    if drawn is None or not changes.keys() & {"batch_size", "prefetch_factor", "pin_memory"}:
        return ram_with(ram, changes.get("num_workers"))
    ahead = 2 if drawn.prefetch is None else drawn.prefetch
    then, size = changes.get("prefetch_factor", ahead), changes.get("batch_size", drawn.batch_size)
    if then is None or ram.each_queue is None or not ahead:
        return None
    batch = ram.each_queue / ahead
    if "batch_size" in changes:
        if size is None or not drawn.batch_size:
            return None
        batch *= size / drawn.batch_size
    pinned = round(batch) if changes.get("pin_memory", drawn.pinned) else None
    return ram_with(replace(ram, each_queue=round(then * batch), pinned=pinned), changes.get("num_workers"))
