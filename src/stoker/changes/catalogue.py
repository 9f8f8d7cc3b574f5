"""All changes, by id."""

from stoker.changes import (
    allocator,
    autocast,
    batch_size,
    channels_last,
    compiled,
    cudnn_benchmark,
    feed_tier,
    fused_optimizer,
    gc_freeze,
    in_order,
    lr_rule,
    micro_batch,
    num_workers,
    persistent_workers,
    pin_memory,
    prefetch_factor,
    start_method,
    tf32,
    threads,
    worker_affinity,
    worker_threads,
)
from stoker.changes.change import Change

ALL: dict[str, Change] = {
    module.CHANGE.id: module.CHANGE
    for module in (
        num_workers,
        prefetch_factor,
        persistent_workers,
        start_method,
        pin_memory,
        in_order,
        feed_tier,
        worker_threads,
        worker_affinity,
        threads,
        gc_freeze,
        tf32,
        autocast,
        channels_last,
        cudnn_benchmark,
        compiled,
        fused_optimizer,
        allocator,
        micro_batch,
        batch_size,
        lr_rule,
    )
}
