"""`killed.py WORKLOAD FOLDER CALLS [key=value …]`: train, and die by SIGKILL in the loss after so many calls.

With 0 calls it trains to the end.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stoker import workloads
from stoker.train.config_file import load
from stoker.train.fit import fit
from stoker.train.task import Losses


def main() -> None:
    """Train as the arguments say."""
    name, folder, calls, *words = sys.argv[1:]
    torch.set_num_threads(1)
    workload = workloads.find(name)
    task = workload.task(load(workload.config, None, words))
    inner, left = task.loss, int(calls)

    def loss(model: nn.Module, batch: Any) -> Losses:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return inner(model, batch)

    task.loss = loss  # type: ignore[method-assign]
    fit(task, out=Path(folder))


if __name__ == "__main__":
    main()
