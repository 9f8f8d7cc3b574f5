"""The causes, a file each: what speaks for one, what rules it out, what cures it.

A cause file has `ID`, `CURES`, and `judge(evidence)`, which answers Found, RuledOut, or None where what was
measured cannot tell.
"""

from types import ModuleType

from stoker.doctor.causes import (
    cpu_affinity,
    cpu_quota,
    cpu_transform,
    debug_left_on,
    growing_state,
    handoff,
    loop_stall,
    no_overlap,
    padding_waste,
    per_sample_overhead,
    query_per_sample,
    reopened_files,
    shape_recompute,
    slow_precision,
    storage_latency,
    too_few_workers,
    worker_startup,
)

ALL: tuple[ModuleType, ...] = (
    storage_latency,
    reopened_files,
    query_per_sample,
    cpu_transform,
    too_few_workers,
    no_overlap,
    worker_startup,
    per_sample_overhead,
    handoff,
    padding_waste,
    cpu_quota,
    cpu_affinity,
    loop_stall,
    growing_state,
    debug_left_on,
    shape_recompute,
    slow_precision,
)
