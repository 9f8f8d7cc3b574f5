"""What the scripts in this folder share: a feed whose samples carry their numbers, and a file of what came.

Each script is `SCRIPT OUT [CHECKPOINT]`. It trains two epochs ("whole") and keeps a checkpoint in OUT in the
middle of the second; then it begins again with all things new, from that checkpoint or the one given, and
trains what is left ("resumed"). Every rank writes the numbers that it was handed.
"""

import atexit
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stoker import Feed
from stoker.feed.sources.base import Indices, Source

LENGTH, GLOBAL_BATCH, EPOCHS = 45, 8, 2
STEPS = -(-LENGTH // GLOBAL_BATCH)
SAVED_AT = STEPS + 2  # steps trained when the checkpoint is kept
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Numbered(Source):
    """Samples that carry their number."""

    def __len__(self) -> int:
        return LENGTH

    def read(self, indices: Indices) -> Any:
        numbers = torch.from_numpy(indices.copy())
        return {"x": numbers[:, None] * torch.ones(4), "labels": numbers}

    def fingerprint(self) -> str:
        return "numbered"


class Net(nn.Module):
    """Takes x and labels, returns its loss first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.layer(x / LENGTH)
        return out.square().mean(), labels


def make_feed(**options: Any) -> Feed:
    """The feed of every script: the global batch stays, however many ranks there are."""
    settings = {"global_batch_size": GLOBAL_BATCH, "shuffle": True, "seed": 3, "device": "cpu"}
    return Feed(Numbered(), **{**settings, **options})


def kept(name: str) -> Path:
    """Where this run keeps its checkpoint."""
    return Path(sys.argv[1]) / name


def checkpoint(name: str) -> Path:
    """The one to resume from: of this run, or of the one that was given."""
    return Path(sys.argv[-1]) / name


def tell(training: str, epoch: int, batch: Any, rank: int = RANK) -> None:
    """Write down which samples came."""
    line = {"training": training, "epoch": epoch, "numbers": batch["labels"].tolist()}
    with kept(f"rank{rank}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def tell_fact(name: str, value: Any) -> None:
    """Write down something seen, on rank 0."""
    if RANK == 0:
        with kept("facts.jsonl").open("a") as file:
            file.write(json.dumps({name: value}) + "\n")


def end() -> None:
    """Leave without the interpreter's own end, in which a thread of gloo's may abort the process.

    It may still hold a tensor then, and wants the interpreter to let go of it. 2 of 30 runs of a plain
    DataLoader under DistributedDataParallel ended so, with their process group destroyed. Nothing of the
    feed's is passed over: what is to be done at exit is done.
    """
    atexit.unregister(end)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
