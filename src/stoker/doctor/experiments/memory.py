"""The card's memory as the script uses it: caches that it empties, and how it runs out."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

_ASKED = re.compile(r"Tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB|TiB)")
_REFUSED = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
_ADVICE = "If reserved but unallocated memory is large"
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


class Emptied:
    """Counts calls of `torch.cuda.empty_cache()`, and knows the line of the last."""

    def __init__(self) -> None:
        self.calls = 0
        self.line: str | None = None
        self._empty = torch.cuda.empty_cache
        torch.cuda.empty_cache = self._counted

    def _counted(self) -> None:
        self.calls += 1
        caller = sys._getframe(1)
        self.line = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
        self._empty()


def bytes_asked(text: str) -> int | None:
    """What an out-of-memory error says was asked for."""
    found = _ASKED.search(text)
    return None if found is None else round(float(found[1]) * _UNITS[found[2]])


def without_advice(text: str) -> str:
    """An out-of-memory error without torch's advice on fragments, and where to read on about it."""
    return text.split(_ADVICE)[0].strip()


def tell_of_overflow(tell: Callable[..., None], loaders: Callable[[], list[dict[str, Any]]]) -> None:
    """Have it told when the script dies because the card's memory is used up.

    The error's frames still hold what the step had allocated, so the allocator's counters are those of the
    moment.
    """
    shown = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _is_overflow(error) and torch.cuda.is_initialized():
            device = torch.cuda.current_device()
            fraction = getattr(torch.cuda.memory, "get_per_process_memory_fraction", None)
            total = torch.cuda.get_device_properties(device).total_memory
            tell(
                "overflow",
                asked=bytes_asked(str(error)),
                reserved=torch.cuda.max_memory_reserved(device),
                allowed=None if fraction is None else round(total * fraction(device)),
                text=without_advice(str(error).splitlines()[0]),
                loaders=loaders(),
                **about_device(device),
            )
        shown(kind, error, trace)

    sys.excepthook = excepthook


def _is_overflow(error: BaseException) -> bool:
    """Also where a library, and not torch's allocator, was refused memory."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _REFUSED)


def about_device(device: int) -> dict[str, Any]:
    """Which card it is, so that what the driver says of it can be joined."""
    return {
        "uuid": str(torch.cuda.get_device_properties(device).uuid),
        "name": torch.cuda.get_device_name(device),
    }


def held_there(device: int) -> dict[str, Any]:
    """Bytes in use on the card, by whomever, and those that torch's allocator has reserved of them.

    None of the latter, and why, with another allocator, which counts nothing.
    """
    free, total = torch.cuda.mem_get_info(device)
    try:
        return {"used": total - free, "reserved": torch.cuda.memory_reserved(device)}
    except RuntimeError as error:
        return {"used": total - free, "reserved": None, "why": str(error).splitlines()[0]}
