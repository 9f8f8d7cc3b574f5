"""Lines at which the host waits for the device, by torch's own warnings (`torch.cuda.set_sync_debug_mode`).

Which line of the script it was is asked while the warning is shown: torch gives it out on the way back to
Python, with the frames still there. Copies to the device are left out: what they cost is told elsewhere.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from stoker.doctor.experiments.condition import Condition

_WARNING = "called a synchronizing CUDA operation"
_NOTICE = "Synchronization debug mode is a prototype feature"
_OURS = str(Path(__file__).parents[2])
_TORCH = str(Path(torch.__file__).parent)
_MOST_LINES = 5


class SyncLines(Condition):
    """A few steps in which every wait is warned of."""

    warm = 0
    steps = 3
    most = 0.5

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._lines: Counter[str] = Counter()

    def enter(self) -> None:
        """Listen, and have torch warn."""
        self._shown, self._synchronize = warnings.showwarning, torch.cuda.synchronize
        self._as_they_were = warnings.catch_warnings()
        self._as_they_were.__enter__()
        warnings.filterwarnings("ignore", message=_NOTICE)
        warnings.filterwarnings("always", message=_WARNING)
        warnings.showwarning = self._show
        torch.cuda.synchronize = self._observed_synchronize
        torch.cuda.set_sync_debug_mode("warn")

    def leave(self) -> None:
        """As it was."""
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize = self._synchronize
        self._as_they_were.__exit__(None, None, None)

    def tell(self, seconds: float, steps: int) -> None:
        """Tell the lines, the most frequent first."""
        lines = [(line, count / steps) for line, count in self._lines.most_common(_MOST_LINES)]
        self._tell("syncs", lines=lines)

    def _show(self, message: Any, *args: Any, **kwargs: Any) -> None:
        if _WARNING not in str(message):
            self._shown(message, *args, **kwargs)
            return
        self._note(sys._getframe(1))

    def _observed_synchronize(self, *args: Any, **kwargs: Any) -> None:
        self._note(sys._getframe(1))
        self._synchronize(*args, **kwargs)

    def _note(self, frame: FrameType | None) -> None:
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(_OURS):
                moved = frame.f_locals.get("self")
                if isinstance(moved, torch.Tensor) and moved.is_cpu:
                    return  # `.to()` of the observer: a copy to the device
            elif not name.startswith((_TORCH, "<")) and "warnings.py" not in name:
                self._lines[f"{Path(name).name}:{frame.f_lineno}"] += 1
                return
            frame = frame.f_back
