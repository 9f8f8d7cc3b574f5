"""What the children of test_spread.py do: each is a rank of a feed whose samples fit no single card.

The card is the host's memory, told to be so large that the samples do not fit, and half of them do.
"""

import gc
import json
import mmap
import os
import signal
import sys
import zlib
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from feed.numbered import Numbered
from feed.nursery import serve
from stoker import Feed
from stoker.errors import RankLost, StokerError
from stoker.feed import company
from stoker.feed.choice import Room
from stoker.feed.company import Company
from stoker.feed.holding import Holding
from stoker.feed.prefetch import Inline
from stoker.feed.sources.base import Indices, Source
from stoker.feed.tiers import spread
from stoker.feed.tiers.spread import SpreadRows

LENGTH, NUMBERS, GLOBAL, SEED = (
    101,
    50,
    16,
    3,
)  # the last of 7 batches has 5 samples: padded for 2 and 4 ranks
ROW = 4 * NUMBERS + 8
CARD = LENGTH * ROW
MANY = 600_001
# Samples that are sent at a time: so few that an exchange takes several rounds.
AT_ONCE = 5

Told = list[list[int]]


def card(size: int | None, ram: int | None = None) -> None:
    """Every rank's device has so much memory free."""
    Holding._room = lambda self: Room(vram=size, ram=ram, shm=ram)  # type: ignore[method-assign]


def make_feed(**options: Any) -> Feed:
    source = Numbered(LENGTH, numbers=NUMBERS, version=options.pop("version", "a"))
    settings = {"global_batch_size": GLOBAL, "shuffle": True, "seed": SEED, "device": "cpu", "reserve": 0}
    return Feed(source, **{**settings, **options})


def tell(batches: Iterable[Any]) -> Told:
    """A checksum of each sample's bytes, its number among them."""
    return [
        [
            zlib.crc32(values.numpy().tobytes(), number)
            for values, number in zip(batch["values"], batch["number"].tolist(), strict=True)
        ]
        for batch in batches
    ]


def about(feed: Feed) -> dict[str, Any]:
    """Where its samples are by now, in how many bytes, and which ones its source was asked for."""
    rows, source = feed._hold()._rows, feed._source
    assert isinstance(source, Numbered)
    held = None
    if isinstance(rows, SpreadRows):
        held = sum(words.untyped_storage().nbytes() for words in rows._memory.opened()[0])
    return {"tier": feed.tier, "why": feed.why, "bytes": held, "asked": list(source.asked)}


# --- what a rank may do -------------------------------------------------------------------------------


def train_epochs(rank: int, epochs: int = 3, **options: Any) -> Any:
    """All batches of some epochs; and the bytes that were on their way at once."""
    plain, sent = Company._send, []

    def send(self: Company, sizes: list[int], coming: list[int], words: torch.Tensor) -> torch.Tensor:
        came = plain(self, sizes, coming, words)
        sent.append(words.nbytes + came.nbytes)
        return came

    Company._send = send  # type: ignore[method-assign]
    with closing(make_feed(**options)) as feed:
        before = feed.why
        found = []
        for _ in range(epochs):
            batches = tell(feed)
            found.append({"batches": batches, **about(feed)})
        return {"epochs": found, "before": before, "sent": sent}


def train_steps(rank: int, steps: int, state: Any = None) -> Any:
    """So many batches from there on, whatever epochs they are in; and where that ends."""
    with closing(make_feed()) as feed:
        if state is not None:
            feed.load_state_dict(state)
        found: Told = []
        while len(found) < steps:
            found += tell(islice(feed, steps - len(found)))
        return {"batches": found, "state": feed.state_dict(), "tier": feed.tier}


def leave_early(rank: int) -> Any:
    """Epochs that are left after 3 steps, then a whole one; nothing is read ahead, and so none in vain."""
    Feed._prefetch = lambda self, source: Inline(source)  # type: ignore[method-assign]
    with closing(make_feed()) as feed:
        left = [tell(islice(feed, 3)) for _ in range(2)]
        return {"left": left, "whole": tell(feed), **about(feed)}


def nest(rank: int) -> Any:
    """An epoch goes on after the next was begun and its samples are with other ranks by now."""
    with closing(make_feed()) as feed:
        tell(feed)
        first = iter(feed)
        found = tell(islice(first, 2))
        other = tell(islice(feed, 2))
        return {"first": found + tell(first), "other": other, **about(feed)}


def be_killed(rank: int, victim: int, sends: int) -> Any:
    """One rank dies amid an exchange."""
    plain, count = Company._send, 0

    def send(self: Company, *words: Any) -> torch.Tensor:
        nonlocal count
        count += 1
        if rank == victim and count == sends:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, *words)

    Company._send = send  # type: ignore[method-assign, assignment]
    return fail(rank)


def fail(rank: int, **differing: Any) -> Any:
    """What is said where it fails, and where samples are held then."""
    options = {name: values[rank] for name, values in differing.items()}
    with closing(make_feed(**options)) as feed:
        try:
            for _ in range(3):
                tell(feed)
        except StokerError as error:
            return {"error": type(error).__name__, "text": str(error), **about(feed)}
        return about(feed)


def wait(rank: int, late: int, epoch: int) -> Any:
    """One rank does not begin an epoch before the others have lost their patience."""
    company.PATIENCE = timedelta(seconds=1)
    with closing(make_feed()) as feed:
        try:
            for number in range(3):
                if rank == late and number == epoch:
                    dist.monitored_barrier(timeout=timedelta(seconds=60))
                tell(feed)
        except RankLost as error:
            if rank != late:
                dist.monitored_barrier(timeout=timedelta(seconds=60))
            return {"error": type(error).__name__, "text": str(error)}
    raise AssertionError("it was waited for, or nobody noticed")


def shrink(rank: int, who: list[int]) -> Any:
    """Some ranks give their memory back in the middle of the second epoch."""
    with closing(make_feed()) as feed:
        found = [tell(feed)]
        batches: Told = []
        for batch in feed:
            batches += tell([batch])
            if len(batches) == 2 and rank in who:
                feed.shrink("no memory")
        found += [batches, tell(feed)]
        return {"epochs": found, **about(feed)}


def lack_memory(rank: int) -> Any:
    """One rank cannot have the memory that its card seemed to have."""

    def allocate(*words: Any) -> Any:
        raise torch.OutOfMemoryError("none of it\nat all")

    if rank == 1:
        SpreadRows.__init__ = allocate  # type: ignore[method-assign, assignment]
    return train_epochs(rank, epochs=1)


def lack_room(rank: int) -> Any:
    """One rank has its part, and in the third epoch no memory for samples on their way."""
    plain, calls = SpreadRows.try_room, 0

    def try_room(self: SpreadRows, *words: Any) -> None:
        nonlocal calls
        calls += 1
        if rank == 1 and calls == 3:
            raise torch.OutOfMemoryError("none on the way\nat all")
        plain(self, *words)

    SpreadRows.try_room = try_room  # type: ignore[method-assign, assignment]
    return train_epochs(rank, epochs=4)


def learn_the_need(rank: int, version: str) -> Any:
    """What the model needs shows in the first epoch only: until then samples are in memory."""
    card(CARD, ram=1 << 30)
    with closing(make_feed(reserve=None, version=version)) as feed:
        found = [{"batches": tell(feed), **about(feed)}]
        holding = feed._hold()
        holding._wish = replace(holding._wish, reserve=0, reserve_said="a test")
        found += [{"batches": tell(feed), **about(feed)} for _ in range(2)]
        return {"epochs": found}


def run_out(rank: int, who: int) -> Any:
    """One rank's feed runs out of memory in an epoch, and goes on a tier lower."""
    company.PATIENCE = timedelta(seconds=2)
    plain, calls = SpreadRows.get_each, 0

    def get(self: SpreadRows, *words: Any) -> Any:
        nonlocal calls
        calls += 1
        if rank == who and calls == 3:
            raise torch.OutOfMemoryError("none left")
        return plain(self, *words)

    SpreadRows.get_each = get  # type: ignore[method-assign, assignment]
    found: list[Told] = []
    with closing(make_feed()) as feed:
        for _ in range(3):
            told: Told = []
            for batch in feed:
                dist.monitored_barrier(timeout=timedelta(seconds=10))  # the step, which all make together
                told += tell([batch])
            found.append(told)
        return {"epochs": found, **about(feed)}


def meet(folder: str, rank: int, world: int) -> None:
    """The process group of all."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)


def ask_early(rank: int, who: int, world: int, folder: str) -> Any:
    """One rank asks where its samples are before there is a process group; then a feed that nobody closes.

    They have none before, also not one that they ended: where two were made one after the other, torch's own
    gloo hung or failed to connect in 6 of 240 such pairs of processes without Stoker (2.13, busy cores).
    """
    feed = make_feed()
    early = feed.why if rank == who else ""
    meet(folder, rank, world)
    groups = len(dist.distributed_c10d._world.pg_map)
    batches = tell(feed)
    told = {"early": early, "batches": batches, **about(feed)}
    during = len(dist.distributed_c10d._world.pg_map) - groups
    del feed
    gc.collect()
    return {**told, "groups": [during, len(dist.distributed_c10d._world.pg_map) - groups]}


class Many(Source):
    """Samples that carry their number, and little else."""

    def __len__(self) -> int:
        return MANY

    def read(self, indices: Indices) -> Any:
        numbers = torch.from_numpy(indices.copy())
        return {"number": numbers, "label": (numbers % 251).to(torch.uint8)}

    def fingerprint(self) -> str:
        return "many"


def train_many(rank: int, epochs: int) -> Any:
    """A digest of the numbers of all samples that came, epoch by epoch."""
    card(MANY * 9)
    spread._ROUND_BYTES = 1 << 17
    found = []
    with closing(Feed(Many(), global_batch_size=4096, shuffle=True, device="cpu", reserve=0)) as feed:
        for _ in range(epochs):
            hashed = blake2b()
            for batch in feed:
                assert torch.equal(batch["label"], (batch["number"] % 251).to(torch.uint8))
                hashed.update(batch["number"].numpy().tobytes())
            found.append(hashed.hexdigest())
        return {"epochs": found, "tier": feed.tier}


class Net(nn.Module):
    """Something to train on the samples."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(NUMBERS, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, batch: Any) -> torch.Tensor:
        found: torch.Tensor = self.layers(batch["values"] / 2**24).squeeze(1)
        loss: torch.Tensor = (found - batch["number"] / LENGTH).square().mean()
        return loss


def wrapped(model: Net, how: str) -> nn.Module:
    """Alone, each rank with a whole copy of the model, or (FSDP2) with its shard of each layer."""
    if how == "ddp":
        return DistributedDataParallel(model)
    if how == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in (model.layers[0], model.layers[2], model):
            fully_shard(layer, mesh=mesh)
    return model


def train_model(rank: int, how: str, epochs: int) -> Any:
    """The loss of each step, over all ranks; and what the model has become."""
    model = wrapped(Net(), how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, numbers = [], []
    with closing(make_feed(drop_last=True)) as feed:
        for _ in range(epochs):
            for batch in feed:
                optimizer.zero_grad()
                loss = model(batch)
                loss.backward()
                optimizer.step()
                loss = loss.detach()
                dist.all_reduce(loss)
                losses.append(loss.item() / dist.get_world_size())
                numbers.append(batch["number"].tolist())
        weights = list(model.parameters())
        if how == "fsdp":
            weights = [weight.full_tensor() for weight in weights]  # type: ignore[attr-defined]
        told = [weight.flatten().tolist() for weight in weights]
        return {"losses": losses, "numbers": numbers, "weights": told, "tier": feed.tier}


DOES: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        train_epochs, train_steps, leave_early, nest, be_killed, fail, wait, shrink, lack_memory, lack_room,
        learn_the_need, train_many, train_model, run_out, ask_early,
    )
}  # fmt: skip


def work(flags: mmap.mmap, words: list[str]) -> int:
    """What the first word says, as this RANK of so many, who meet at FOLDER; with options in JSON."""
    name, rank, world, folder = words[0], int(words[1]), int(words[2]), Path(words[3])
    if DOES[name] is not ask_early:
        meet(str(folder), rank, world)
    card(CARD)
    spread._ROUND_BYTES = AT_ONCE * ROW
    told = DOES[name](rank, **json.loads(words[4]))
    (folder / f"{rank}.json").write_text(json.dumps(told))
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    serve(work)
