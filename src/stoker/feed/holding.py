"""The samples of one feed at work: held in the highest tier that fits, read where they are not yet there.

Memory is filled as the first epoch trains: what is read for a batch is kept, and never read again. So the
first batch comes as soon as from a DataLoader, and nothing is read twice.
"""

import errno
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from hashlib import blake2b
from itertools import chain, islice, repeat
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from stoker.errors import NoRoom, NotPackable
from stoker.facts import host
from stoker.feed.choice import KEPT_SHARE, Choice, Room, Wish, choose
from stoker.feed.device_order import worked_out_on
from stoker.feed.layout import Layout
from stoker.feed.order import Shard
from stoker.feed.prefetch import Prefetch
from stoker.feed.randomness import find_randomness
from stoker.feed.ranks import Ranks, launch_name
from stoker.feed.sources.base import Indices, Source
from stoker.feed.sources.torch import TorchSource
from stoker.feed.streams import Streams
from stoker.feed.tiers.bus import Bus, open_bus
from stoker.feed.tiers.disk import DiskTier
from stoker.feed.tiers.pack import Content
from stoker.feed.tiers.ram import SharedRows, allocated, path_of, sweep
from stoker.feed.tiers.rows import Rows, bring
from stoker.feed.tiers.staged_bus import StagedBus

# Shards worked out, and index arrays moved to the device, at one go: few at first, since the epoch's first
# batch waits for them. By the thread that asks: for another one to do it meanwhile, the two take turns at the
# interpreter's lock, and a batch of 256 costs 10 us more instead of 7 less (2 cores, Python 3.11).
_FIRST_TOGETHER, _TOGETHER = (8, 16, 32), 64
# Bytes of samples moved from one memory to another at one go.
_CARRIED = 64 << 20
# Batches gathered in VRAM at one go, and the most that they may take. One by one, 256 x 98 KB come at 3,040
# GB/s read and written, and each costs the host 12 us more (H200).
_FEW, _FEW_BYTES = 8, 128 << 20
# A smaller part of a source is read by number.
_LEAST_SCANNED = 0.25
# Steps after which the model's need is known.
_STEPS_TO_PEAK = 3


class Holding:
    """Hands out batches of a source on a device, and keeps what fits as near to it as it can.

    `numbers` are the samples that are used at all, ascending; None for all. `why` says where they are.
    `looked` is what is known of the samples already: their layout, or None and why they cannot be held. With
    `one_by_one` a shard is asked for when its batch is, and by whoever asks for that.
    """

    def __init__(
        self,
        source: Source,
        *,
        prefetch: Callable[[Source], Prefetch],
        disk: Callable[[Source, Layout], DiskTier] | None,
        device: torch.device,
        asked: str,
        numbers: Indices | None,
        ranks: Ranks,
        reserve: int | None,
        reserve_said: str,
        cache_random: bool,
        looked: tuple[Layout | None, str] | None = None,
        one_by_one: bool = False,
    ) -> None:
        self._source = source
        self._weak = isinstance(source, TorchSource)
        self._device = device
        self._asked = asked
        self._numbers = numbers
        self._count = len(source) if numbers is None else len(numbers)
        self._handed = 0
        self._one_by_one = one_by_one
        self._fell = ""
        self._streams = Streams(device)
        self._bus: Bus | StagedBus | None = None
        self._rows: Rows | None = None
        self._disk: DiskTier | None = None
        self._layout, unheld = looked or self._look(
            cache_random, needed=asked != "source" or disk is not None
        )
        if disk is not None and self._layout is not None:
            self._source = self._disk = disk(source, self._layout)
        self._prefetch = prefetch(self._source)
        held = None if self._layout is None else Rows.bytes_needed(self._layout, self._count)
        self._wish = Wish(
            bytes=held, unheld=unheld, reserve=reserve, reserve_said=reserve_said, ranks=ranks.on_node
        )
        choice = choose(self._wish, self._room(), asked)
        if choice.tier == "source" and held is not None and sweep(keep=path_of(self._content)):
            choice = choose(self._wish, self._room(), asked)  # with what killed runs had left in memory
        self._choice, self._rows, self._bus = self._settle(choice)
        self._files = self._hold_files()

    @property
    def tier(self) -> str:
        """Where samples are held: vram, window, ram, or nowhere (source)."""
        return self._choice.tier

    @property
    def why(self) -> str:
        """Why they are there, in a sentence."""
        by = "" if self._bus is None else f", {self._bus.why}"
        told = self._choice.why + by + self._choice.above + self._fell + self._files
        return told if self._disk is None else f"{told}; over a disk cache{_but(self._disk.why)}"

    def batches(self, shards: Iterator[Shard]) -> Iterator[tuple[Shard, Any]]:
        """Each shard with its batch on the device.

        From wherever the samples are by now; when they are moved, those that are left come here again.
        """
        self._fill_by_scan()
        if self._rows is None or not self._rows.complete:
            yield from self._read(shards)
            return
        self._prefetch.close()
        self._fill_window()
        self._streams.join_all()
        if self._bus is None:
            yield from self._gather(self._rows, shards)
        else:
            yield from self._gather_ahead(self._bus, shards)

    def shrink(self, why: str) -> None:
        """Give the memory back and go on a tier lower: the loop needs it."""
        if self._rows is not None:
            self._fell = f" (left {self.tier}: {why})"
            self._change(choose(self._wish, self._room(), self._asked, below=_without_window(self.tier)))

    def close(self) -> None:
        """Let go of memory and readers."""
        self._prefetch.close()
        if self._files:
            self._source.let_files_go()  # type: ignore[attr-defined]
        _close(self._rows, self._bus)
        self._rows = self._bus = None

    # --- where ------------------------------------------------------------------------------------

    def _look(self, cache_random: bool, *, needed: bool) -> tuple[Layout | None, str]:
        """The layout of the samples; or None, and why they cannot be held."""
        if not needed:
            return None, "asked for"
        if self._weak and not cache_random:
            verdict = find_randomness(self._source)
            if not verdict.cacheable:
                return None, (
                    f"{verdict.why}. To hold them, move what is random to transform=, which runs by the "
                    "batch after the cache; or give cache_random=True to keep each sample as first read"
                )
        first = np.zeros(1, np.int64) if self._numbers is None else self._numbers[:1]
        try:
            return Layout.of(self._source.read(first)), ""
        except NotPackable as error:
            return None, str(error)

    def _room(self) -> Room:
        here = host.read()
        vram = None
        if self._device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self._device)
            # What torch has set aside is the loop's, and part of what `reserve` speaks of.
            vram = free + torch.cuda.memory_reserved(self._device)
        # What these samples have of it already, be it another rank's doing, is not taken from them.
        theirs = 0 if self._layout is None else allocated(self._content)
        if isinstance(self._rows, SharedRows) and self._rows.path is None:
            theirs = self._rows.memory.nbytes
        ram, shm = here.memory_free_bytes, here.shm_free_bytes
        return Room(
            vram=vram, ram=None if ram is None else ram + theirs, shm=None if shm is None else shm + theirs
        )

    def _settle(self, choice: Choice) -> tuple[Choice, Rows | None, Bus | StagedBus | None]:
        """Take the memory that was chosen; where it cannot be had after all, the next tier's."""
        while choice.tier != "source":
            assert self._layout is not None
            try:
                if choice.tier == "vram":
                    return choice, Rows.allocate(self._layout, self._count, self._device), None
                alone = self._wish.ranks == 1
                shared = SharedRows(self._content, alone=alone, reusable=not self._weak)
                return choice, shared, open_bus(shared, self._device) if self._device.type == "cuda" else None
            except (torch.OutOfMemoryError, NoRoom) as error:
                reason = str(error).splitlines()[0]
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                    raise
                reason = error.strerror or str(error)
            self._fell += f" ({choice.tier} could not be had: {reason})"
            choice = choose(self._wish, self._room(), self._asked, below=_without_window(choice.tier))
        return choice, None, None

    @cached_property
    def _content(self) -> Content:
        """What is held, for all ranks of this machine; what a killed run left of the same is used again."""
        assert self._layout is not None
        told = [self._source.fingerprint(), _digest(self._numbers)]
        if self._weak:  # changed data may look the same: nothing of another run's is taken
            told.append(str(os.getpid()) if self._wish.ranks == 1 else launch_name())
        return Content(fingerprint=" ".join(told), transform="", samples=self._count, layout=self._layout)

    def _hold_files(self) -> str:
        """What cannot be held as it is handed out may be held as it is stored: compressed images."""
        hold = getattr(self._source, "hold_files", None)
        if self.tier != "source" or self._asked == "source" or hold is None:
            return ""
        free = self._room().ram
        said = hold(None if free is None else int(free * (1 - KEPT_SHARE)))
        return f"; {said}" if said else ""

    def _move_up(self) -> None:
        """The model's need has shown: hold the samples on the device if they fit beside it."""
        self._handed += 1
        if (
            self._handed != _STEPS_TO_PEAK + 1
            or self._device.type != "cuda"
            or self._wish.reserve is not None
        ):
            return
        peak = torch.cuda.max_memory_reserved(self._device)
        self._wish = replace(self._wish, reserve=peak, reserve_said=f"peak of {_STEPS_TO_PEAK} steps")
        better = choose(self._wish, self._room(), self._asked)
        if better.tier == "vram":
            self._rise(better)
        elif better.tier == "window":
            self._change(better)
        elif better.tier == self.tier:
            self._choice = better  # which says by now why it is no higher one

    def _rise(self, choice: Choice) -> None:
        """Hold the samples in VRAM, and take along those that are held; stay where that cannot be."""
        assert self._layout is not None
        rows, bus = self._rows, self._bus
        try:
            above = Rows.allocate(self._layout, self._count, self._device)
            if rows is not None:
                _carry(rows, above)
        except torch.OutOfMemoryError as error:
            self._fell += f" (vram could not be had: {str(error).splitlines()[0]})"
            return
        self._choice, self._rows, self._bus = choice, above, None
        _close(rows, bus)

    def _change(self, choice: Choice) -> None:
        """Hold the samples lower down, and take along those that are held."""
        rows, bus = self._rows, self._bus
        if {choice.tier, self.tier} == {"ram", "window"}:  # in the same rows
            self._choice = choice
            if choice.tier == "ram" and isinstance(bus, Bus):
                bus.drop()
            return
        self._choice, self._rows, self._bus = self._settle(choice)
        if rows is not None and self._rows is not None:
            _carry(rows, self._rows)
        _close(rows, bus)

    # --- batches ----------------------------------------------------------------------------------

    def _gather(self, rows: Rows, shards: Iterator[Shard]) -> Iterator[tuple[Shard, Any]]:
        """All samples are held: one gather for a few batches, as far as they are small."""
        for together in self._together(shards):
            stream, places = self._streams.current(), self._places_on(rows.device, together)
            few = self._count_few(together[0])
            for begin in range(0, len(together), few):
                if self._rows is not rows:  # given back meanwhile, or moved
                    yield from self.batches(chain(together[begin:], shards))
                    return
                some = together[begin : begin + few]
                sizes = list(map(len, some))
                self._streams.bring_over(places, stream)
                chosen, places = places[: sum(sizes)], places[sum(sizes) :]
                yield from self._streams.hand(some, rows.get_each(chosen, sizes))

    def _places_on(self, device: torch.device, shards: list[Shard]) -> torch.Tensor:
        """The rows of these shards' samples, on the device: worked out there, or brought."""
        numbers = worked_out_on(device, shards) if self._numbers is None else None
        if numbers is None:
            numbers = bring([self._place(shard.samples) for shard in shards], device)
        return numbers

    def _gather_ahead(self, bus: Bus | StagedBus, shards: Iterator[Shard]) -> Iterator[tuple[Shard, Any]]:
        """All samples are held in RAM: some are on their way over the bus while those before are in use."""
        queued: Any = None
        waiting: list[Shard] = []
        groups = self._brought(bus, shards)
        try:
            for some, asked in groups:
                if self._bus is not bus:
                    shards = chain(some, chain.from_iterable(more for more, _ in groups))
                    break
                before, queued = queued, bus.queue(asked)
                if before is not None:
                    yield from self._streams.hand(waiting, bus.take(before))
                    self._move_up()
                    self._fill_window()
                waiting = some
            if queued is not None:  # which needs nothing more of the bus, if that is no longer in use
                last, queued = queued, None
                yield from self._streams.hand(waiting, bus.take(last))
        finally:
            if queued is not None:  # left before its end: the memory of what is on its way is in use
                bus.take(queued)
        if self._bus is not bus:
            yield from self.batches(shards)

    def _brought(self, bus: Bus | StagedBus, shards: Iterator[Shard]) -> Iterator[tuple[list[Shard], Any]]:
        """The shards of a few batches, and what the bus asks for them by."""
        for together in self._together(shards):
            few = self._count_few(together[0]) if isinstance(bus, Bus) else 1
            asked: Sequence[Any] = bus.bring([self._place(shard.samples) for shard in together], few)
            for at, one in enumerate(asked):
                yield together[at * few : (at + 1) * few], one

    def _together(self, shards: Iterator[Shard]) -> Iterator[list[Shard]]:
        """The shards that are seen to at one go."""
        return ([shard] for shard in shards) if self._one_by_one else _groups(shards)

    def _count_few(self, shard: Shard) -> int:
        """How many batches like this one are gathered at one go."""
        if self._device.type != "cuda":
            return 1
        assert self._layout is not None
        size = Rows.bytes_needed(self._layout, len(shard))
        return max(1, min(_FEW, _FEW_BYTES // max(1, size)))

    def _read(self, shards: Iterable[Shard]) -> Iterator[tuple[Shard, Any]]:
        """Some samples are not held: read those ahead, keep them, and make the batch of what is held then."""
        asked: deque[tuple[Shard, Indices]] = deque()
        for read in self._prefetch.read(_wanted(weakref.WeakMethod(self._missing), shards, asked)):
            shard, missing = asked.popleft()
            yield shard, self._to_device(self._batch_of(shard, missing, read))
            self._move_up()

    def _fill_by_scan(self) -> None:
        """A source that gives everything at once faster than by number is read that way, before the start."""
        scan = getattr(self._source, "scan", None)
        if scan is None or self._rows is None or self._wish.ranks > 1 or self._rows.complete:
            return
        if self._count < len(self._source) * _LEAST_SCANNED:
            return
        for samples, batch in scan(in_order=False):
            if self._numbers is None:
                self._rows.put(samples, batch)
            else:
                used = np.flatnonzero(np.isin(samples, self._numbers))
                some = tree_map(partial(_chosen, used), batch)
                self._rows.put(self._place(samples[used]), some)

    def _fill_window(self) -> None:
        """All samples are in RAM: copy those to the device that are to stay there."""
        bus = self._bus
        if self.tier != "window" or (isinstance(bus, Bus) and bus.resident):
            return
        reason = "the device does not read the host's memory"
        if isinstance(bus, Bus):
            assert self._layout is not None
            try:
                if bus.keep(min(self._count, self._choice.resident // Rows.bytes_needed(self._layout, 1))):
                    return
                reason = "the samples are too small for the copy engines, or the driver has no such copies"
            except torch.OutOfMemoryError as error:
                reason = str(error).splitlines()[0]
        self._fell += f" (window could not be had: {reason})"
        self._choice = Choice(tier="ram", why="ram: all of it is there")

    def _batch_of(self, shard: Shard, missing: Indices, read: Any) -> Any:
        rows = self._rows
        if rows is None:
            # Asked for as it stands; or in part, or sorted, while there was memory to keep it in.
            return read if missing is shard.samples else self._source.read(shard.samples)
        self._streams.join()
        if len(missing):
            rows.put(self._place(missing), read)
        gone = self._missing(shard.samples)
        if len(gone):  # the rows are new since it was asked what is missing
            rows.put(self._place(gone), self._source.read(gone))
        places = self._place(shard.samples)
        if self._bus is not None:
            return self._bus.get(places)
        return rows.get(torch.from_numpy(places).to(rows.device))

    def _missing(self, samples: Indices) -> Indices:
        """Which of these are not held, each once; all of them as they stand where nothing is held."""
        rows = self._rows
        if rows is None:
            return samples
        return np.unique(samples[~rows.held(self._place(samples))])

    def _place(self, samples: Indices) -> Indices:
        """The rows in which these samples are held."""
        return samples if self._numbers is None else np.searchsorted(self._numbers, samples)

    def _to_device(self, batch: Any) -> Any:
        if self._device.type == "cpu":
            return batch
        return tree_map(
            lambda leaf: leaf.to(self._device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf,
            batch,
        )


def _wanted(
    missing: "weakref.WeakMethod[Callable[[Indices], Indices]]",
    shards: Iterable[Shard],
    asked: deque[tuple[Shard, Indices]],
) -> Iterator[Indices]:
    """What is to be read for each shard. The reader keeps this, so it must not keep the reader's owner."""
    for shard in shards:
        find = missing()
        if find is None:
            return
        asked.append((shard, find(shard.samples)))
        del find
        yield asked[-1][1]


def _groups(shards: Iterator[Shard]) -> Iterator[list[Shard]]:
    """The shards, as many at a time as are seen to at one go."""
    for count in chain(_FIRST_TOGETHER, repeat(_TOGETHER)):
        together = list(islice(shards, count))
        if not together:
            return
        yield together


def _without_window(tier: str) -> str:
    """What is left of a device's memory that was too small is not filled with a part of the samples."""
    return "window" if tier == "vram" else tier


def _carry(rows: Rows, to: Rows) -> None:
    """What is held there is held here too."""
    held = np.flatnonzero(rows.held(np.arange(len(rows)))).astype(np.int64)
    step = max(1, _CARRIED // max(1, Rows.bytes_needed(rows.layout, 1)))
    for begin in range(0, len(held), step):
        some = held[begin : begin + step]
        to.put(some, rows.get(torch.from_numpy(some).to(rows.device)))


def _close(rows: Rows | None, bus: Bus | StagedBus | None) -> None:
    """The bus first: it reads from the rows."""
    for one in (bus, rows):
        if one is not None:
            one.close()


def _chosen(rows: Indices, leaf: Any) -> Any:
    return leaf[rows]


def _but(why: str) -> str:
    return f" ({why})" if why else ""


def _digest(numbers: Indices | None) -> str:
    return "all" if numbers is None else blake2b(numbers.tobytes(), digest_size=16).hexdigest()
