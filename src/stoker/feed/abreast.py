"""Whether the ranks of a feed are in the same epoch: each says where it is, and looks at the next rank.

An epoch is one `iter`, on the rank that makes it: one that looks at a batch by itself is an epoch ahead from
then on. Nobody waits here for anybody, for a rank may rightly be alone. But one that comes to the last batch
of an epoch while the next is amid an earlier one is not abreast of it: ranks that make their steps together,
or meet between two epochs, are never so far apart. Who is ahead finds, going round, a next rank that is
behind: each looks at one other, however many there are.

By the store through which the ranks of a process group found each other.
"""

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from stoker.feed.order import Order
from stoker.feed.ranks import Ranks, has_group

# How many feeds of one order there were in this process: the same on all ranks, which use them in turn.
_ALIKE: Counter[str] = Counter()
_AMID, _OVER = "amid", "over"


class Abreast:
    """This rank and the next, in the epochs of one feed."""

    def __init__(self, order: Order, ranks: Ranks, store: Any) -> None:
        settings = (order.length, order.batch_size, order.seed, order.shuffle, order.size, order.drop_last)
        alike = repr(settings)
        self._name = f"stoker/feed/{alike}/{_ALIKE[alike]}"
        _ALIKE[alike] += 1
        self._rank, self._next = ranks.rank, (ranks.rank + 1) % ranks.world_size
        self._store, self._epoch = store, -1
        self._is_told = False
        self._is_over = False  # who kept the store has ended: there is nobody to ask

    @contextmanager
    def amid(self, epoch: int) -> Iterator[None]:
        """This rank is amid this epoch, until it is over or was left early."""
        self._epoch = epoch
        self._say(_AMID)
        try:
            yield
        finally:
            if epoch == self._epoch:  # else another was begun meanwhile
                self._say(_OVER)

    def look(self) -> None:
        """The epoch's last batch comes next, and is not its first: warn, once, if the next rank is behind."""
        if self._is_told or self._is_over:
            return
        key = f"{self._name}/{self._next}"
        try:
            told = self._store.get(key).decode() if self._store.check([key]) else f"0 {_OVER}"
        except RuntimeError:
            self._is_over = True
            return
        epoch, where = told.split()
        if where == _AMID and int(epoch) < self._epoch:
            self._is_told = True
            warnings.warn(
                f"rank {self._rank} is in epoch {self._epoch} of a feed, and rank {self._next} in epoch "
                f"{epoch}: where they make their steps together, they train on batches of different epochs. "
                "Each iter of a feed is an epoch on the rank that makes it, a look at one batch too: make as "
                "many on every rank, and to look at a batch on one alone make another feed there, with "
                "rank=0 and world_size=1",
                stacklevel=3,
            )

    def _say(self, where: str) -> None:
        if not self._is_over:
            try:
                self._store.set(f"{self._name}/{self._rank}", f"{self._epoch} {where}")
            except RuntimeError:
                self._is_over = True


def find_abreast(order: Order, ranks: Ranks) -> Abreast | None:
    """For a feed whose ranks, several, are those of the process group."""
    if ranks.world_size == 1 or not has_group():
        return None
    if (dist.get_rank(), dist.get_world_size()) != (ranks.rank, ranks.world_size):
        return None
    return Abreast(order, ranks, dist.distributed_c10d._get_default_store())
