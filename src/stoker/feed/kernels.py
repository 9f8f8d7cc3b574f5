"""Kernels that are tried before they are used: where one does not run, what it replaces goes on."""

import warnings
from importlib import import_module
from importlib.util import find_spec
from subprocess import SubprocessError
from types import ModuleType

import torch


def tried_on(device: torch.device, name: str, instead: str) -> ModuleType | None:
    """That module of kernels, if its `try_on` holds on this device; else None, with a warning that says what
    is done `instead`. Silent where there is no GPU or no triton: nobody expects a kernel there."""
    if device.type != "cuda" or find_spec("triton") is None:
        return None
    module = import_module(f"stoker.feed.{name}")  # imports triton, which only CUDA builds of torch bring
    try:
        module.try_on(device)
    except (RuntimeError, OSError, SubprocessError) as error:  # no compiler, a card too old, a full disk
        warnings.warn(
            f"the GPU's {name} cannot be used here ({error}): {instead}. Triton needs a C compiler and a "
            "writable cache folder (TRITON_CACHE_DIR).",
            RuntimeWarning,
            stacklevel=4,
        )
        return None
    return module
