"""What the children of test_train_kills.py do: each trains one rank of a job, and may be killed at it.

A job is a folder: a checkpoint, and a cache on disk. Whoever starts goes on from the checkpoint, on whichever
tier and with however many ranks it is told. The checkpoint has the job's whole life in it: the samples that
its steps were made of, and their losses.

Ranks put their shares of a batch together and all make the same step: gradients that ranks add up would
round differently with each number of ranks, and hide what is looked for here.
"""

import json
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from feed.disk_nursery import PIECE, InMemory, make_source
from feed.nursery import serve
from stoker import Feed
from stoker.feed.tiers.pack import Pack
from stoker.feed.tiers.ram import SharedRows
from stoker.feed.whole_file import remove_leftovers, whole_file

SAMPLES, NUMBERS, GLOBAL_BATCH, EPOCHS = 200, 6_000, 16, 3
STEPS = -(-SAMPLES // GLOBAL_BATCH)  # the last with 8 samples, which 1, 2 and 4 ranks can share
SAVED_EVERY = 2
DAMAGED = 3
# The flags: the step at work (from 1; 0 before the first), and of each kind of write how many are under way.
STEP, KINDS = slice(0, 8), ("save", "disk", "ram")
UNDER_WAY = {kind: slice(8 * at, 8 * at + 8) for at, kind in enumerate(KINDS, 1)}


class Writes:
    """Tells in the flags what is being written, and keeps when."""

    def __init__(self, flags: mmap.mmap) -> None:
        self._flags = flags
        self._lock = threading.Lock()
        self._here = threading.local()
        self._began = time.monotonic()
        self.step = 0
        self.done: list[tuple[str, int, float]] = []

    def enter_step(self, step: int) -> None:
        """This one is at work."""
        self.step = step
        self._flags[STEP] = struct.pack("q", step)

    @contextmanager
    def of(self, kind: str) -> Iterator[None]:
        """What is written within is of this kind; it begins with `begin`: waiting for a lock is no write."""
        self._here.kind, self._here.since = kind, None
        try:
            yield
        finally:
            since, self._here.kind = self._here.since, None
            if since is not None:
                with self._lock:
                    self._add(kind, -1)
                    self.done.append((kind, self.step, time.monotonic() - since))

    def begin(self) -> bool:
        """The first byte goes out; whether it is one of a write that is told."""
        if not getattr(self._here, "kind", None):
            return False
        if self._here.since is None:
            self._here.since = time.monotonic()
            with self._lock:
                self._add(self._here.kind, 1)
        return True

    def _add(self, kind: str, number: int) -> None:
        self._flags[UNDER_WAY[kind]] = struct.pack("q", number_of(self._flags, UNDER_WAY[kind]) + number)

    def keep(self, path: Path) -> None:
        """All of them, and how long this process worked."""
        path.write_text(json.dumps({"writes": self.done, "span": time.monotonic() - self._began}))

    def watch(self) -> None:
        """Rows to the disk and to memory, in small pieces, so that a kill can fall within a row."""
        plain_write, plain_put = Pack.write, SharedRows.put
        plain_pwrite, plain_pwritev = os.pwrite, os.pwritev

        def write(pack: Pack, *words: Any) -> int:
            with self.of("disk"):
                return plain_write(pack, *words)

        def put(rows: SharedRows, *words: Any) -> None:
            with self.of("ram"):
                plain_put(rows, *words)

        def pwrite(file: int, data: Any, offset: int) -> int:
            return plain_pwrite(file, data[:PIECE] if self.begin() else data, offset)

        def pwritev(file: int, parts: Any, offset: int, how: int = 0, /) -> int:
            return plain_pwritev(file, [parts[0][:PIECE]] if self.begin() else parts, offset, how)

        Pack.write = write  # type: ignore[method-assign, assignment]
        SharedRows.put = put  # type: ignore[method-assign, assignment]
        os.pwrite, os.pwritev = pwrite, pwritev


def number_of(flags: mmap.mmap, at: slice) -> int:
    """One of the numbers in the flags."""
    found: int = struct.unpack("q", flags[at])[0]
    return found


@dataclass(frozen=True, kw_only=True)
class Start:
    """How a rank is told to begin: the words of its request."""

    folder: Path
    tier: str
    rank: int
    world_size: int
    meeting: Path  # a file of this start's own, by which the ranks find each other

    @classmethod
    def of(cls, words: list[str]) -> "Start":
        """From its words again."""
        folder, tier, rank, world_size, meeting = words
        return cls(
            folder=Path(folder),
            tier=tier,
            rank=int(rank),
            world_size=int(world_size),
            meeting=Path(meeting),
        )

    def words(self) -> list[object]:
        """As a request has them."""
        return [self.folder, self.tier, self.rank, self.world_size, self.meeting]


class Job:
    """The model, its optimizer and what they have been trained on so far."""

    def __init__(self, feed: Feed) -> None:
        torch.manual_seed(1)
        self.feed = feed
        self.model = nn.Sequential(nn.Linear(NUMBERS, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.step = 0
        self.trained: list[list[int]] = []
        self.losses: list[float] = []

    def train(self, values: torch.Tensor, numbers: torch.Tensor) -> None:
        """One step, of the whole batch."""
        self.optimizer.zero_grad()
        out = self.model(values / 2.0**24)
        loss = (out[:, 0] - numbers / SAMPLES).square().mean()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        self.trained.append(numbers.tolist())
        self.losses.append(loss.item())

    def save(self, path: Path) -> None:
        """Whole or not at all, with where the feed stands."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "feed": self.feed.state_dict(),
            "trained": self.trained,
            "losses": self.losses,
        }
        with whole_file(path) as file:
            torch.save(state, file)

    def load(self, path: Path) -> None:
        """Go on from there."""
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.feed.load_state_dict(state["feed"])
        self.trained, self.losses = state["trained"], state["losses"]
        self.step = len(self.losses)


def whole_batch(shares: dict[str, torch.Tensor], world_size: int) -> dict[str, torch.Tensor]:
    """All ranks' shares of a batch, in the order of the ranks."""
    if world_size == 1:
        return shares
    whole = {}
    for name, share in shares.items():
        parts = [torch.empty_like(share) for _ in range(world_size)]
        dist.all_gather(parts, share)
        whole[name] = torch.cat(parts)
    return whole


def work(source: InMemory, flags: mmap.mmap, words: list[str]) -> int:
    """Train the job to its end from wherever it stands."""
    start = Start.of(words)
    writes = Writes(flags)
    writes.watch()
    if start.world_size > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{start.meeting}", rank=start.rank, world_size=start.world_size
        )
    if start.rank == 0:
        remove_leftovers(start.folder)
    feed = Feed(
        source,
        global_batch_size=GLOBAL_BATCH,
        shuffle=True,
        seed=3,
        device="cpu",
        tier=start.tier,
        cache=start.folder / "cache",
    )
    assert feed.tier == start.tier, feed.why
    job = Job(feed)
    checkpoint = start.folder / "checkpoint"
    if checkpoint.exists():
        job.load(checkpoint)
    while job.step < EPOCHS * STEPS:
        for share in feed:
            writes.enter_step(job.step + 1)
            batch = whole_batch(share, start.world_size)
            if not torch.equal(batch["values"], source.read(batch["number"].numpy())["values"]):
                return DAMAGED
            job.train(batch["values"], batch["number"])
            if start.rank == 0 and (job.step % SAVED_EVERY == 0 or job.step == EPOCHS * STEPS):
                with writes.of("save"):
                    writes.begin()
                    job.save(checkpoint)
    feed.close()
    if start.rank == 0:
        writes.keep(start.folder / "writes.json")
    return 0


def import_the_rest() -> None:
    """What torch imports when a first step is made: most of a second that children need not spend again."""
    weight = torch.zeros(1, requires_grad=True)
    weight.grad = torch.zeros(1)  # not by backward(), whose threads would be missing in the children
    torch.optim.SGD([weight]).step()


if __name__ == "__main__":
    import_the_rest()
    everything = make_source(SAMPLES, NUMBERS, sys.argv[1])
    serve(lambda flags, words: work(everything, flags, words))
