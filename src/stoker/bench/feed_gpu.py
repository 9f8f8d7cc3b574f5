"""The GPU's part of `stoker bench feed`: samples in VRAM, in RAM, and in part of both."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from stoker.bench.children import say
from stoker.bench.contest import LEAST_TURNS
from stoker.bench.peers import Peer, find_peer
from stoker.errors import BenchFailed
from stoker.feed.choice import KEPT_SHARE
from stoker.feed.feed import Feed
from stoker.feed.sources.base import Indices, Source

Runs = list[dict[str, Any]]
Turn = Callable[[], dict[str, Any]]
# 98,304 bytes a row, and 262,144.
_VRAM_ROWS, _VRAM_NUMBERS, _VRAM_BATCH = 40_960, 24_576, 256
_RAM_ROWS, _RAM_NUMBERS, _RAM_BATCH = 32_768, 65_536, 64
# Of a DataLoader's epoch, so much is enough: it is slower by far.
_PEER_BATCHES = 60
# Longer than the host takes to queue an epoch, in cycles of a 2 GHz clock.
_ASLEEP = 60_000_000
# The most that can be queued before the host is made to wait is 1,024 operations.
_QUEUED = 160
# That the host's time is taken over. The first alone costs a batch 9 us more than those after it.
_EPOCHS = 4
_WINDOW_PRODUCTS, _WINDOW_WIDTH, _WINDOW_TURNS = 3, 4096, 12
# The step is bound by the card's power limit. Rested, its first third of a second is 4% faster than what it
# sustains (1590 MHz at 270 W, 1500 to 1575 at 690 W), and it takes a second to get there.
_HEAT_S = 1.0
_GPU = torch.device("cuda")


class Rows(Source):
    """Rows of one field in the host's memory; each begins with its number."""

    def __init__(self, count: int, numbers: int) -> None:
        self.rows = torch.randint(0, 1 << 30, (count, numbers), dtype=torch.int32)
        self.rows[:, 0] = torch.arange(count, dtype=torch.int32)

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, indices: Indices) -> torch.Tensor:
        """One gather."""
        return self.rows.index_select(0, torch.as_tensor(indices))

    def fingerprint(self) -> str:
        """Of this process's own rows: nobody else has the same."""
        return f"{id(self)} {tuple(self.rows.shape)}"


class OneByOne(Dataset[torch.Tensor]):
    """Today's pattern: a dataset over a tensor, a sample at a time."""

    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        """One row, a view."""
        return self._rows[index]


def measure_vram(seconds: float) -> Runs:
    """Batches of 256 x 98 KB from VRAM: what the host spends on one, and the device."""
    source = Rows(_VRAM_ROWS, _VRAM_NUMBERS)
    on_device = source.rows.to(_GPU)
    with closing(_feed(source, _VRAM_BATCH, "vram")) as feed:
        _check_epoch(feed, len(source))
        order = torch.from_numpy(np.random.default_rng(0).permutation(len(source))).to(_GPU)
        chosen = order.split(_VRAM_BATCH)
        slow = DataLoader(OneByOne(on_device), batch_size=_VRAM_BATCH, shuffle=True)
        larger = torch.empty(1 << 30, dtype=torch.uint8, device=_GPU)
        copied = torch.empty_like(larger)
        size = _VRAM_BATCH * _VRAM_NUMBERS * 4
        turns: dict[str, Turn] = {
            "stoker": lambda: _host_and_device(lambda: iter(feed), _QUEUED, 2 * size),
            "peer_dataloader": lambda: _host_and_device(lambda: iter(slow), 16, 2 * size),
            "limit_index_select": lambda: _host_and_device(
                lambda: (on_device.index_select(0, some) for some in chosen), _QUEUED, 2 * size
            ),
            "limit_copy": lambda: _host_and_device(
                lambda: (copied.copy_(larger) for _ in itertools.count()), 20, 2 * larger.nbytes
            ),
        }
        return take_turns("vram", turns, seconds)


def measure_ram(seconds: float) -> Runs:
    """Batches of 64 x 256 KB in random order from RAM onto the device: the rate, and the CPU it takes."""
    source = Rows(_RAM_ROWS, _RAM_NUMBERS)
    size = _RAM_BATCH * _RAM_NUMBERS * 4
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    batches = _RAM_ROWS // _RAM_BATCH
    with closing(_feed(source, _RAM_BATCH, "ram")) as feed:
        _check_epoch(feed, len(source))
        turns: dict[str, Turn] = {
            "stoker": lambda: _rate(lambda: iter(feed), batches, size),
            "limit_pinned": lambda: _rate(
                lambda: (pinned.to(_GPU, non_blocking=True) for _ in itertools.count()), 256, size
            ),
        }
        for workers in (0, 4, 8, 15):
            make = partial(_dataloader, source.rows, workers)
            turns[f"peer_dataloader_{workers}"] = partial(
                _rate, make, _PEER_BATCHES, size, warm=2 * workers + 1
            )
        return take_turns("ram", turns, seconds)


def measure_window(seconds: float) -> Runs:
    """A compute-bound step, fed from VRAM and from half of it: steps a second."""
    source = Rows(_RAM_ROWS, _RAM_NUMBERS)
    size = _RAM_BATCH * _RAM_NUMBERS * 4
    whole = source.rows.nbytes
    step = _Step(total=int(source.rows.sum()))
    on_device = source.rows[:_RAM_BATCH].to(_GPU)
    with closing(_feed(source, _RAM_BATCH, "vram")) as vram:
        _check_epoch(vram, len(source))
        with closing(_feed(source, _RAM_BATCH, "ram")) as ram:
            _check_epoch(ram, len(source))
            free, _ = torch.cuda.mem_get_info(_GPU)
            # What torch has set aside is the model's, but for the samples that the first feed holds.
            room = free + torch.cuda.memory_reserved(_GPU) - whole
            # A tenth of what is left beside the model is never used: see `choice`.
            half = _feed(source, _RAM_BATCH, "window", reserve=room - int(whole / 2 / (1 - KEPT_SHARE)))
            with closing(half) as window:
                _check_epoch(window, len(source))
                if window.tier != "window":
                    raise BenchFailed(f"half of the samples should stay on the device: {window.why}")
                turns: dict[str, Turn] = {
                    "vram": lambda: _train(step, vram, size),
                    "window": lambda: _train(step, window, size),
                    "ram": lambda: _train(step, ram, size),
                }
                heat = partial(step.heat, on_device)
                return take_turns("window", turns, seconds, least=_WINDOW_TURNS, before=heat)


class _Step:
    """Reads the batch, and multiplies matrices for some 0.6 ms."""

    def __init__(self, *, total: int) -> None:
        self._expected = total
        shape = (_WINDOW_WIDTH, _WINDOW_WIDTH)
        self._left, self._right = (torch.randn(shape, device=_GPU, dtype=torch.bfloat16) for _ in range(2))
        self._product = torch.empty_like(self._left)
        self._total = torch.zeros((), dtype=torch.int64, device=_GPU)

    def __call__(self, batch: torch.Tensor) -> None:
        """One step."""
        self._total += batch.sum()
        for _ in range(_WINDOW_PRODUCTS):
            torch.matmul(self._left, self._right, out=self._product)

    def heat(self, batch: torch.Tensor) -> None:
        """Steps on one batch until the card is as hot as a training makes it."""
        until = time.monotonic() + _HEAT_S
        while time.monotonic() < until:
            for _ in range(_QUEUED):
                self(batch)
            torch.cuda.synchronize()
        self._total.zero_()

    def end_epoch(self) -> bool:
        """Whether what the steps read is all of the set, bit by bit as a sum tells."""
        total = int(self._total.item())
        self._total.zero_()
        return total == self._expected


def _train(step: _Step, feed: Feed, size: int) -> dict[str, Any]:
    """An epoch of steps; every sample must have come once, with all of its bits."""
    torch.cuda.synchronize()
    first = []
    began, cpu = time.perf_counter(), time.process_time()
    for batch in feed:
        first.append(batch[:, 0].clone())
        step(batch)
    torch.cuda.synchronize()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    _check_numbers(feed, first, _RAM_ROWS)
    if not step.end_epoch():
        raise BenchFailed(f"{feed.tier}: the samples came with other bits than they have")
    made = len(first)
    return {"seconds": seconds, "batches": made, "gb_s": made * size / seconds / 1e9, "cores": cpu / seconds}


def _feed(source: Source, batch: int, tier: str, reserve: int = 8 << 30) -> Feed:
    return Feed(source, batch_size=batch, shuffle=True, device=_GPU, tier=tier, reserve=reserve)


def _check_epoch(feed: Feed, count: int) -> None:
    """The first epoch fills the memory; the second is gathered from there, and looked at."""
    for _ in feed:
        pass
    _check_numbers(feed, [batch[:, 0].clone() for batch in feed], count)


def _check_numbers(feed: Feed, numbers: list[torch.Tensor], count: int) -> None:
    seen = torch.cat(numbers).sort().values
    if not torch.equal(seen.cpu(), torch.arange(count, dtype=torch.int32)):
        raise BenchFailed(f"{feed.tier}: not every sample came once")


def _host_and_device(make: Callable[[], Iterator[Any]], count: int, size: int) -> dict[str, Any]:
    """What the host needs for a batch while the device keeps up; what the device needs, back to back.

    The host's is over several epochs, one after the other as in a training, the beginning of each included.
    """
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(_EPOCHS):
        for _ in itertools.islice(make(), count):
            pass
    host = (time.perf_counter() - began) / _EPOCHS
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    batches = make()
    torch.cuda._sleep(_ASLEEP)
    begin.record()
    # From the first on: a feed gathers several at once, and none of them may come before the clock.
    for _ in itertools.islice(batches, count):
        pass
    end.record()
    end.synchronize()
    device = begin.elapsed_time(end) / 1e3
    return {"host_us": host / count * 1e6, "gb_s": count * size / device / 1e9, "batches": count}


def _rate(make: Callable[[], Iterator[Any]], count: int, size: int, *, warm: int = 0) -> dict[str, Any]:
    """Bytes a second, and cores of process CPU time; the loop sleeps where it waits.

    `warm` batches come before the clock: workers that start are not what is measured.
    """
    ended = torch.cuda.Event(blocking=True)
    batches = make()
    for _ in itertools.islice(batches, warm):
        pass
    torch.cuda.synchronize()
    began, cpu, made = time.perf_counter(), time.process_time(), 0
    for _ in itertools.islice(batches, count):
        made += 1
    ended.record()
    ended.synchronize()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"seconds": seconds, "batches": made, "gb_s": made * size / seconds / 1e9, "cores": cpu / seconds}


def _dataloader(rows: torch.Tensor, workers: int) -> Iterator[torch.Tensor]:
    loader = DataLoader(
        OneByOne(rows), batch_size=_RAM_BATCH, shuffle=True, num_workers=workers, pin_memory=True
    )
    return (batch.to(_GPU, non_blocking=True) for batch in loader)


def name_absent(part: str, peers: Iterable[tuple[Any, ...]]) -> Runs:
    """Of each peer that is not measured here, by its name and distribution, why."""
    runs: Runs = []
    for name, distribution, *_ in peers:
        found = find_peer(name, distribution=distribution)
        why = found
        if isinstance(found, Peer):
            why = f"{distribution} {found.version} ends in the host's memory: it is compared there, on cpu"
        say(f"{part}: peer_{name} was left out: {why}")
        runs.append({"part": part, "how": "skipped", "kind": f"peer_{name}", "why": why})
    return runs


def take_turns(
    part: str,
    turns: dict[str, Turn],
    seconds: float,
    *,
    least: int = LEAST_TURNS,
    before: Callable[[], None] = lambda: None,
) -> Runs:
    """Everybody in turn, `least` times or more, each after `before`."""
    runs: Runs = []
    until = time.monotonic() + seconds
    for turn in itertools.count():
        for kind, measure in turns.items():
            before()
            runs.append({"part": part, "how": "turn", "kind": kind, "turn": turn, **measure()})
        say(f"{part}: turn {turn + 1}, {max(0.0, until - time.monotonic()):.0f} s left")
        if turn + 1 >= least and time.monotonic() > until:
            return runs
    raise AssertionError
