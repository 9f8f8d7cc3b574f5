"""The most memory that a training had: of its card by torch's counters, on a CPU of the whole process."""

import ctypes
import gc
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
# What the kernel takes as "begin the high-water mark of resident memory anew" (proc(5)).
_HIGH_WATER = "5"


class Peak:
    """The most bytes in use since `begin`; `read` is None where that cannot be told."""

    def __init__(self) -> None:
        self._device = torch.device("cpu")
        self._begun = False

    def begin(self, device: torch.device) -> None:
        """Count from now on."""
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self._begun = True
            return
        # Another system, or a sandbox, may have no such mark: it would be of whatever ran before.
        self._begun = _RESET.exists()
        if self._begun:
            _give_back()
            try:
                _RESET.write_text(_HIGH_WATER)
            except OSError:
                self._begun = False

    def read(self) -> int | None:
        """So far."""
        if not self._begun:
            return None
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return None


def _give_back() -> None:
    """What was freed and the C library keeps for later is resident still: give it back to the system."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
