"""In the script's process: what is true of it now that it trains."""

import os
import sys
from typing import Any

import torch

from stoker.doctor.world import world_size
from stoker.watch.observer import Observer


def about_process(observer: Observer) -> dict[str, Any]:
    """Its parameters by their types, its threads and cores, and what makes it slow by being on."""
    kinds: dict[str, int] = {}
    for optimizer in observer._optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = str(parameter.dtype).removeprefix("torch.")
                kinds[name] = kinds.get(name, 0) + parameter.numel()
    return {
        "parameters": kinds,
        "on_gpu": observer.device is not None,
        "autotune": torch.backends.cudnn.benchmark,
        "anomaly": torch.is_anomaly_enabled(),
        "profiler": bool(torch._C._autograd._profiler_enabled()),
        "tracer": _is_traced(),
        "threads": torch.get_num_threads(),
        "world": world_size(),
        "affinity": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "launch_blocking": os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"),
    }


def _is_traced() -> bool:
    """Whether Python calls back for its lines or calls, as debuggers, coverage and its own profilers ask."""
    traced = sys.gettrace() is not None or sys.getprofile() is not None
    if sys.version_info >= (3, 12):
        watching = sys.monitoring
        tools = (watching.DEBUGGER_ID, watching.COVERAGE_ID, watching.PROFILER_ID)
        traced |= any(watching.get_tool(tool) is not None and watching.get_events(tool) for tool in tools)
    return traced
