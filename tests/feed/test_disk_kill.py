"""Processes that fill and read a cache, killed for real: only whole rows are read, and the next goes on."""

import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from feed.disk_nursery import FIRST, LAST, NUMBERS, SAMPLES, STARTED, WRITING, WROTE
from feed.numbered import Numbered, assert_same
from stoker.feed.tiers.disk import DiskTier

WAIT_S = 60.0
MODES = ("fill", "read")


class Nursery:
    """Starts children in a process of their own, and tells what they were doing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "feed.disk_nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )

    def _ask(self, *words: object) -> int:
        assert self._process.stdin and self._process.stdout
        print(*words, file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def start(self, root: Path, mode: str, *, until: int = STARTED) -> tuple[int, Path]:
        """A child that fills the cache under this root, once its flag `until` is up: its pid, its flags."""
        flags = self.folder / f"flags-{self.started}"
        flags.write_bytes(bytes(24))
        self.started += 1
        child = self._ask("start", root, flags, mode, self.started)
        latest = time.monotonic() + WAIT_S
        while not flags.read_bytes()[until]:
            assert time.monotonic() < latest, "it never began"
        return child, flags

    def wait(self, child: int) -> int:
        """A child's exit code."""
        return self._ask("wait", child)

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        assert self._process.wait(WAIT_S) == 0
        self._process.stdout.close()


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path)
    yield nursery
    nursery.close()


@pytest.fixture
def spans(nursery: Nursery, tmp_path: Path) -> dict[str, float]:
    """How long an undisturbed child of each kind writes."""
    found = {}
    for mode in MODES:
        taken: list[float] = []
        for number in range(3):  # the first of them takes longer than any later one
            child, flags = nursery.start(tmp_path / f"measured-{mode}-{number}", mode)
            assert nursery.wait(child) == 0
            told = flags.read_bytes()
            (first,), (last,) = struct.unpack("d", told[FIRST]), struct.unpack("d", told[LAST])
            taken.append(last - first)
        found[mode] = median(taken)
    return found


def check_what_is_there(root: Path) -> int:
    """All rows that are there are whole, none of them has to be asked for again; how many."""
    source = Numbered(SAMPLES, numbers=NUMBERS)
    tier = DiskTier(source, root, cap_bytes=10**9, reserve_bytes=1 << 20)
    pack = tier._open.get().pack
    assert pack is not None, tier.why
    there = np.flatnonzero(pack.sums)
    source.asked.clear()
    got = tier.read(there)
    assert (source.asked, tier.damaged) == ([], 0)
    assert_same(got, source.read(there))
    return len(there)


def kill_one(
    nursery: Nursery, root: Path, mode: str, span: float, chance: random.Random, others: int
) -> bool:
    """Kill a child at a moment drawn over the span of its writes; whether rows were just being written.

    Others that fill the same cache meanwhile are to finish, and what is left is left to the next.
    """
    child, flags = nursery.start(root, mode, until=WROTE)
    beside = [nursery.start(root, chance.choice(MODES))[0] for _ in range(others)]
    time.sleep(chance.uniform(0, span))
    os.kill(child, signal.SIGKILL)
    nursery.wait(child)
    inside = flags.read_bytes()[WRITING] == 1
    if not others:
        check_what_is_there(root)
    assert [nursery.wait(other) for other in beside] == [0] * others
    after, _ = nursery.start(root, chance.choice(MODES))
    assert nursery.wait(after) == 0
    assert check_what_is_there(root) == SAMPLES
    assert sorted(path.name for path in root.iterdir() if path.is_dir()) == [
        next(root.glob("*/sums")).parent.name
    ]
    shutil.rmtree(root)
    return inside


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_process_leaves_only_whole_rows(
    nursery: Nursery, spans: dict[str, float], tmp_path: Path, mode: str
) -> None:
    """kill -9 while rows are written: those that are there are right, and the next process fills the rest."""
    chance = random.Random(mode)
    for number in range(4):
        kill_one(nursery, tmp_path / str(number), mode, spans[mode], chance, others=number % 2)


def test_a_process_killed_while_it_makes_the_cache(nursery: Nursery, tmp_path: Path) -> None:
    """kill -9 before the first row: the next finds a whole cache or makes one, and no rubbish stays."""
    chance = random.Random(5)
    for _ in range(6):
        child, _ = nursery.start(tmp_path / "root", "read")
        time.sleep(chance.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        nursery.wait(child)
    check_what_is_there(tmp_path / "root")
    assert len([path for path in (tmp_path / "root").iterdir() if path.is_dir()]) == 1


def test_processes_fill_one_cache_together(nursery: Nursery, tmp_path: Path) -> None:
    """Two fill and two read at once: each sees the source's samples, and nothing is found damaged."""
    children = [nursery.start(tmp_path / "shared", mode)[0] for mode in MODES * 2]
    assert [nursery.wait(child) for child in children] == [0, 0, 0, 0]
    assert check_what_is_there(tmp_path / "shared") == SAMPLES


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(4))
def test_a_hundred_kills(nursery: Nursery, spans: dict[str, float], tmp_path: Path, part: int) -> None:
    """30 a part, alone and beside others, filling and reading; at least half of them fall into a write."""
    chance = random.Random(part)
    inside = [
        kill_one(nursery, tmp_path / f"{number}{mode}", mode, spans[mode], chance, others=number % 4 // 3)
        for number in range(15)
        for mode in MODES
    ]
    print(f"{len(inside)} kills, {sum(inside)} of them inside a write; writes take {spans}")
    assert sum(inside) >= 15
