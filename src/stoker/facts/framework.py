"""Torch: its build, and the flags that bear on speed, as they stand in this process.

Nothing here makes a CUDA context, changes a flag, or provokes one of torch's warnings.
"""

import os
import sys
from importlib import import_module
from typing import Any

from stoker.facts.values import Torch

# The variables that bear on speed; the values of these alone are shown.
VARIABLES = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "CUBLAS_WORKSPACE_CONFIG",
    "HIP_VISIBLE_DEVICES",
    "KMP_AFFINITY",
    "MKL_NUM_THREADS",
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OPENBLAS_NUM_THREADS",
    "PYTHONDEVMODE",
    "PYTHONMALLOC",
    "PYTHONTRACEMALLOC",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCHDYNAMO_DISABLE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_COMPILE_DEBUG",
    "TORCH_CPP_LOG_LEVEL",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_LOGS",
    "TORCH_NCCL_BLOCKING_WAIT",
)


def read() -> Torch:
    """Read torch's build and flags; a torch that does not import is a fact too."""
    env = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    try:
        torch = import_module("torch")
    except (ImportError, OSError, RuntimeError) as error:
        return Torch(version=None, reason=f"torch does not import: {error}", env=env)
    cuda = torch.backends.cuda
    cudnn = torch.backends.cudnn
    return Torch(
        version=str(torch.__version__),
        build=_build(torch),
        cuda=torch.version.cuda or torch.version.hip,
        cudnn=_cudnn_version(torch),
        # Counted through NVML where it can be: is_available() would call cuInit, after which no fork is safe.
        cuda_available=torch.cuda.device_count() > 0,
        mps_available=bool(torch.backends.mps.is_available()),
        in_use=bool(torch.cuda.is_initialized()),
        devices=own_contexts(),
        # The older getters (allow_tf32, get_float32_matmul_precision) raise once the newer setters were used.
        matmul_precision=_precision(torch, cuda.matmul),
        conv_precision=_precision(torch, cudnn.conv),
        cudnn_benchmark=bool(cudnn.benchmark),
        cudnn_deterministic=bool(cudnn.deterministic),
        deterministic=bool(torch.are_deterministic_algorithms_enabled()),
        anomaly_mode=bool(torch.is_anomaly_enabled()),
        debugger=sys.gettrace() is not None,
        threads=int(torch.get_num_threads()),
        interop_threads=int(torch.get_num_interop_threads()),
        env=env,
    )


def own_contexts() -> tuple[str, ...]:
    """Return the uuids of the GPUs on which this process already holds memory; wakes no sleeping CUDA."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return ()
    held = []
    for index in range(torch.cuda.device_count()):
        if torch.cuda.memory_reserved(index) > 0:
            uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
            if uuid is not None:
                held.append(str(uuid).removeprefix("GPU-"))
    return tuple(held)


def _build(torch: Any) -> str:
    if torch.version.hip:
        return "rocm"
    return "cuda" if torch.version.cuda else "cpu"


def _cudnn_version(torch: Any) -> int | None:
    # The public version() asks every device for its capability, and so makes a context (seen with 2.11).
    library = getattr(torch._C, "_cudnn", None) if torch.backends.cudnn.is_available() else None
    return None if library is None else int(library.getVersionInt())


def _precision(torch: Any, backend: Any) -> str | None:
    """Return "tf32" or "ieee" for a backend; one that says "none" takes the setting above it."""
    for owner in (backend, torch.backends):
        found = getattr(owner, "fp32_precision", None)
        if found not in (None, "none"):
            return str(found)
    return "ieee" if hasattr(backend, "fp32_precision") else None
