"""A dataset that worker processes read is read by them alone: what it opens is not open in the loop's too."""

import multiprocessing
import os
import signal
import struct
import warnings
from collections.abc import Iterator
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, default_collate, get_worker_info

from stoker.errors import ReaderDied, SourceBroken
from stoker.feed import Feed, prefetch

HEADER = struct.Struct("<qq")


class Records(Dataset[tuple[torch.Tensor, int]]):
    """Records of one file, opened at the first read: a header by one seek and read, the rest by another.

    Who opened it is told in a file beside it.
    """

    def __init__(self, path: Path, count: int, *, values: int = 4) -> None:
        self.path, self.count, self.values = path, count, values
        self.file: BinaryIO | None = None
        with path.open("wb") as file:
            for number in range(count):
                file.write(HEADER.pack(number, values))
                file.write(np.full(values, number, "<i4").tobytes())

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.file is None:
            self.file = self.path.open("rb", buffering=0)
            with self.path.with_suffix(".pids").open("a") as told:
                told.write(f"{os.getpid()}\n")
        size = HEADER.size + 4 * self.values
        self.file.seek(index * size)
        os.sched_yield()  # the other worker's turn: were the place in the file one, it would be moved now
        number, values = HEADER.unpack(self.file.read(HEADER.size))
        self.file.seek(index * size + HEADER.size)
        rows = np.frombuffer(self.file.read(4 * self.values), "<i4").copy()
        assert values == self.values, f"record {index} has the header of no record"
        return torch.from_numpy(rows), number

    def opened_by(self) -> list[int]:
        """The processes that opened it so far."""
        told = self.path.with_suffix(".pids")
        return [int(line) for line in told.read_text().split()] if told.exists() else []


def twice(samples: list[Any]) -> Any:
    """A collate_fn of one's own."""
    rows, numbers = default_collate(samples)
    return [rows * 2, numbers]


@pytest.fixture(params=["fork", "spawn"])
def start(request: pytest.FixtureRequest) -> Iterator[str]:
    """The way in which this process starts others, by default."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(request.param, force=True)
    with warnings.catch_warnings():
        # From Python 3.12 a fork beside threads is warned of; that it goes well is what is tested.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        yield request.param
    multiprocessing.set_start_method(before, force=True)


def feed_of(dataset: Any, **options: Any) -> Feed:
    return Feed(dataset, **{"batch_size": 16, "device": "cpu", "workers": 2, "shuffle": True, **options})


def assert_right(feed: Feed, count: int, factor: int = 1) -> None:
    """Each sample of an epoch once, with its own values."""
    seen = []
    for rows, numbers in feed:
        assert torch.equal(rows, (numbers * factor)[:, None].expand_as(rows).to(rows.dtype))
        seen += numbers.tolist()
    assert sorted(seen) == list(range(count))


@pytest.mark.parametrize("tier", ["source", "ram", "disk"])
def test_only_workers_open_a_dataset(start: str, tier: str, tmp_path: Path) -> None:
    """On every tier, before the first epoch and in two of them; each worker opens it for itself."""
    dataset = Records(tmp_path / "records", 96)
    options: dict[str, Any] = {"tier": tier}
    if tier == "disk":
        options = {"tier": "source", "cache": tmp_path / "cache"}
    with closing(feed_of(dataset, collate_fn=twice, **options)) as feed:
        assert ("disk: 96 of 96" in feed.why) == (tier == "disk")
        assert feed.tier == ("ram" if tier == "ram" else "source")
        for _ in range(2):
            assert_right(feed, 96, factor=2)
        feed.state_dict()
    opened = dataset.opened_by()
    assert opened
    assert os.getpid() not in opened
    assert len(set(opened)) == len(opened)
    assert dataset.file is None


def test_a_state_is_taken_by_a_worker(start: str, tmp_path: Path) -> None:
    """Before the first epoch, in it, and where a feed goes on from it; the same as without workers."""
    dataset = Records(tmp_path / "records", 96)
    with closing(feed_of(dataset)) as feed:
        first = feed.state_dict()
        opened = dataset.opened_by()
        assert len(opened) == 1
        assert feed.state_dict() == first
        assert dataset.opened_by() == opened
        seen = [numbers.tolist() for _, numbers in islice(feed, 2)]
        state = feed.state_dict()
    with closing(feed_of(dataset)) as feed:
        feed.load_state_dict(state)
        seen += [numbers.tolist() for _, numbers in feed]
    assert os.getpid() not in dataset.opened_by()
    assert dataset.file is None
    assert sorted(chain.from_iterable(seen)) == list(range(96))
    same = Records(tmp_path / "same", 96)
    with closing(feed_of(same, workers=0)) as feed:
        assert feed.state_dict() == first
    assert same.file is not None
    same.file.close()


def test_what_is_read_a_second_time_is_read_by_workers(tmp_path: Path) -> None:
    """Where the memory is given back while batches are under way, as a loop that needs it has it."""
    dataset = Records(tmp_path / "records", 200)
    with closing(feed_of(dataset, batch_size=4, tier="ram")) as feed:
        seen = []
        for at, (rows, numbers) in enumerate(feed):
            assert torch.equal(rows, numbers[:, None].expand_as(rows).to(rows.dtype))
            seen += numbers.tolist()
            if at == 5:
                feed.shrink()
        assert feed.tier == "source"
    assert sorted(seen) == list(range(200))
    assert os.getpid() not in dataset.opened_by()
    assert dataset.file is None


def test_records_of_one_open_file_come_out_right(tmp_path: Path) -> None:
    """Many small ones, by two workers at once: each has a place of its own in the file."""
    dataset = Records(tmp_path / "records", 6000, values=8)
    for cache in (None, tmp_path / "cache"):
        with closing(feed_of(dataset, batch_size=64, cache=cache)) as feed:
            for _ in range(2):
                assert_right(feed, 6000)


def test_without_workers_the_loop_reads(tmp_path: Path) -> None:
    """As it was asked to."""
    dataset = Records(tmp_path / "records", 32)
    with closing(feed_of(dataset, workers=0)) as feed:
        assert_right(feed, 32)
    assert dataset.opened_by() == [os.getpid()]
    assert dataset.file is not None
    dataset.file.close()


class Failing(Records):
    """Its records cannot be read."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        raise self.error

    error: Exception = KeyError("no such record")


class TwoWords(Exception):
    """An error that cannot be sent to another process: it is made of two words."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")


class Dying(Records):
    """Its records kill who reads them."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if get_worker_info() is None:
            raise AssertionError("read in the loop's process")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("not reached")


def test_an_error_of_the_dataset_is_its_own(tmp_path: Path) -> None:
    """Whoever meets it: the same type and words as without workers, and where it came from beside them."""
    dataset = Failing(tmp_path / "records", 32)
    for ask in (lambda feed: feed.why, Feed.state_dict, next_batch):
        with closing(feed_of(dataset)) as feed, pytest.raises(KeyError) as raised:
            ask(feed)
        assert raised.value.args == ("no such record",)
        assert "raise self.error" in str(raised.value.__cause__)


def test_an_error_that_cannot_be_sent_is_told_in_words(tmp_path: Path) -> None:
    """As torch tells what goes wrong in a worker."""
    dataset = Failing(tmp_path / "records", 32)
    dataset.error = TwoWords("both", "words")
    with closing(feed_of(dataset)) as feed, pytest.raises(RuntimeError, match="both words"):
        next_batch(feed)


def test_a_dataset_that_kills_who_looks_at_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop lives, and is told what happened."""
    monkeypatch.setattr(prefetch, "_MOST_DEATHS", 1)  # torch takes 5 s to notice each
    with closing(feed_of(Dying(tmp_path / "records", 32))) as feed, pytest.raises(ReaderDied) as raised:
        next_batch(feed)
    assert "died, 1 times over, while samples were looked at" in str(raised.value)
    assert "dmesg" in str(raised.value)


# Beside the error torch warns, and advises another way of starting workers.
@pytest.mark.filterwarnings("ignore:Got pickle error when attempting to start:UserWarning")
@pytest.mark.parametrize("start", ["spawn"], indirect=True)
@pytest.mark.parametrize("tier", ["source", "ram"])
def test_a_dataset_that_cannot_be_sent_is_told(start: str, tier: str, tmp_path: Path) -> None:
    """Where workers are spawned: with what stands in the way, and what to do."""
    dataset = Records(tmp_path / "records", 32)
    feed = feed_of(dataset, tier=tier)
    with dataset.path.open("rb") as dataset.file, pytest.raises(SourceBroken) as raised:
        next_batch(feed)
    feed.close()
    told = str(raised.value)
    assert f"worker processes, which are started by {start}: cannot pickle '_io.BufferedReader'" in told
    assert "workers=0" in told


def next_batch(feed: Feed) -> Any:
    """The first batch of an epoch."""
    return next(iter(feed))
