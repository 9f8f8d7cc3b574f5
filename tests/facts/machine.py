"""Facts made by hand: a healthy laptop, and what a test changes about it."""

from dataclasses import replace
from typing import Any

from stoker.facts.values import Facts, Gpu, Holder, Host, Pressure, Process, Torch

GIB = 1 << 30
CALM = Pressure(some_avg10=0.0, some_avg60=0.0, some_total_us=0)

LAPTOP = Facts(
    taken_at=0.0,
    process=Process(pid=100, user="ann", python="3.12.1"),
    host=Host(
        system="linux",
        cpus=2,
        affinity=(0, 1),
        cpuset_cores=2,
        usable_cores=2.0,
        throttled_periods=0,
        throttled_s=0.0,
        ram_total_bytes=8 * GIB,
        ram_available_bytes=2 * GIB,
        memory_free_bytes=2 * GIB,
        shm_total_bytes=4 * GIB,
        shm_free_bytes=4 * GIB,
        cpu_pressure=CALM,
        memory_pressure=CALM,
        io_pressure=CALM,
    ),
    gpus=(),
    gpu_reason="no NVIDIA driver library (NVML) on this machine",
    notebooks=(),
    strays=(),
    torch=Torch(
        version="2.13.0",
        build="cpu",
        cuda_available=False,
        matmul_precision="ieee",
        conv_precision="tf32",
        anomaly_mode=False,
        debugger=False,
        threads=2,
        env={},
    ),
    storage=None,
)


def with_host(**values: Any) -> Facts:
    return replace(LAPTOP, host=replace(LAPTOP.host, **values))


def with_torch(**values: Any) -> Facts:
    return replace(LAPTOP, torch=replace(LAPTOP.torch, **values))


def gpu(*holders: Holder, **values: Any) -> Gpu:
    given: dict[str, Any] = {
        "index": 0,
        "uuid": "GPU-1",
        "name": "NVIDIA H200",
        "driver": "580.1",
        "total_bytes": 80 * GIB,
        "used_bytes": sum(holder.bytes or 0 for holder in holders),
        "free_bytes": 0,
        "capability": (9, 0),
        "clock_reasons": ("idle",),
        "visible": True,
        "holders": holders,
    }
    return Gpu(**{**given, **values})


def with_gpu(card: Gpu, **process: Any) -> Facts:
    return replace(LAPTOP, gpus=(card,), gpu_reason=None, process=replace(LAPTOP.process, **process))
