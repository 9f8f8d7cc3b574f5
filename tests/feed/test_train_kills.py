"""Training that is killed for real, again and again: the next start goes on, and nothing shows of it."""

import json
import mmap
import os
import random
import secrets
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import torch

from feed.disk_nursery import make_source
from feed.kill_campaign import Campaign
from feed.nursery import ENDED, WAIT_S, Nursery
from feed.train_nursery import (
    DAMAGED,
    EPOCHS,
    GLOBAL_BATCH,
    KINDS,
    NUMBERS,
    SAMPLES,
    STEP,
    STEPS,
    UNDER_WAY,
    Start,
    number_of,
)
from stoker.feed.tiers.disk import DiskTier

# Where a start's samples are and how many ranks it has. Ranks on shared cores start slowly: not too many.
WAYS = [("source", 1), ("ram", 1), ("source", 1), ("ram", 1), ("source", 2), ("ram", 2), ("ram", 4)]
KILLS_A_JOB = 5
# Of these kills one falls anywhere between a start and its end, not at a moment drawn over the writes.
ANYWHERE = 5


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What an undisturbed run writes: of each write its kind, the step at work and its seconds."""

    writes: list[tuple[str, int, float]]
    span: float

    def draw(self, share: float) -> tuple[str, int, float]:
        """The write at this share of all the time that is spent on writes, and the share of it by then."""
        ends = list(accumulate(seconds for _, _, seconds in self.writes))
        moment = share * ends[-1]
        at = next(at for at, end in enumerate(ends) if moment <= end)
        kind, step, seconds = self.writes[at]
        return kind, step, 1 - (ends[at] - moment) / seconds

    def seconds(self, kind: str) -> float:
        """How long a write of this kind takes, the few that wait for the disk aside."""
        return median(seconds for this, _, seconds in self.writes if this == kind)


class Furnace:
    """Starts jobs, and knows how they go undisturbed."""

    def __init__(self, nursery: Nursery, version: str, folder: Path) -> None:
        self.nursery = nursery
        self._folder = folder
        self._timelines: dict[tuple[str, int], Timeline] = {}
        self.source = make_source(SAMPLES, NUMBERS, version)
        self.losses: list[float] = []
        self.trained: list[list[int]] = []
        self.measure(WAYS[0])

    def start(self, folder: Path, way: tuple[str, int]) -> tuple[list[int], list[mmap.mmap]]:
        """All ranks of a job: their pids and flags."""
        folder.mkdir(exist_ok=True)
        tier, ranks = way
        meeting = folder / f"meeting-{self.nursery.started}"
        starts = [
            Start(folder=folder, tier=tier, rank=rank, world_size=ranks, meeting=meeting)
            for rank in range(ranks)
        ]
        begun = [self.nursery.start(*start.words()) for start in starts]
        return [pid for pid, _ in begun], [flags for _, flags in begun]

    def finish(self, folder: Path, way: tuple[str, int]) -> None:
        """Train a job to its end."""
        pids, _ = self.start(folder, way)
        assert [self.nursery.wait(pid) for pid in pids] == [0] * len(pids)

    def measure(self, way: tuple[str, int]) -> Timeline:
        """A whole run that nobody kills: its losses are those of every other one."""
        if way not in self._timelines:
            job = self._folder / "-".join(map(str, way))
            self.finish(job, way)
            told = json.loads((job / "writes.json").read_text())
            writes = [tuple(write) for write in told["writes"]]
            self._timelines[way] = Timeline(writes=writes, span=told["span"])
            state = torch.load(job / "checkpoint", weights_only=True)
            self.losses = self.losses or state["losses"]
            self.trained = self.trained or state["trained"]
            assert (state["losses"], state["trained"]) == (self.losses, self.trained), way
        return self._timelines[way]


@pytest.fixture(scope="module")
def furnace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Furnace]:
    folder = tmp_path_factory.mktemp("undisturbed")
    version = f"a{secrets.token_hex(4)}"  # what others have left in shared memory is of other data
    nursery = Nursery("feed.train_nursery", folder, version)
    try:
        yield Furnace(nursery, version, folder)
    finally:
        nursery.close()


def under_way(flags: list[mmap.mmap]) -> list[str]:
    """The kinds of writes that are (or were, when it was killed) under way in some rank."""
    return [kind for kind in KINDS if any(number_of(rank, UNDER_WAY[kind]) for rank in flags)]


def await_moment(timeline: Timeline, share: float, pids: list[int], flags: list[mmap.mmap]) -> None:
    """Until so much of the drawn write is done, or a rank has ended.

    Rows that are there are not written again: then the next write is taken for it.
    """
    wanted, step, part = timeline.draw(share)
    latest = time.monotonic() + WAIT_S
    while time.monotonic() < latest:
        found = under_way(flags) if number_of(flags[0], STEP) >= step else []
        if wanted in found or (found and wanted != "save"):
            time.sleep(part * timeline.seconds(wanted if wanted in found else found[0]))
            return
        if any(rank[ENDED] for rank in flags):
            return
        time.sleep(0.0001)
    raise AssertionError(f"step {step} never came, for processes {pids}")


def count_partial_rows(furnace: Furnace, folder: Path) -> int:
    """Of the rows that the job's cache has, those that are not whole."""
    if not any(folder.glob("cache/*/sums")):
        return 0
    tier = DiskTier(furnace.source, folder / "cache", cap_bytes=sys.maxsize)
    pack = tier._open.get().pack
    assert pack is not None, tier.why
    there = np.flatnonzero(pack.sums)
    differ = (tier.read(there)["values"] != furnace.source.read(there)["values"]).any(1)
    partial = int(differ.sum()) + tier.misses + tier.damaged
    tier.close()
    return partial


def read_checkpoint(furnace: Furnace, folder: Path) -> list[list[int]]:
    """The batches that the job was trained on so far; with the losses of a run that nobody killed."""
    checkpoint = folder / "checkpoint"
    if not checkpoint.exists():
        return []
    state = torch.load(checkpoint, weights_only=True)
    trained: list[list[int]] = state["trained"]
    assert state["losses"] == furnace.losses[: len(trained)]
    return trained


def train_under_kills(
    furnace: Furnace, folder: Path, chance: random.Random, ways: list[tuple[str, int]] = WAYS
) -> Counter[str]:
    """One job to its end; how its kills fell, what became of its samples.

    The moments are drawn over the writes of a whole run, and taken in their order, start by start.
    """
    seen: Counter[str] = Counter()
    reached = 0
    for number, share in enumerate(sorted(chance.random() for _ in range(KILLS_A_JOB))):
        way = chance.choice(ways)
        timeline = furnace.measure(way)
        pids, flags = furnace.start(folder, way)
        if chance.randrange(ANYWHERE):
            await_moment(timeline, share, pids, flags)
        else:
            time.sleep(chance.uniform(0, timeline.span * (1 - reached / (EPOCHS * STEPS))))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        codes = {furnace.nursery.wait(pid) for pid in pids}
        seen["partial"] += DAMAGED in codes  # the batch that a rank was handed
        assert codes <= {0, DAMAGED, -signal.SIGKILL}, codes
        seen["resumed"] += number > 0
        if codes != {-signal.SIGKILL}:
            break  # it came too late: the job had ended
        seen["kills"] += 1
        seen["inside"] += bool(under_way(flags))
        seen.update(f"inside {kind}" for kind in under_way(flags))
        if number % 2:  # the others are left to the next start as they are
            seen["partial"] += count_partial_rows(furnace, folder)
            step = len(read_checkpoint(furnace, folder))
            assert step >= reached, "a checkpoint went back"
            reached = step
    else:
        furnace.finish(folder, ways[-1])
        seen["resumed"] += 1
    furnace.finish(folder, ("ram", 1))  # at its end already: leaves no shared memory behind
    seen["partial"] += count_partial_rows(furnace, folder)
    trained = read_checkpoint(furnace, folder)
    assert trained == furnace.trained
    for epoch in range(EPOCHS):
        times = Counter(chain.from_iterable(trained[epoch * STEPS : (epoch + 1) * STEPS]))
        seen["lost"] += sum(times[sample] == 0 for sample in range(SAMPLES))
        seen["doubled"] += sum(times[sample] > 1 for sample in range(SAMPLES))
    shutil.rmtree(folder)
    return seen


def assert_nothing_shows(seen: Counter[str]) -> None:
    """Each kill was followed by a start that went on, with every sample once an epoch, and whole."""
    assert (seen["resumed"], seen["partial"]) == (seen["kills"], 0)
    assert (seen["lost"], seen["doubled"]) == (0, 0)


def test_killed_training_goes_on_as_if_it_had_not_been(furnace: Furnace, tmp_path: Path) -> None:
    """kill -9, five times: every sample once an epoch, and bit by bit the losses of a run left alone."""
    seen = train_under_kills(furnace, tmp_path / "job", random.Random(2), WAYS[1:5])
    assert seen["kills"] >= 3
    assert_nothing_shows(seen)


def test_a_step_is_made_of_a_whole_batch(furnace: Furnace) -> None:
    """What the jobs here are held to: each sample once an epoch, in another order each time."""
    epochs = [
        list(chain.from_iterable(furnace.trained[at * STEPS : (at + 1) * STEPS])) for at in range(EPOCHS)
    ]
    assert all(sorted(epoch) == list(range(SAMPLES)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == EPOCHS
    assert {len(batch) for batch in furnace.trained} == {GLOBAL_BATCH, SAMPLES % GLOBAL_BATCH}
    assert len(set(furnace.losses)) == EPOCHS * STEPS


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(4))
def test_a_hundred_kills(furnace: Furnace, tmp_path: Path, part: int) -> None:
    """30 a part, five and more a job, in each start of it; at least half of them fall into a write."""
    chance = random.Random(part)
    seen: Counter[str] = Counter()
    while seen["kills"] < 30:
        seen.update(train_under_kills(furnace, tmp_path / "job", chance))
    print("\n", {name: count for name, count in seen.items() if " " in name})
    writes = {kind: furnace.measure(("ram", 1)).seconds(kind) for kind in KINDS}
    Campaign.of(seen, name="training", part=str(part), writes_s=writes).tell()
    assert_nothing_shows(seen)
    assert seen["inside"] >= seen["kills"] / 2
