"""The storage experiments on real datasets: what is read again, what comes from memory, what does not."""

import gc
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data import dataloader as torch_dataloader

from stoker.doctor.experiments import files
from stoker.doctor.experiments.counters import read_counters, received_between
from stoker.doctor.experiments.indices import Handed
from stoker.doctor.experiments.passes import read_reread, read_stub
from stoker.doctor.experiments.storage import probe_storage
from stoker.doctor.experiments.stub import Answers

SIZE, COUNT = 16_384, 24
INDICES = [list(range(at, at + 4)) for at in range(0, COUNT, 4)]


class Blocks(Dataset[torch.Tensor]):
    """Reads its sample in the way that it is told."""

    def __init__(self, folder: Path, read: Callable[["Blocks", int], bytes]) -> None:
        self.paths = [folder / f"{number}.bin" for number in range(COUNT)]
        for number, path in enumerate(self.paths):
            np.full(SIZE, number, np.uint8).tofile(path)
        self.read = read

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.frombuffer(self.read(self, index), np.uint8).copy())


def by_open(data: Blocks, index: int) -> bytes:
    with open(data.paths[index], "rb") as file:  # noqa: PTH123
        return file.read()


def by_path(data: Blocks, index: int) -> bytes:
    return data.paths[index].read_bytes()


def by_number(data: Blocks, index: int) -> bytes:
    handle = os.open(data.paths[index], os.O_RDONLY)
    try:
        return os.read(handle, SIZE // 2) + os.pread(handle, SIZE // 2, SIZE // 2)
    finally:
        os.close(handle)


def by_map(data: Blocks, index: int) -> bytes:
    return bytes(np.memmap(data.paths[index], np.uint8, "r"))


def by_library(data: Blocks, index: int) -> bytes:
    return np.fromfile(data.paths[index], np.uint8).tobytes()  # opened in C


def hanging(data: Blocks, index: int) -> bytes:
    time.sleep(60)
    return b""


def raising(data: Blocks, index: int) -> bytes:
    raise KeyError(index)


def dying(data: Blocks, index: int) -> bytes:
    os._exit(3)


def iterator_of(data: Any, workers: int = 0, **more: Any) -> Any:
    return iter(DataLoader(data, batch_size=4, num_workers=workers, **more))


def probe(data: Any, *, workers: int = 0, seconds: float = 0.1) -> dict[str, Any]:
    iterator = iterator_of(data, workers)
    told = probe_storage(iterator, INDICES, None, seconds)
    del iterator
    return told


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_are_read_again_where_they_were_read(tmp_path: Path, workers: int) -> None:
    """By the process itself, or by one like its workers; with what was asked for and what the files hold."""
    gc.collect()  # files that other tests have left mapped count as this process's
    told = probe(Blocks(tmp_path, by_open), workers=workers)
    found = read_reread(told)
    assert found is not None
    assert found.again.asked == pytest.approx(4 * SIZE, rel=0.1)
    assert found.held == COUNT * SIZE
    assert "reread" not in told["missing"]


def test_of_batches_that_take_too_long_a_part_is_read_and_counted_as_whole(tmp_path: Path) -> None:
    """One sample of four: what an object store at 75 ms a sample leaves time for, of batches of 256."""
    seen: list[int] = []

    def noting(data: Blocks, index: int) -> bytes:
        seen.append(index)
        time.sleep(0.002)
        return by_path(data, index)

    told = probe_storage(iterator_of(Blocks(tmp_path, noting)), INDICES, None, 0.1, made=0.16)
    found, stub = read_reread(told), read_stub(told)
    assert found is not None and stub is not None
    assert {index % 4 for index in seen} == {0}
    assert found.again.batches > 1
    assert found.again.asked == pytest.approx(4 * SIZE, rel=0.1)
    assert found.again.seconds > 4 * 0.002
    assert stub.nothing > 4 * 0.002


def by_chance(data: Blocks, index: int) -> bytes:
    return torch.randint(256, (SIZE,), dtype=torch.uint8).numpy().tobytes()


def by_own_chance(data: Blocks, index: int) -> bytes:
    return np.random.default_rng().bytes(SIZE)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("read", "why"),
    [
        (by_open, ""),
        (by_chance, "reading a sample draws from torch's random generator"),
        (by_own_chance, "differed on a second read"),
    ],
)
def test_samples_that_are_drawn_anew_are_told_of(
    tmp_path: Path, workers: int, read: Callable[[Blocks, int], bytes], why: str
) -> None:
    """Kept, they would stay the same: by the generators of the process, and by the samples themselves."""
    told = probe(Blocks(tmp_path, read), workers=workers)
    assert told["unkept"] is not None
    assert why in told["unkept"]
    assert bool(told["unkept"]) == bool(why)


@pytest.mark.parametrize("read", [by_open, by_path, by_number])
def test_reads_are_answered_from_memory(tmp_path: Path, read: Callable[[Blocks, int], bytes]) -> None:
    """Through `open`, `pathlib` and file numbers; the samples are the same."""
    data = Blocks(tmp_path, read)
    with Answers().answering():
        for _ in range(2):
            assert data[3].tolist() == [3] * SIZE
    told = probe(data)
    found = read_stub(told)
    assert found is not None
    assert found.reads is not None, told["missing"]
    assert found.samples is not None


@pytest.mark.parametrize("read", [by_map, by_library])
def test_reads_that_cannot_be_answered_are_said_to_be_so(
    tmp_path: Path, read: Callable[[Blocks, int], bytes]
) -> None:
    """A memory map, and a library's own file: not measured, which is not "no effect"."""
    told = probe(Blocks(tmp_path, read))
    found = read_stub(told)
    assert found is not None
    assert found.reads is None
    assert found.reading is None
    assert told["missing"]["stubbed reads"]


@pytest.mark.parametrize(
    ("read", "seconds", "said"),
    [(hanging, 0.1, "not over after"), (raising, 5.0, "KeyError"), (dying, 5.0, "exit code 3")],
)
def test_a_dataset_that_fails_aside_harms_nothing(
    tmp_path: Path, read: Callable[[Blocks, int], bytes], seconds: float, said: str
) -> None:
    """A helper that hangs, raises or dies is a reason why nothing was measured."""
    iterator = iterator_of(Blocks(tmp_path, by_open), 1)
    iterator._dataset.read = read
    told = probe_storage(iterator, INDICES, "fork", seconds)
    assert read_reread(told) is None
    assert said in told["missing"]["reread"]
    assert said in told["missing"]["stub"]


def test_an_iterable_dataset_cannot_be_read_again() -> None:
    """It has no indices."""

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(8))

    told = probe_storage(iterator_of(Stream()), [[None]], None, 0.1)
    assert "iterable" in told["missing"]["reread"]


def test_what_the_dataset_remembers_is_not_read_again(tmp_path: Path) -> None:
    """A pass that asks for nothing says nothing of storage: no cold pass is told of."""
    kept: dict[int, bytes] = {}

    def once(data: Blocks, index: int) -> bytes:
        if index not in kept:
            kept[index] = by_open(data, index)
        return kept[index]

    told = probe(Blocks(tmp_path, once))
    assert "cold" in told["missing"]


def test_only_what_was_handed_out_counts_as_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers fetch ahead; indices that only lie in a queue are not among the last."""
    kind = vars(torch_dataloader)["_BaseDataLoaderIter"]
    for name in ("_next_index", "_reset"):
        monkeypatch.setattr(kind, name, getattr(kind, name))
    handed = Handed()
    draw = handed.noting(kind.__next__)
    for workers in (0, 2):
        iterator = iterator_of(torch.arange(40), workers)
        iterator._stoker_loader = type("Known", (), {"id": workers})()
        for _ in range(3):
            draw(iterator)
        assert handed.of(workers) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        del iterator


def test_a_file_is_cold_only_where_the_kernel_says_so(tmp_path: Path) -> None:
    """On a file system that keeps its pages (one in memory) the reason is told instead."""
    path = tmp_path / "data"
    path.write_bytes(b"1" * (1 << 20))
    handle = os.open(path, os.O_RDWR)
    os.fsync(handle)  # what is not on the disk yet cannot leave memory
    os.close(handle)
    assert files.resident(str(path), 1 << 20) == 1.0
    why = files.evict({str(path)})
    left = files.resident(str(path), 1 << 20)
    assert left is not None
    assert (why is None) == (left <= 0.1)


def test_large_files_are_left_in_memory(tmp_path: Path) -> None:
    """The user's next run would have to read them again."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(300 << 20)
    assert "more than an experiment may" in (files.evict({str(path)}) or "")


def test_the_files_of_a_dataset_are_found_by_its_attributes(tmp_path: Path) -> None:
    """Of a long list some stand for all; a folder counts where no file is named, code never."""

    class Named:
        def __init__(self, **held: Any) -> None:
            self.__dict__.update(held)

    paths = []
    for number in range(600):
        paths.append(tmp_path / f"{number}.bin")
        paths[-1].write_bytes(b"1" * 100)
    held = files.held_by(Named(items=[(path, 3) for path in paths], root=str(tmp_path)), set())
    assert held == pytest.approx(60_000, rel=0.01)
    assert files.held_by(Named(items=paths), {str(path) for path in paths[:50]}) == held
    assert files.held_by(Named(spec={"kvstore": {"path": str(tmp_path)}}), set()) == 60_000
    assert files.held_by(Named(label="no such file", code=__file__), {"/etc/hostname"}) is None


def test_bytes_over_tcp_are_counted_whoever_reads_them() -> None:
    """By the kernel's own account of the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            before = read_counters()
            far.sendall(b"1" * 5000)
            got = 0
            while got < 5000:
                got += len(near.recv(5000))
            assert received_between(before, read_counters()) == 5000
