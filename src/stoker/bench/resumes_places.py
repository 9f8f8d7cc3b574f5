"""Where a process of `stoker bench resumes` stands: told in a page of memory that stays as a kill found it.

A rank and the readers that it forks write into one page. Who strikes reads it: to choose the moment, and to
know afterwards what was hit.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import get_worker_info

from stoker.feed.choice import TIERS
from stoker.feed.stage_copy import Copier
from stoker.feed.tiers.direct_queue import DirectQueue
from stoker.feed.tiers.pack import Pack
from stoker.feed.tiers.ram import SharedRows
from stoker.train.checkpoint import Checkpoints

# What the training is at: one of these at a time. "start" is all before the first epoch is entered, "wait"
# between two steps, "epoch" from the last update of an epoch to the beginning of the next, or to the end.
PHASES = ("start", "wait", "step", "epoch")
# What is being done beside that, by any thread or reader: a checkpoint written, old ones removed, one looked
# for and read; rows written to a cache on disk or in memory; a file staged.
DEEDS = ("save", "prune", "restore", "disk", "ram", "copy")
# All of them, those first that tell more of where a process was.
PLACES = (*DEEDS, "epoch", "step", "start", "wait")
# A process each: the rank, and up to so many readers.
_SLOTS = 9
_UPDATES, _DIRECT, _TIER, _ORDER, _NTH, _AFTER, _HELD, _FIRST = range(8)
_INSIDE, _ENTERED, _SPENT_NS = range(3)
# Rows are written in pieces of this size, so that a kill can fall within one.
_PIECE = 256
# A batch of rows is written in milliseconds, less than it may take to be seen: who is to be hit at that waits
# for it amid its write, so long at most.
HELD = ("disk", "ram")
_HOLD_S, _NAP_S = 2.0, 0.0005


class Page:
    """The page as who strikes sees it."""

    def __init__(self, path: Path) -> None:
        shape = (_SLOTS, _FIRST + 3 * len(PLACES))
        if not path.exists():
            path.write_bytes(bytes(8 * shape[0] * shape[1]))
        self.numbers = np.memmap(path, np.int64, "r+", shape=shape)

    @property
    def updates(self) -> int:
        """The updates of the training's whole life up to now; 0 before this process has made one."""
        return int(self.numbers[0, _UPDATES])

    @property
    def tier(self) -> str | None:
        """Where the feed held its samples; None where no epoch was entered."""
        number = int(self.numbers[0, _TIER])
        return TIERS[number - 1] if number else None

    @property
    def direct(self) -> int:
        """Rows that were read past the page cache."""
        return int(self.numbers[:, _DIRECT].sum())

    def order(self, place: str, *, nth: int, after: int) -> None:
        """Have the process wait to be hit: when it writes there the nth time, after so many pieces."""
        self.numbers[0, [_ORDER, _NTH, _AFTER]] = 1 + PLACES.index(place), nth, after

    def release(self) -> None:
        """It need not wait any more."""
        self.numbers[0, _ORDER] = 0

    @property
    def held(self) -> int | None:
        """The number of the process that waits to be hit; None where none does."""
        return int(self.numbers[:, _HELD].max()) or None

    def is_inside(self, place: str) -> bool:
        """Whether the process is there, or was when it was killed."""
        return bool(self.numbers[:, column(place, _INSIDE)].any())

    def entered(self, place: str) -> int:
        """How often it came there."""
        return int(self.numbers[:, column(place, _ENTERED)].sum())

    def seconds(self, place: str) -> float | None:
        """How long it stayed there in the mean; None where it never left."""
        stays = self.entered(place) - int(self.numbers[:, column(place, _INSIDE)].sum())
        return int(self.numbers[:, column(place, _SPENT_NS)].sum()) / 1e9 / stays if stays > 0 else None

    @property
    def where(self) -> str:
        """The place that tells most; one that has not begun yet is in its start."""
        return next((place for place in PLACES if self.is_inside(place)), "start")


def column(place: str, which: int) -> int:
    """Where a number of a place stands in its process's row."""
    return _FIRST + 3 * PLACES.index(place) + which


class Telling:
    """The process's side: writes down where it is.

    A row of the page belongs to one process, and in it the threads take turns: so no number is lost.
    """

    def __init__(self, page: Page) -> None:
        self._numbers = page.numbers
        self._here = threading.local()
        self._lock = threading.Lock()
        self._phase: tuple[str, int] | None = None
        # A lock that another thread held would be held for ever in a forked reader.
        os.register_at_fork(after_in_child=self._renew)

    def enter_phase(self, phase: str, updates: int = 0, tier: str = "") -> None:
        """The training is at this now, after so many updates; told by its own thread."""
        now = time.monotonic_ns()
        if self._phase is not None:
            before, since = self._phase
            self._add(before, _INSIDE, -1)
            self._add(before, _SPENT_NS, now - since)
        self._phase = phase, now
        self._add(phase, _INSIDE, 1)
        self._add(phase, _ENTERED, 1)
        if updates:
            self._numbers[0, _UPDATES] = updates
        if tier:
            self._numbers[0, _TIER] = 1 + TIERS.index(tier)

    @contextlib.contextmanager
    def doing(self, deed: str, *, at_once: bool = True) -> Iterator[None]:
        """What is done within is this; not `at_once`, it begins with the first byte (`begin`)."""
        self._here.deed, self._here.since, self._here.pieces = deed, None, 0
        if at_once:
            self.begin()
        try:
            yield
        finally:
            since, self._here.deed = self._here.since, None
            if since is not None:
                self._add(deed, _SPENT_NS, time.monotonic_ns() - since)
                self._add(deed, _INSIDE, -1)

    def begin(self) -> bool:
        """A byte goes out; whether it is of a deed that is told."""
        deed = getattr(self._here, "deed", None)
        if deed is None:
            return False
        if self._here.since is None:
            self._here.since = time.monotonic_ns()
            self._add(deed, _INSIDE, 1)
            self._add(deed, _ENTERED, 1)
        self._here.pieces += 1
        if self._numbers[0, _ORDER]:
            self._wait_if_ordered(deed)
        return True

    def _wait_if_ordered(self, deed: str) -> None:
        order, nth, after = self._numbers[0, [_ORDER, _NTH, _AFTER]].tolist()
        mine = self._numbers[_slot(), column(deed, _ENTERED)]
        if (order, self._here.pieces) != (1 + PLACES.index(deed), after) or mine < nth:
            return
        self._numbers[_slot(), _HELD] = os.getpid()
        until = time.monotonic() + _HOLD_S
        while self._numbers[0, _ORDER] and time.monotonic() < until:
            time.sleep(_NAP_S)
        self._numbers[0, _ORDER] = self._numbers[_slot(), _HELD] = 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """All deeds of this process, and of those that it forks, are told in the block."""
        kept = [
            self._wrap(Checkpoints, "save", "save"),
            self._wrap(Checkpoints, "prune", "prune"),
            self._wrap(Checkpoints, "find_last_good", "restore"),
            self._wrap(Copier, "copy", "copy"),
            # To wait for the lock of a cache is no write.
            self._wrap(Pack, "write", "disk", at_once=False),
            self._wrap(SharedRows, "put", "ram", at_once=False),
            self._count_direct(),
            *self._cut_writes(),
        ]
        try:
            yield
        finally:
            for owner, name, plain in kept:
                setattr(owner, name, plain)

    def _wrap(self, owner: Any, name: str, deed: str, *, at_once: bool = True) -> tuple[Any, str, Any]:
        plain = getattr(owner, name)

        def told(*words: Any, **named: Any) -> Any:
            with self.doing(deed, at_once=at_once):
                return plain(*words, **named)

        setattr(owner, name, told)
        return owner, name, plain

    def _count_direct(self) -> tuple[Any, str, Any]:
        plain = DirectQueue.read

        def read(*words: Any) -> Any:
            for done, good in plain(*words):
                with self._lock:
                    self._numbers[_slot(), _DIRECT] += int(good.sum())
                yield done, good

        setattr(DirectQueue, "read", read)  # noqa: B010 (a generator of another kind, to the type checker)
        return DirectQueue, "read", plain

    def _cut_writes(self) -> list[tuple[Any, str, Any]]:
        """The system may write less than it was asked to: here it does, within rows of a cache."""
        pwrite, pwritev = os.pwrite, os.pwritev

        def write(file: int, data: Any, offset: int) -> int:
            return pwrite(file, data[:_PIECE] if self.begin() else data, offset)

        def writev(file: int, parts: Any, offset: int, how: int = 0, /) -> int:
            return pwritev(file, [parts[0][:_PIECE]] if self.begin() else parts, offset, how)

        os.pwrite, os.pwritev = write, writev
        return [(os, "pwrite", pwrite), (os, "pwritev", pwritev)]

    def _add(self, place: str, which: int, number: int) -> None:
        with self._lock:
            self._numbers[_slot(), column(place, which)] += number

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._here = threading.local()


def _slot() -> int:
    """This process's row: the rank's, or its reader's."""
    reader = get_worker_info()
    return 0 if reader is None else 1 + reader.id % (_SLOTS - 1)
