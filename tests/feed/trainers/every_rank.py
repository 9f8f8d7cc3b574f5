"""`torchrun … every_rank.py OUT`: all that each of the ranks is handed, on every tier, in every world size.

The world of the launch comes first, as the process group tells it; then its first ranks stand for smaller
ones, in processes of their own as before. Each tier gives two epochs, and then goes on from the states that
were kept after each of their steps, on the first tier in the largest world: two batches from each.

What came is told as a checksum for each sample, after a random crop.
"""

import json
import sys
import zlib
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from feed.trainers.told import end
from stoker import Feed
from stoker.feed.sources.base import Indices, Source
from stoker.feed.transforms import ImageTransform

LENGTH, GLOBAL_BATCH, EPOCHS, SEED = 100, 16, 2, 3
STEPS = -(-LENGTH // GLOBAL_BATCH)  # the last with 4 samples, one for each of 4 ranks
WORLDS = (4, 2, 1)
TIERS = ("ram", "disk", "source")
CROP = ImageTransform(size=(9, 7))

Told = list[list[int]]


class Pictures(Source):
    """Small images of noise, each known by its number."""

    def __len__(self) -> int:
        return LENGTH

    def read(self, indices: Indices) -> Any:
        numbers = torch.from_numpy(indices.copy())
        noise = (numbers[:, None] * 7919 + torch.arange(3 * 12 * 10)) * 2654435761 % 2**32 // 2**24
        return {"image": noise.to(torch.uint8).view(-1, 3, 12, 10), "number": numbers}

    def fingerprint(self) -> str:
        return "pictures of every rank"


def tell(batches: Iterable[Any]) -> Told:
    """A checksum of each sample's bytes, its number among them."""
    return [
        [
            zlib.crc32(image.numpy().tobytes(), number)
            for image, number in zip(batch["image"], batch["number"].tolist(), strict=True)
        ]
        for batch in batches
    ]


def make_feed(tier: str, out: Path, **ranks: Any) -> Feed:
    feed = Feed(
        Pictures(),
        global_batch_size=GLOBAL_BATCH,
        shuffle=True,
        seed=SEED,
        device="cpu",
        tier="source" if tier == "disk" else tier,
        cache=out / f"cache{ranks}" if tier == "disk" else None,
        transform=CROP,
        **ranks,
    )
    assert feed.tier == ("source" if tier == "disk" else tier), feed.why
    assert ("over a disk cache" in feed.why) == (tier == "disk"), feed.why
    return feed


def read_epochs(tier: str, out: Path, states: list[Any], **ranks: int) -> Told:
    """All batches of all epochs; the states go where they are wanted."""
    feed = make_feed(tier, out, **ranks)
    found: Told = []
    for _ in range(EPOCHS):
        for batch in feed:
            found += tell([batch])
            states.append(feed.state_dict())
    feed.close()
    return found


def go_on(tier: str, out: Path, state: Any, **ranks: int) -> Told:
    """The next two batches of this epoch, or of the next where it has ended."""
    feed = make_feed(tier, out, **ranks)
    feed.load_state_dict(state)
    found = tell(islice(feed, 2))
    feed.close()
    return found


def main() -> None:
    """Write down what this rank was handed."""
    out = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    told: dict[str, Any] = {}
    states: list[Any] = []
    for world in WORLDS:
        ranks = {} if world == dist.get_world_size() else {"rank": rank, "world_size": world}
        for tier in TIERS if rank < world else ():
            found = read_epochs(tier, out, states if not told else [], **ranks)
            resumed = [go_on(tier, out, state, **ranks) for state in states]
            told[f"{tier} {world}"] = {"whole": found, "resumed": resumed}
        dist.barrier()
    (out / f"rank{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    end()
