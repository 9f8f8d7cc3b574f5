"""Runs a script by its path and notes when it makes steps: `probe.py SCRIPT ARGS ...`.

Imports nothing of Stoker. PROBE_OUT names the file that is written at the end; the end is PROBE_STEPS
optimizer steps or PROBE_SECONDS after the first, whichever comes first, and ends the process at once.
"""

import hashlib
import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

_OUT = Path(os.environ["PROBE_OUT"])
# The first rank ends them all: one that ended before it would leave it in the middle of a collective.
_FIRST = os.environ.get("RANK", "0") == "0"
_STEPS = int(os.environ["PROBE_STEPS"])
_SECONDS = float(os.environ["PROBE_SECONDS"])
_times: list[float] = []


def _note(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    _times.append(time.perf_counter())
    if len(_times) >= _STEPS or _times[-1] - _times[0] >= _SECONDS:
        _OUT.write_text(json.dumps({"times": _times, "digest": _digest(optimizer), "uss": _uss()}))
        sys.stdout.flush()
        os._exit(0)


def _digest(optimizer: torch.optim.Optimizer) -> str:
    told = hashlib.sha256()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            told.update(parameter.detach().contiguous().cpu().numpy().tobytes())
    return told.hexdigest()


def _uss() -> list[int]:
    """The private bytes of each process that this one started."""
    return [child.memory_full_info().uss for child in psutil.Process().children()]


if __name__ == "__main__":
    if _FIRST:
        register_optimizer_step_post_hook(_note)
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
