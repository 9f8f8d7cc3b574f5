"""Where the volumes of a training are: in the device's memory, the host's, or on disk; and the feed for it.

What is held is the volume, as bytes, and not its patches: these overlap, and 4,000 of 72 x 136 x 136 take
10.7 GB with their labels, whatever the volume is. A patch is cut when its batch is. The highest place that
fits is taken, and the sentence that says why goes with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import torch

from stoker.errors import UsageError
from stoker.facts import host
from stoker.feed import Feed
from stoker.feed.choice import Room, Wish, choose
from stoker.feed.crops import Samples
from stoker.feed.sources.base import Source
from stoker.feed.sources.volume_arrays import describe_volume
from stoker.feed.transforms import BatchTransform
from stoker.train.task import World
from stoker.workloads.vesuvius.scrolls import Scroll
from stoker.workloads.vesuvius.source import HeldScrolls, HeldSource, PlaceSource, ScrollSource

Home: TypeAlias = Literal["vram", "ram", "disk"]
Asked = Literal["auto", "vram", "ram", "disk"]
HOMES: tuple[str, ...] = get_args(Asked)


@dataclass(frozen=True, kw_only=True)
class Residence:
    """Where the volumes are; `held` is None where they are read from disk."""

    home: Home
    why: str
    held: HeldScrolls | None = None


@dataclass(frozen=True, kw_only=True)
class CutPatches(BatchTransform):
    """Cuts a batch's patches from volumes in the device's memory, and goes on with another transform.

    The corners are known on the host by the samples' numbers, so the device is never waited for. Volumes that
    had to give way meanwhile are cut where they are now, or the patches are read.
    """

    source: ScrollSource
    held: HeldScrolls
    device: torch.device
    then: BatchTransform

    @property
    def random(self) -> bool:
        """Whether what comes after is random."""
        return self.then.random

    def fingerprint(self) -> str:
        """That of what comes after: cutting changes nothing."""
        return self.then.fingerprint()

    def __call__(self, batch: Any, *, samples: Samples, seed: int, epoch: int) -> Any:
        """The patches in place of where they lie."""
        if self.held.bytes:
            cut = self.held.cut(self.source.places(samples), self.source.patch)
        else:
            cut = self.source.read(samples)
        cut = {name: field.to(self.device, non_blocking=True) for name, field in cut.items()}
        return self.then(cut, samples=samples, seed=seed, epoch=epoch)


@dataclass(frozen=True, kw_only=True)
class MarkCovered(BatchTransform):
    """Adds to a batch how much of each patch an earlier one has: `covered`, voxels from the front by axis."""

    source: ScrollSource
    then: BatchTransform

    @property
    def random(self) -> bool:
        """Whether the other transform is random."""
        return self.then.random

    def fingerprint(self) -> str:
        """That of the other: patches stay as they are."""
        return self.then.fingerprint()

    def __call__(self, batch: Any, *, samples: Samples, seed: int, epoch: int) -> Any:
        """The batch, and `covered` with it."""
        made = self.then(batch, samples=samples, seed=seed, epoch=epoch)
        return {**made, "covered": torch.from_numpy(self.source.covered(samples)).to(made["image"].device)}


class ScrollFeed(Feed):
    """A feed that says where its volumes are, and gives the device's memory back when the loop needs it."""

    def __init__(self, samples: Source, residence: Residence, **options: Any) -> None:
        super().__init__(samples, **options)
        self._residence = residence

    @property
    def why(self) -> str:
        """Where the volumes are held, and why there."""
        return self._residence.why

    @property
    def tier(self) -> str:
        """Where the volumes are held now: vram, ram, or nowhere (source)."""
        return "source" if self._residence.home == "disk" else self._residence.home

    @property
    def on_device(self) -> int:
        """The bytes of the device that the volumes have."""
        residence = self._residence
        return residence.held.bytes if residence.held is not None and residence.home == "vram" else 0

    def shrink(self, why: str = "the loop ran out of memory") -> None:
        """Bring volumes on the device to the host's memory, or leave them on disk where that is full."""
        held = self._residence.held
        if held is None or self._residence.home != "vram":
            return
        home, said = choose_home(
            "ram", held.bytes, None, find_room(torch.device("cpu"), self._ranks.world_size)
        )
        if home == "ram":
            held.move(torch.device("cpu"))
        else:
            held.drop()
        self._residence = replace(self._residence, home=home, why=f"{said} (left vram: {why})")


def find_room(device: torch.device, ranks: int = 1) -> Room:
    """What is free here for each of so many ranks; on a device, with what torch has set aside for the model.

    Every rank holds the volumes for itself.
    """
    vram = None
    if device.type == "cuda":
        vram = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    ram = host.read().memory_free_bytes
    return Room(vram=vram, ram=None if ram is None else ram // ranks)


def choose_home(asked: str, size: int, reserve: int | None, room: Room) -> tuple[Home, str]:
    """The highest place that `size` bytes of volumes fit into, and why that one. Pure."""
    if asked not in HOMES:
        raise UsageError(f"resident is {asked!r}: take one of {', '.join(HOMES)}")
    if asked == "disk":
        return "disk", "disk: asked for"
    wish = Wish(bytes=size, reserve=reserve, reserve_said="a step of this model")
    # Without RAM no window is chosen, which is of samples: a patch may lie anywhere in its volume.
    high = choose(wish, replace(room, ram=None), "vram")
    if asked != "ram" and high.tier == "vram":
        return "vram", high.why
    low = choose(wish, room, "ram")
    home: Home = "ram" if low.tier == "ram" else "disk"
    passed = "" if asked == "ram" else high.above.partition("; not ram")[0]
    return home, f"{home}{low.why.removeprefix(low.tier)}{low.above}{passed}"


def count_bytes(scrolls: Sequence[Scroll]) -> int:
    """What the volumes and labels take in memory."""
    total = 0
    for scroll in scrolls:
        for path in (scroll.volume, scroll.labels):
            depth, height, width = describe_volume(path, str(path)).space
            total += depth * height * width
    return total


def settle(
    scrolls: Sequence[Scroll], asked: str, reserve: int | None, device: torch.device, ranks: int = 1
) -> Residence:
    """Load the volumes into the highest place that fits; one lower where that fails after all."""
    home, why = choose_home(asked, count_bytes(scrolls), reserve, find_room(device, ranks))
    if home == "vram":
        try:
            return Residence(home=home, why=why, held=HeldScrolls.load(scrolls, device))
        except torch.OutOfMemoryError as error:
            home, lower = choose_home("ram", count_bytes(scrolls), reserve, find_room(device, ranks))
            why = f"{lower}; not vram: {str(error).splitlines()[0]}"
    if home == "ram":
        return Residence(home=home, why=why, held=HeldScrolls.load(scrolls, torch.device("cpu")))
    return Residence(home=home, why=why)


def open_feed(
    source: ScrollSource,
    residence: Residence,
    transform: BatchTransform,
    *,
    world: World,
    device: torch.device,
    batch_size: int,
    shuffle: bool | str,
    workers: int = 0,
    seed: int = 0,
) -> ScrollFeed:
    """A feed of these patches, the same batches wherever the volumes are."""
    held = residence.held
    samples: PlaceSource | HeldSource | ScrollSource = source
    if held is not None and residence.home == "vram":
        samples, workers = PlaceSource(source), 0
        transform = CutPatches(source=source, held=held, device=device, then=transform)
    elif held is not None:
        samples, workers = HeldSource(source, held), 0
    return ScrollFeed(
        samples,
        residence,
        global_batch_size=batch_size,
        shuffle=shuffle,
        device=device,
        seed=seed,
        drop_last=bool(shuffle) and source.per_epoch > batch_size,
        per_epoch=source.per_epoch,
        transform=transform,
        # Patches are not held by the feed: the volumes are held here, or the patches are read.
        tier="source",
        workers=workers,
        rank=world.rank,
        world_size=world.size,
    )
