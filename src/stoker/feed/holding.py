"""The samples of one feed at work: held in the highest tier that fits, read where they are not yet there.

Memory is filled as the first epoch trains: what is read for a batch is kept, and never read again. So the
first batch comes as soon as from a DataLoader, and nothing is read twice.
"""

import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import Any

import torch
from torch.utils._pytree import tree_map

from stoker.feed.device_order import worked_out_on
from stoker.feed.keeping import Keeping
from stoker.feed.order import Shard
from stoker.feed.prefetch import wanted_of
from stoker.feed.sources.base import Indices
from stoker.feed.tiers.bus import Bus
from stoker.feed.tiers.rows import Rows, bring
from stoker.feed.tiers.spread import SpreadRows
from stoker.feed.tiers.staged_bus import StagedBus

# Shards worked out, and index arrays moved to the device, at one go: few at first, since the epoch's first
# batch waits for them. By the thread that asks: for another one to do it meanwhile, the two take turns at the
# interpreter's lock, and a batch of 256 costs 10 us more instead of 7 less (2 cores, Python 3.11).
_FIRST_TOGETHER, _TOGETHER = (8, 16, 32), 64
# Batches gathered in VRAM at one go, and the most that they may take. One by one, 256 x 98 KB come at 3,040
# GB/s read and written, and each costs the host 12 us more (H200).
_FEW, _FEW_BYTES = 8, 128 << 20


class Holding(Keeping):
    """Hands out batches of a source on a device, from wherever its samples are kept."""

    def batches(self, shards: Iterator[Shard], *, ahead: bool = True) -> Iterator[tuple[Shard, Any]]:
        """Each shard with its batch on the device.

        From wherever the samples are by now; when they are moved, those that are left come here again. Not
        `ahead`: where all are held, no shard is asked for before the batch of the last one is handed out.
        """
        self._fill_by_scan()
        if self._rows is None or not self._rows.complete:
            yield from self._read(shards)
            return
        self._prefetch.close()
        self._fill_window()
        self._streams.join_all()
        if self._bus is None:
            yield from self._gather(self._rows, shards, ahead)
        else:
            yield from self._bring(self._bus, shards, ahead)

    def _gather(
        self, rows: Rows | SpreadRows, shards: Iterator[Shard], ahead: bool
    ) -> Iterator[tuple[Shard, Any]]:
        """All samples are held: one gather for a few batches, as far as they are small."""
        arranged = self._arranged
        for together in self._together(shards):
            stream, places = self._streams.current(), self._places_in(rows, together)
            if places is None:
                yield from self._read(chain(together, shards))
                return
            few = self._count_few(together[0])
            for begin in range(0, len(together), few):
                if self._rows is not rows or self._arranged != arranged:  # given back meanwhile, or moved
                    yield from self.batches(chain(together[begin:], shards), ahead=ahead)
                    return
                some = together[begin : begin + few]
                sizes = list(map(len, some))
                self._streams.bring_over(places, stream)
                chosen, places = places[: sum(sizes)], places[sum(sizes) :]
                yield from self._streams.hand(some, rows.get_each(chosen, sizes))

    def _places_in(self, rows: Rows | SpreadRows, shards: list[Shard]) -> torch.Tensor | None:
        """Where these shards' samples are, on the device: worked out there, or brought.

        None where some are with another rank: they are of an epoch that was begun before the one at work.
        """
        plain = self._numbers is None and isinstance(rows, Rows)
        numbers = worked_out_on(rows.device, shards) if plain else None
        if numbers is None:
            found = [rows.find(self._place(shard.samples)) for shard in shards]
            if any((some < 0).any() for some in found):
                return None
            numbers = bring(found, rows.device)
        return numbers

    def _bring(
        self, bus: Bus | StagedBus, shards: Iterator[Shard], ahead: bool
    ) -> Iterator[tuple[Shard, Any]]:
        """All samples are held in RAM: ahead, some are on their way over the bus while others are in use."""
        queued: Any = None
        waiting: list[Shard] = []
        groups = self._brought(bus, shards)
        try:
            for some, asked in groups:
                if self._bus is not bus:
                    shards = chain(some, chain.from_iterable(more for more, _ in groups))
                    break
                if ahead:
                    before, queued = queued, bus.queue(asked)
                    ready, waiting = waiting, some
                else:
                    before, ready = bus.queue(asked), some
                if before is not None:
                    yield from self._streams.hand(ready, bus.take(before))
                    self._move_up(len(ready))
                    self._fill_window()
            if queued is not None:  # which needs nothing more of the bus, if that is no longer in use
                last, queued = queued, None
                yield from self._streams.hand(waiting, bus.take(last))
                self._move_up(len(waiting))
        finally:
            if queued is not None:  # left before its end: the memory of what is on its way is in use
                bus.take(queued)
        if self._bus is not bus:
            yield from self.batches(shards, ahead=ahead)

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
        for read in self._prefetch.read(wanted_of(weakref.WeakMethod(self._missing), shards, asked)):
            shard, missing = asked.popleft()
            self._note_read(missing)
            yield shard, self._to_device(self._batch_of(shard, missing, read))
            self._move_up(1)

    def _batch_of(self, shard: Shard, missing: Indices, read: Any) -> Any:
        rows = self._rows
        if rows is None:
            # Asked for as it stands; or in part, or sorted, while there was memory to keep it in.
            return read if missing is shard.samples else self._read_now(shard.samples)
        self._streams.join()
        if len(missing):
            rows.put(self._place(missing), read)
        gone = self._missing(shard.samples)
        if len(gone):  # the rows are new since it was asked what is missing
            rows.put(self._place(gone), self._read_now(gone))
        places = self._place(shard.samples)
        if self._bus is not None:
            return self._bus.get(places)
        found = rows.find(places)
        if (found < 0).any():  # with another rank by now, and not kept here
            return self._read_now(shard.samples)
        return rows.get(torch.from_numpy(found).to(rows.device))

    def _read_now(self, samples: Indices) -> Any:
        """A batch that nobody reads ahead: by the readers all the same, who alone may read the source."""
        [batch] = self._prefetch.read([samples])
        return batch

    def _to_device(self, batch: Any) -> Any:
        if self._device.type == "cpu":
            return batch
        return tree_map(
            lambda leaf: leaf.to(self._device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf,
            batch,
        )


def _groups(shards: Iterator[Shard]) -> Iterator[list[Shard]]:
    """The shards, as many at a time as are seen to at one go."""
    for count in chain(_FIRST_TOGETHER, repeat(_TOGETHER)):
        together = list(islice(shards, count))
        if not together:
            return
        yield together
