"""The ids of all causes: every one has cases in the ward, or a reason why not."""

INPUT = (
    "storage-latency", "cold-cache", "read-amplification", "reopened-files", "query-per-sample",
    "cpu-transform", "too-few-workers", "no-overlap", "worker-startup", "per-sample-overhead", "handoff",
    "copy-on-access", "ram-pressure", "small-shm", "padding-waste",
)  # fmt: skip
HOST = (
    "cpu-quota", "cpu-affinity", "thread-oversubscription", "loop-stall", "growing-state", "debug-left-on",
    "shape-recompute",
)  # fmt: skip
DEVICE = (
    "host-sync", "tiny-batch", "pageable-copy", "gpu-contention", "vram-overflow", "allocator-churn",
    "slow-precision", "throttled-clocks", "straggler", "interconnect",
)  # fmt: skip
CAUSES = (*INPUT, *HOST, *DEVICE)
