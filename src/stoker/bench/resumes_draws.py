"""What happens to a training in `stoker bench resumes`, drawn by the seed. Pure.

A chain is one training from its first start to its last step. Each start of it has ranks, a micro-batch, a
way that samples come, and readers of its own; each but the last is ended by a blow.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar

from stoker.bench.resumes_task import BATCH
from stoker.feed.choice import TIERS

# Those that the machine has a card for; all on the CPU.
RANKS = {1: 4, 2: 4, 4: 2}
WORKERS = {0: 6, 1: 2, 2: 2}
# Where samples come from: the staged files, a cache on disk (read through the page cache, or past it after
# that was emptied), the node's memory, or that over the cache on disk. With a card, its own memory too.
WAYS = {"source": 2, "disk": 3, "direct": 2, "ram": 3, "ram over disk": 2}
WAYS_ON_CARD = {"vram": 4, "window": 3}
CACHED = ("disk", "direct", "ram over disk")
# Whom it hits. A stop is SIGTERM: to one rank, or to all.
BLOWS = {"rank": 6, "all": 6, "reader": 3, "stop one": 2, "stop all": 2}
AIMS = {"start": 3, "restore": 2, "save": 4, "prune": 2, "disk": 6, "ram": 6, "epoch": 3, "step": 2, "any": 1}
# At the latest after so many updates of this start; what is aimed at must have had its chance by then.
_LATEST = 5
_LEAST = {"epoch": 7, "save": 4, "prune": 4}
# In how many of the entries to a place it may come: saves are few, rows many.
_ENTRIES = {"disk": 3, "ram": 3, "save": 2, "step": 4}
# The share of starts that find their caches empty.
BARE = 0.4
# One chain in so many keeps its ranks and its micro-batch, and has dropout.
STEADY = 4
# One start in so many is of processes that share nothing with those before: a new interpreter each.
FRESH = 20
# So many blows a chain at most: then it is left alone.
MOST = 16
T = TypeVar("T", int, str)


@dataclass(frozen=True, kw_only=True)
class Start:
    """How a training is begun, or gone on with."""

    ranks: int
    micro_batch: int
    way: str
    workers: int
    # On a machine that has nothing of the set in its caches yet.
    bare: bool = False
    # In new interpreters, not forked ones.
    fresh: bool = False

    @property
    def tier(self) -> str:
        """What the feed is asked for."""
        first = self.way.split()[0]
        return first if first in TIERS else "source"

    @property
    def is_cached(self) -> bool:
        """Whether there is a cache on disk under it."""
        return self.way in CACHED


@dataclass(frozen=True, kw_only=True)
class Blow:
    """What ends a start: whom it hits, and when.

    It comes at the `nth` entry to the place that is aimed at, after a `part` of the time that is spent there
    as a rule; and at the latest after `latest` updates.
    """

    kind: str
    rank: int
    aim: str
    nth: int
    part: float
    latest: int

    @property
    def is_stop(self) -> bool:
        """Whether it asks, and does not kill."""
        return self.kind.startswith("stop")


@dataclass(frozen=True, kw_only=True)
class Room:
    """What there is to draw from: how many ranks at most, and whether they have cards."""

    ranks: int = max(RANKS)
    cards: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A chain: its set and order, whether ranks and micro-batch stay, and how often its staging is killed."""

    number: int
    seed: int
    shuffle: str
    steady: Start | None
    stagings: int

    @property
    def dropout(self) -> float:
        """Draws inside the model are a rank's own: only with the same ranks are they the same."""
        return 0.0 if self.steady is None else 0.2


def draw_plan(seed: int, number: int, room: Room) -> tuple[Plan, Random]:
    """The chain of this number, and what the rest of it is drawn by."""
    chance = Random(f"{seed} {number}")
    start = draw_start(chance, None, room)
    plan = Plan(
        number=number,
        seed=chance.randrange(1 << 31),
        shuffle=chance.choice(("full", "full", "blocks")),
        steady=start if number % STEADY == STEADY - 1 else None,
        stagings=chance.choice((0, 1, 1, 2)),
    )
    return plan, chance


def draw_start(chance: Random, steady: Start | None, room: Room) -> Start:
    """The next start of a chain."""
    ranks = _weighted(chance, {ranks: weight for ranks, weight in RANKS.items() if ranks <= room.ranks})
    start = Start(
        ranks=ranks,
        micro_batch=chance.choice([size for size in (2, 4, 8, 16) if size <= BATCH // ranks]),
        way=_weighted(chance, WAYS | WAYS_ON_CARD if room.cards else WAYS),
        workers=_weighted(chance, WORKERS),
        bare=chance.random() < BARE,
    )
    if steady is None:
        return start
    return replace(start, ranks=steady.ranks, micro_batch=steady.micro_batch)


def draw_blow(chance: Random, start: Start) -> Blow:
    """What ends it. Readers are hit where there are some, and caches where some are written."""
    kinds = {kind: weight for kind, weight in BLOWS.items() if kind != "reader" or start.workers}
    written = {"ram": start.tier in ("ram", "window"), "disk": start.is_cached}
    aim = _weighted(chance, {aim: weight for aim, weight in AIMS.items() if written.get(aim, True)})
    # Checkpoints are rank 0's to write and read: it is hit at that more often than the others beside it.
    first = aim in ("save", "prune", "restore") and chance.random() < 0.75
    return Blow(
        kind=_weighted(chance, kinds),
        rank=0 if first else chance.randrange(start.ranks),
        aim=aim,
        nth=chance.randint(1, _ENTRIES.get(aim, 1)),
        part=chance.random(),
        latest=max(chance.randint(1, _LATEST), _LEAST.get(aim, 1)),
    )


def _weighted(chance: Random, weights: dict[T, int]) -> T:
    return chance.choices(list(weights), list(weights.values()))[0]
