"""Host memory registered with the driver: a GPU reads it by its host address, and copies from it run behind.

Not `pin_memory()`, which would copy it, and rounds its size up to a power of two.
"""

import os

import torch

from stoker.feed.tiers.pack import Bytes

# cudaHostRegisterPortable | cudaHostRegisterMapped
_FLAGS = 3


class Registered:
    """Registrations of this process. `end` only after the last read of the memory has finished."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pid = os.getpid()
        self._memory: list[Bytes] = []

    def add(self, memory: Bytes) -> str:
        """Have the driver pin this memory; what stood in the way, if anything did."""
        with torch.cuda.device(self._device):
            code = int(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, _FLAGS))
        if not code:
            self._memory.append(memory)
            return ""
        try:
            torch.zeros(1, device=self._device)  # the error is told once more, to who asks next: let it be us
        except RuntimeError:
            pass
        return f"the driver did not register {memory.nbytes} bytes (CUDA error {code})"

    @property
    def ours(self) -> bool:
        """Not in a forked child: it has no CUDA, and the registrations are its parent's."""
        return os.getpid() == self._pid

    def end(self) -> None:
        """Let go of all of it."""
        while self._memory and self.ours:
            torch.cuda.cudart().cudaHostUnregister(self._memory.pop().ctypes.data)
