"""In the script's process: how much a step is given to compute with, told now and then.

Steps that take longer and longer keep something from one to the next, or there is more in each: only what
goes in tells the two apart, and not every loop has a loader to ask.
"""

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from stoker.doctor.padding import share_of_padding

# Seconds from one look to the next. A hook that all modules have slows their calls by some microseconds: it
# stays until the first of them is called with tensors, and then goes.
_EVERY = 0.1


class Work:
    """Elements of the tensors that the first module of a step is called with, and how many are padding.

    `padding` are shares, of steps in which they look like tokens.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.padding: list[float] = []
        self._looks: Any = None
        self._due = 0.0

    def stepped(self) -> None:
        """A step is over: look at the next one, if it is time to."""
        now = time.perf_counter()
        if self._looks is None and now >= self._due:
            self._due = now + _EVERY
            self._looks = register_module_forward_pre_hook(self._called)

    def stop(self) -> None:
        """Look at no more of them."""
        self._due = float("inf")
        if self._looks is not None:
            self._looks.remove()
            self._looks = None

    def _called(self, module: Any, given: Any) -> None:
        tensors = list(_tensors(given))
        size = sum(tensor.numel() for tensor in tensors)
        if size and self._looks is not None:
            self.sizes.append(size)
            # On a device the question would wait for it.
            padding = share_of_padding([[one for one in tensors if one.device.type == "cpu"]])
            if padding is not None:
                self.padding.append(padding)
            self._looks.remove()
            self._looks = None


def _tensors(given: Any) -> Iterator[torch.Tensor]:
    """Those in it, also within lists and dicts."""
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, dict):
        for one in given.values():
            yield from _tensors(one)
    elif isinstance(given, (list, tuple)):
        for one in given:
            yield from _tensors(one)
