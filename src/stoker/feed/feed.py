"""`stoker.Feed`: stands where a DataLoader stood, and keeps the device fed.

    loader = stoker.Feed(dataset, batch_size=256, shuffle=True, device="cuda")
    loader.why           # where the samples are held, and why there
    loader.state_dict()  # resume is O(1), in any world size, on any tier

The batches are a pure function of (seed, epoch, step, global batch): the same whichever tier they come
from, however many ranks share them, and after a resume at any step.
"""

import os
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Never

import torch
from numpy.typing import ArrayLike
from torch.utils.data import DataLoader, default_collate

from stoker.errors import UsageError
from stoker.facts import host
from stoker.feed.arguments import checked_bytes, checked_call, checked_count, checked_or_none
from stoker.feed.choice import checked_tier
from stoker.feed.company import find_company
from stoker.feed.holding import Holding
from stoker.feed.layout import Layout
from stoker.feed.loader_words import refuse_unknown
from stoker.feed.looks import look_closely, look_elsewhere, some_of
from stoker.feed.order import Order
from stoker.feed.place import Place, Progress, State
from stoker.feed.prefetch import Inline, Prefetch, Threads, Workers
from stoker.feed.ranks import Ranks, find_ranks, has_group
from stoker.feed.sources.base import Indices, Source
from stoker.feed.sources.objects import local_folder
from stoker.feed.sources.torch import TorchSource
from stoker.feed.tiers.disk import DiskTier
from stoker.feed.trainers import BatchSampler, SplitSampler, told_to_accelerate
from stoker.feed.transforms import apply

_SETTINGS = Path("stoker.toml")
# Batches under way beside the one in use.
_AHEAD = 2
_MOST_WORKERS = 8


class Feed(DataLoader[Any]):
    """Batches of a source or of any map-style dataset, on `device`.

    `batch_size` is this rank's, as in a DataLoader; `global_batch_size`, in its place, is all ranks'
    together, and stays when their number changes. `shuffle`: True, "full", "blocks" or False. `subset`,
    `limit`, `weights` and `per_epoch` choose samples (see `Order`). `transform` runs by the batch on the
    device, after the cache.
    `tier`: "auto", or the highest to use: "vram", "spread", "window", "ram" or "source". `reserve` is what
    the model needs of the device in bytes; where it is neither given nor in stoker.toml it is taken from the
    first steps. `cache` is a folder for a cache on disk, of at most `cache_bytes`. `workers`: reading
    processes; 0 reads by threads.

    An epoch is one `iter`. There is no `set_epoch` to call: each begins the next, or goes on where
    `load_state_dict` says.
    """

    # Accelerate leaves what it takes for prepared as it is (a feed splits itself among the ranks), and keeps
    # the state of what it takes for stateful in its checkpoints.
    _is_accelerate_prepared = True
    use_stateful_dataloader = True

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        *,
        shuffle: bool | str = False,
        device: str | torch.device | None = None,
        seed: int = 0,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        transform: Callable[..., Any] | None = None,
        global_batch_size: int | None = None,
        subset: ArrayLike | None = None,
        limit: int | None = None,
        weights: ArrayLike | None = None,
        per_epoch: int | None = None,
        block_size: int = 1024,
        group_size: int = 16,
        tier: str = "auto",
        reserve: int | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        cache_random: bool = False,
        workers: int | None = None,
        ahead: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        **unknown: Never,
    ) -> None:
        refuse_unknown(unknown, Feed.__init__)
        # DataLoader's own __init__ is not called: nothing of its machinery is used. What others ask a
        # DataLoader for is set here.
        self.dataset = dataset
        self.drop_last = drop_last
        self.collate_fn = collate_fn  # type: ignore[assignment]
        self.prefetch_factor = None
        self.pin_memory = False
        self.pin_memory_device = ""
        self.timeout = 0
        self.worker_init_fn = None
        self.generator = None
        self.in_order = True
        self.multiprocessing_context = None
        self.sampler = SplitSampler(self)
        self.batch_sampler = BatchSampler(self)
        self.end_of_dataloader = False  # for Accelerate, as is the next
        self.remainder = -1
        self.device = _device_of(device)
        self._source = _source_of(dataset, collate_fn)
        self._cache = None if cache is None else local_folder(cache, "cache")
        self._disk = _disk_of(self._cache, cache_bytes)
        self._told_of_cache = False
        checked_call("transform", transform)
        self._transform = transform
        self._seed = seed
        self._rank_batch_size = checked_count("batch_size", batch_size, "samples")
        self._global_batch_size = checked_or_none("global_batch_size", global_batch_size, "samples")
        if batch_size != 1 and global_batch_size is not None:
            raise UsageError(
                f"batch_size={batch_size} and global_batch_size={global_batch_size}: give one of them, a "
                "rank's own or that of all ranks together"
            )
        self._order_options = {
            "length": len(self._source),
            "seed": seed,
            "shuffle": shuffle,
            "drop_last": drop_last,
            "subset": subset,
            "limit": limit,
            "weights": weights,
            "per_epoch": per_epoch,
            "block_size": block_size,
            "group_size": group_size,
        }
        self._tier = checked_tier(tier)
        self._reserve = None if reserve is None else checked_bytes("reserve", reserve)
        self._cache_random = cache_random
        self._workers = _count_workers(dataset, workers)
        self._given_ranks = (rank, world_size)
        self._ahead = checked_or_none("ahead", ahead, "batches") or _count_ahead(
            self._source, self._workers, self._share(self._ranks)
        )
        # Threads are told as workers: to Lightning none means a slow loader, and it says so.
        self.num_workers = self._workers or (0 if isinstance(self._source, TorchSource) else self._ahead)
        self.persistent_workers = self.num_workers > 0
        self._progress: Progress | None = None
        self._resumed = False
        self._asked_epoch: int | None = None
        self._holding: Holding | None = None
        self._held_among: tuple[Ranks, bool] | None = None  # the ranks that there were when it was made
        self._orders: dict[int, Order] = {}
        self.batch_size = self._share(self._ranks)
        if len(self._source):
            self._order(self._ranks)  # wrong options are told here

    # --- what a loader does -----------------------------------------------------------------------

    def __len__(self) -> int:
        return self._order(self._ranks).steps if len(self._source) else 0

    def __iter__(self) -> "FeedIterator":  # type: ignore[override]
        return FeedIterator(self._epoch())

    @property
    def why(self) -> str:
        """Where the samples are held, and why there."""
        return self._hold().why if len(self._source) else "source: there are no samples"

    @property
    def tier(self) -> str:
        """Where the samples are held now: vram, spread, window, ram, or nowhere (source)."""
        return self._hold().tier if len(self._source) else "source"

    @property
    def on_device(self) -> int:
        """The bytes of a GPU that samples have, or will have once a window is filled; 0 before first use."""
        return 0 if self._holding is None else self._holding.on_device

    def state_dict(self) -> dict[str, Any]:
        """Where the loop stands. Taken in step k, the feed that loads it begins with step k + 1."""
        if not len(self._source):
            return {}
        place = Place() if self._progress is None else self._progress.place
        return self._order(self._ranks).state(place, self._fingerprint).to_json()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there with the next `iter`; SourceChanged or OrderChanged where that cannot be."""
        if not len(self._source) and not state:
            return
        order = self._order(self._ranks)
        place = order.resume(State.from_json(state), self._fingerprint)
        self._progress = Progress(place)
        self._resumed = True
        self._asked_epoch = None

    def set_epoch(self, epoch: int) -> None:
        """Begin that epoch with the next `iter`, unless the feed was loaded to stand in it already.

        There is no need to: a feed counts. Trainers that resume by counts of their own do (transformers).
        """
        self._asked_epoch = checked_count("epoch", epoch, "epochs gone by", least=0)

    def expect(self, need: int, said: str) -> None:
        """Leave the model so many bytes of the device, where its first steps need less than later ones will.

        `said` tells where the number is from. What was given as `reserve` stays.
        """
        if len(self._source):
            self._hold().expect(need, said)

    def shrink(self, why: str = "the loop ran out of memory") -> None:
        """Give held memory back and go on a tier lower; batches that are on their way still come."""
        if len(self._source):
            self._hold().shrink(why)

    def close(self) -> None:
        """Let go of memory, readers and workers; the feed begins anew if it is used again."""
        if self._holding is not None:
            self._holding.close()
            self._holding = self._held_among = None

    # --- at work ----------------------------------------------------------------------------------

    def _epoch(self) -> Iterator[Any]:
        """One epoch's batches, each counted as handed out before it is.

        One that there is no memory for is made a tier lower. What the loop runs out of memory with does not
        come here: for that it has `shrink`.
        """
        if not len(self._source):
            return
        ranks = self._ranks
        order = self._order(ranks)
        place = self._next_place(order)
        # Counted there, and not here: to set an attribute of a DataLoader takes a microsecond.
        progress = self._progress = Progress(place)
        self._resumed, self._asked_epoch = False, None
        self.batch_size = self._share(ranks)
        steps = order.count_steps(place.offset) - place.step
        short = 0 if self.drop_last else (order.size - place.offset) % order.batch_size
        self.end_of_dataloader, self.remainder = False, short
        with told_to_accelerate(self):
            if self._held_among not in (None, (ranks, has_group())):
                self.close()  # it was asked about before the ranks had met
            holding = self._hold()
            holding.begin(order, place)
            failed: set[tuple[int, str]] = set()
            while True:
                try:
                    for batch in self._made(holding, order, ranks, progress.place):
                        progress.handed += 1
                        if progress.handed == steps:
                            self.end_of_dataloader = True
                        yield batch
                    return
                except torch.OutOfMemoryError as error:
                    # Each batch is tried once in each tier from there down, and in the lowest once more.
                    where = progress.handed, self.tier
                    if where in failed:
                        raise
                    failed.add(where)
                    reason = str(error).partition("\n")[0]
                # Here, where nothing refers to the error any more: its frames hold memory.
                self.shrink(f"a batch could not be made, {reason}")

    def _made(self, holding: Holding, order: Order, ranks: Ranks, place: Place) -> Iterator[Any]:
        """The batches of an epoch from there on."""
        transform = self._transform
        shards = order.shards(
            place.epoch, place.step, rank=ranks.rank, world_size=ranks.world_size, offset=place.offset
        )
        for shard, batch in holding.batches(shards):
            if transform is not None:
                batch = apply(transform, batch, shard.samples, seed=self._seed, epoch=place.epoch)
            yield batch

    def _next_place(self, order: Order) -> Place:
        """Where the next `iter` begins."""
        place = Place()
        if self._progress is not None:
            place = self._progress.place
            if not self._resumed or place.step >= order.count_steps(place.offset):
                place = Place(epoch=place.epoch + 1)
        if self._asked_epoch not in (None, place.epoch):
            place = Place(epoch=self._asked_epoch)
        return place

    @property
    def _ranks(self) -> Ranks:
        return find_ranks(*self._given_ranks)

    @cached_property
    def _fingerprint(self) -> str:
        source = self._far_source
        if source is not None and not source.known:
            source.know(fingerprint=look_elsewhere(source, TorchSource.fingerprint, seed=self._seed))
        return self._source.fingerprint()

    @property
    def _far_source(self) -> TorchSource | None:
        """The source, where it is of a dataset that worker processes read: nothing of it is read here."""
        return self._source if self._workers and isinstance(self._source, TorchSource) else None

    def _look(self, numbers: Indices | None, *, told: bool) -> tuple[Layout | None, str] | None:
        """What a worker sees of samples that workers read; None where there is no need, or no worker.

        `told`: the fingerprint is asked for too.
        """
        source = self._far_source
        if source is None or (self._tier == "source" and self._disk is None):
            return None
        some = some_of(numbers, len(source))
        look = partial(look_closely, some=some, cache_random=self._cache_random, told=told)
        seen = look_elsewhere(source, look, seed=self._seed)
        source.know(fingerprint=seen.fingerprint, kept_as=seen.kept_as)
        return seen.layout, seen.unheld

    def _share(self, ranks: Ranks) -> int:
        """Samples in a batch of one rank; what does not divide is told by the order."""
        whole = self._global_batch_size
        return self._rank_batch_size if whole is None else max(1, whole // ranks.world_size)

    def _order(self, ranks: Ranks) -> Order:
        size = self._global_batch_size
        if size is None:
            size = self._rank_batch_size * ranks.world_size
        if size not in self._orders:
            self._orders[size] = Order(batch_size=size, **self._order_options)  # type: ignore[arg-type]
        return self._orders[size]

    def _hold(self) -> Holding:
        if self._holding is None:
            ranks, device = self._ranks, _numbered(self.device)
            order = self._order(ranks)
            reserve, said = _reserve(self._reserve)
            numbers = order.numbers()
            company = find_company(ranks, device) if order.takes_each_once else None
            looked = self._look(numbers, told=company is not None)
            self._held_among = (ranks, has_group())
            self._holding = Holding(
                self._source,
                prefetch=self._prefetch,
                disk=self._disk,
                device=device,
                asked=self._tier,
                numbers=numbers,
                ranks=ranks,
                reserve=reserve,
                reserve_said=said,
                cache_random=self._cache_random,
                looked=looked,
                company=company,
            )
            self._tell_of_cache(self._holding.uncached)
        return self._holding

    def _tell_of_cache(self, reason: str) -> None:
        """Once: a cache was asked for, and there is none."""
        if reason and not self._told_of_cache:
            self._told_of_cache = True
            warnings.warn(
                f"the cache in {self._cache} is not used: {reason}. Samples come from the source: give "
                "cache= a folder that can be written to and has room, and cache_bytes= enough, or neither",
                stacklevel=2,
            )

    def _prefetch(self, source: Source) -> Prefetch:
        if self._workers:
            pin = self.device.type == "cuda"
            return Workers(source, workers=self._workers, ahead=self._ahead, pin=pin, seed=self._seed)
        if isinstance(self._source, TorchSource):
            return Inline(source)  # whose dataset may belong to the thread that made it
        return Threads(source, threads=self._ahead, ahead=self._ahead)

    def __getstate__(self) -> dict[str, Any]:
        own = {
            name: value for name, value in self.__dict__.items() if name not in ("sampler", "batch_sampler")
        }
        return {**own, "_holding": None, "_held_among": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.sampler, self.batch_sampler = SplitSampler(self), BatchSampler(self)

    def __repr__(self) -> str:
        return f"Feed({self._source!r}, batch_size={self.batch_size}, device={str(self.device)!r})"


class FeedIterator:
    """One epoch of a feed. Letting go of it ends what is being read."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> "FeedIterator":
        return self

    def __next__(self) -> Any:
        return next(self._batches)


def _source_of(dataset: Any, collate_fn: Callable[[list[Any]], Any] | None) -> Source:
    if not isinstance(dataset, Source):
        return TorchSource(dataset, collate_fn)
    if collate_fn not in (None, default_collate):
        raise UsageError(
            f"a collate_fn with a {type(dataset).__name__}, which makes its batches itself: change them by "
            "transform=, or give TorchSource(dataset, collate_fn) in place of both"
        )
    return dataset


def _device_of(device: str | torch.device | None) -> torch.device:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"no device {device!r}: take cpu or cuda, cuda:0, …") from error
    if found.type not in ("cpu", "cuda"):  # what is held is held on one of these, and handed out there
        raise UsageError(f"device {device!r}: take cpu or cuda, and bring batches from device='cpu' to it")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device {device!r}, but torch finds no CUDA device here: use device='cpu'")
    return found


def _numbered(device: torch.device) -> torch.device:
    """The card that "cuda" means by now: a trainer may have set it since the feed was made."""
    if str(device) == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _disk_of(cache: Path | None, cache_bytes: int | None) -> Callable[[Source, Layout], DiskTier] | None:
    cache_bytes = None if cache_bytes is None else checked_bytes("cache_bytes", cache_bytes)
    if cache is None:
        if cache_bytes is not None:
            raise UsageError(f"cache_bytes={cache_bytes} without a cache: say in which folder, cache=DIR")
        return None
    # Without a cap of the user's, the disk's free space is the only one (DiskTier leaves a reserve of it).
    return partial(_open_disk, cache, sys.maxsize if cache_bytes is None else cache_bytes)


def _open_disk(cache: Path, cap_bytes: int, source: Source, layout: Layout) -> DiskTier:
    return DiskTier(source, cache, cap_bytes=cap_bytes, layout=layout)


def _reserve(given: int | None) -> tuple[int | None, str]:
    """What the model needs of the device, and who says so."""
    if given is not None:
        return given, "reserve="
    try:
        settings = tomllib.loads(_SETTINGS.read_text())
    except FileNotFoundError:
        return None, ""
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot read {_SETTINGS}: {error}; mend it, or give reserve=") from error
    memory = settings.get("memory", {})
    if not isinstance(memory, dict):
        raise UsageError(f"`memory` in {_SETTINGS} is {memory!r}: write a table, [memory], or give reserve=")
    peak = memory.get("peak_bytes")
    if peak is None:
        return None, ""
    if not isinstance(peak, int) or peak < 0:
        raise UsageError(f"[memory] peak_bytes in {_SETTINGS} is {peak!r}: it must be a number of bytes")
    return peak, str(_SETTINGS)


def _count_workers(dataset: Any, asked: int | None) -> int:
    """Processes to read with: Stoker's own sources read by threads, a dataset's Python code needs them."""
    if asked is not None:
        return checked_count("workers", asked, "processes", least=0)
    if isinstance(dataset, Source) and not isinstance(dataset, TorchSource):
        return 0
    # All cores: on 2 of them a dataset of 98 KB files came at 4,700 samples/s by one worker, 8,500 by two.
    return min(_MOST_WORKERS, _cores())


def _count_ahead(source: Source, workers: int, batch_size: int) -> int:
    """Batches under way: behind the one being completed, as many as have all the source's requests made."""
    if workers:
        return _AHEAD * workers
    return max(_AHEAD, 1 + -(-source.in_flight // batch_size))


def _cores() -> int:
    return int(host.read().usable_cores or 1)
