"""Processes that fill and read a cache, killed for real: only whole rows are read, and the next goes on."""

import mmap
import os
import random
import shutil
import signal
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from feed.disk_nursery import FIRST, LAST, NUMBERS, SAMPLES, STARTED, WRITING, WROTE
from feed.kill_campaign import Campaign
from feed.numbered import Numbered
from feed.nursery import WAIT_S, Nursery
from stoker.feed.tiers.disk import DiskTier

MODES = ("fill", "read")


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    nursery = Nursery("feed.disk_nursery", tmp_path_factory.mktemp("flags"))
    yield nursery
    nursery.close()


def start(nursery: Nursery, root: Path, mode: str, *, until: int = STARTED) -> tuple[int, mmap.mmap]:
    """A child that fills the cache under this root, once its flag `until` is up: its pid, its flags."""
    child, flags = nursery.start(root, mode, nursery.started + 1)
    latest = time.monotonic() + WAIT_S
    while not flags[until]:
        assert time.monotonic() < latest, "it never began"
    return child, flags


@pytest.fixture(scope="module")
def spans(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """How long an undisturbed child of each kind writes."""
    folder = tmp_path_factory.mktemp("measured")
    found = {}
    for mode in MODES:
        taken: list[float] = []
        for number in range(3):  # the first of them takes longer than any later one
            child, flags = start(nursery, folder / f"{mode}{number}", mode)
            assert nursery.wait(child) == 0
            (first,), (last,) = struct.unpack("d", flags[FIRST]), struct.unpack("d", flags[LAST])
            taken.append(last - first)
        found[mode] = median(taken)
    return found


def look(root: Path) -> Counter[str]:
    """How many rows are there, and how many of them are not whole: other bytes, or asked for again."""
    source = Numbered(SAMPLES, numbers=NUMBERS)
    tier = DiskTier(source, root, cap_bytes=10**9, reserve_bytes=1 << 20)
    pack = tier._open.get().pack
    assert pack is not None, tier.why
    there = np.flatnonzero(pack.sums)
    source.asked.clear()
    got = tier.read(there)
    again = len(source.asked)
    expected = source.read(there)
    differ = (got["values"] != expected["values"]).any(1) | (got["number"] != expected["number"])
    return Counter(there=len(there), partial=int(differ.sum()) + again + tier.damaged)


def kill_one(
    nursery: Nursery, root: Path, mode: str, span: float, chance: random.Random, others: int
) -> Counter[str]:
    """Kill a child at a moment drawn over the span of its writes; where it fell, and what became of the rows.

    Others that fill the same cache meanwhile are to finish, and what is left is left to the next.
    """
    child, flags = start(nursery, root, mode, until=WROTE)
    beside = [start(nursery, root, chance.choice(MODES))[0] for _ in range(others)]
    time.sleep(chance.uniform(0, span))
    os.kill(child, signal.SIGKILL)
    killed = nursery.wait(child) == -signal.SIGKILL  # and had not ended before
    seen = Counter(kills=int(killed), inside=int(killed and flags[WRITING] == 1))
    if not others:
        seen["partial"] += look(root)["partial"]
    assert [nursery.wait(other) for other in beside] == [0] * others
    after, _ = start(nursery, root, chance.choice(MODES))
    went_on = nursery.wait(after) == 0
    seen["resumed"] += killed and went_on
    found = look(root)
    seen["partial"] += found["partial"]
    seen["lost"] += SAMPLES - found["there"]
    assert sorted(path.name for path in root.iterdir() if path.is_dir()) == [
        next(root.glob("*/sums")).parent.name
    ]
    shutil.rmtree(root)
    return seen


def assert_nothing_shows(seen: Counter[str]) -> None:
    """Each kill was followed by a start that went on, to every row whole."""
    assert (seen["resumed"], seen["partial"], seen["lost"]) == (seen["kills"], 0, 0)


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_process_leaves_only_whole_rows(
    nursery: Nursery, spans: dict[str, float], tmp_path: Path, mode: str
) -> None:
    """kill -9 while rows are written: those that are there are right, and the next process fills the rest."""
    chance = random.Random(mode)
    for number in range(4):
        assert_nothing_shows(
            kill_one(nursery, tmp_path / str(number), mode, spans[mode], chance, others=number % 2)
        )


def test_a_process_killed_while_it_makes_the_cache(nursery: Nursery, tmp_path: Path) -> None:
    """kill -9 before the first row: the next finds a whole cache or makes one, and no rubbish stays."""
    chance = random.Random(5)
    for _ in range(6):
        child, _ = start(nursery, tmp_path / "root", "read")
        time.sleep(chance.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        nursery.wait(child)
    assert look(tmp_path / "root")["partial"] == 0
    assert len([path for path in (tmp_path / "root").iterdir() if path.is_dir()]) == 1


def test_processes_fill_one_cache_together(nursery: Nursery, tmp_path: Path) -> None:
    """Two fill and two read at once: each sees the source's samples, and nothing is found damaged."""
    children = [start(nursery, tmp_path / "shared", mode)[0] for mode in MODES * 2]
    assert [nursery.wait(child) for child in children] == [0, 0, 0, 0]
    assert look(tmp_path / "shared") == Counter(there=SAMPLES, partial=0)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(4))
def test_a_hundred_kills(nursery: Nursery, spans: dict[str, float], tmp_path: Path, part: int) -> None:
    """30 a part, alone and beside others, filling and reading; at least half of them fall into a write."""
    chance = random.Random(part)
    seen: Counter[str] = Counter()
    number = 0
    while seen["kills"] < 30:
        mode = MODES[number % 2]
        root = tmp_path / str(number)
        seen.update(kill_one(nursery, root, mode, spans[mode], chance, others=number % 8 // 6))
        number += 1
    Campaign.of(seen, name="packing", part=str(part), writes_s=spans).tell()
    assert_nothing_shows(seen)
    assert seen["inside"] >= 15
