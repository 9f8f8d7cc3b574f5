"""A process of `stoker bench resumes`: one rank of a training, or a staging, to be killed at any moment."""

import faulthandler
import multiprocessing
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from stoker.bench.resumes_draws import Start
from stoker.bench.resumes_places import Page, Telling
from stoker.bench.resumes_task import Ledger, LedgerConfig, settings
from stoker.errors import BenchFailed
from stoker.feed.sources.objects import Store
from stoker.feed.stage import Selection, Stage
from stoker.feed.tiers.pack import ROWS
from stoker.train.fit import fit

# Exit codes: told to stop, as `stoker train` has it; a sample that is not as it was written.
STOPPED, DAMAGED = 128 + signal.SIGTERM, 3
# What a training imports when it first needs it: a server that forks ranks has it all beforehand.
PRELOADED = (
    "stoker.bench.resumes_rank", "lightning.fabric", "lightning.fabric.strategies", "torchmetrics",
    "safetensors.torch", "torch._dynamo", "xxhash",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Where a chain's files are, and what stays the same in all of its starts."""

    folder: Path
    device: Literal["cpu", "cuda"]
    salt: int
    seed: int
    shuffle: str
    dropout: float

    @property
    def origin(self) -> Path:
        """The set as it was made."""
        return self.folder / "origin"

    @property
    def data(self) -> Path:
        """The set as it was staged."""
        return self.folder / "staged"

    @property
    def cache(self) -> Path:
        """For caches on disk."""
        return self.folder / "cache"

    def config(self, start: Start) -> LedgerConfig:
        """The settings of a start."""
        return LedgerConfig(
            data=self.data,
            salt=self.salt,
            tier=start.tier,
            cache=self.cache if start.is_cached else None,
            workers=start.workers,
            shuffle=self.shuffle,
            dropout=self.dropout,
            train=settings(device=self.device, seed=self.seed, micro_batch=start.micro_batch),
        )


@dataclass(frozen=True, kw_only=True)
class Post:
    """A process's own: where it tells of itself, which rank it is, and the port where ranks meet."""

    page: Path
    log: Path
    rank: int = 0
    port: int = 0


def train(chain: Chain, start: Start, out: Path, post: Post) -> None:
    """Train one rank to the end, from wherever the training stands."""
    telling = _begin(post)
    # A pool of threads would not be there in a reader that is forked, and has another order of sums.
    torch.set_num_threads(1)
    multiprocessing.set_start_method("spawn" if start.fresh else "fork", force=True)
    if start.ranks > 1:
        os.environ.update(_as_torchrun(start, post))
    if start.way == "direct":
        _empty_page_cache(chain.cache)
    task = Ledger(chain.config(start), telling.enter_phase)
    try:
        with telling.watching():
            ended = fit(task, out=out).ended
    except BenchFailed as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(DAMAGED)
    sys.exit(STOPPED if ended == "stopped" else 0)


def stage(chain: Chain, post: Post) -> None:
    """Copy the set to where it is trained from."""
    telling = _begin(post)
    with telling.watching():
        outcome = Stage(Store(chain.origin), chain.data, Selection(jobs=2)).run()
    sys.exit(1 if outcome.failed else 0)


def _begin(post: Post) -> Telling:
    # A session of its own: what it leaves behind is known by that.
    os.setsid()
    log = os.open(post.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    telling = Telling(Page(post.page))
    telling.enter_phase("start")
    return telling


def _as_torchrun(start: Start, post: Post) -> dict[str, str]:
    """What torchrun tells its ranks; the store by which they meet is its own, and so it is here."""
    return {
        "TORCHELASTIC_RUN_ID": f"resumes-{post.port}",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(post.port),
        "RANK": str(post.rank),
        "LOCAL_RANK": str(post.rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(start.ranks),
        "LOCAL_WORLD_SIZE": str(start.ranks),
    }


def _empty_page_cache(folder: Path) -> None:
    """Rows of a cache are on the disk alone: they are read past the page cache then."""
    for rows in folder.glob(f"*/{ROWS}"):
        with rows.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
