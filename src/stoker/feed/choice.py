"""Which tier holds the samples: the highest that fits, and the sentence that says why. Pure.

The tiers from the device down: vram, ram, source. A disk cache, where a folder for one was given, lies
under whichever is chosen: what memory does not hold is read from there.
"""

from dataclasses import dataclass

from stoker.errors import UsageError
from stoker.facts.words import size

TIERS = ("vram", "ram", "source")
# Of what is free, left to everybody else: the loop's own growth, the page cache, other processes.
_KEPT_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Room:
    """What is free here, in bytes; None where there is none, or it could not be told."""

    vram: int | None = None
    ram: int | None = None
    shm: int | None = None


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is to be held, and what is known of it.

    `bytes` is what all samples take; None with `unheld` saying why they cannot be held in memory. `reserve`
    is what the model needs of the device at its peak; None while that is not known. `ranks` share this host.
    """

    bytes: int | None
    unheld: str = ""
    reserve: int | None = None
    reserve_said: str = ""
    ranks: int = 1


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A tier, and why it is that one."""

    tier: str
    why: str


def checked_tier(asked: str) -> str:
    """The tier, if there is one of that name."""
    if asked != "auto" and asked not in TIERS:
        raise UsageError(f"no tier {asked!r}: take one of auto, {', '.join(TIERS)}")
    return asked


def choose(wish: Wish, room: Room, asked: str = "auto", below: str | None = None) -> Choice:
    """The highest tier that fits; `asked` names one, `below` one that has failed."""
    if checked_tier(asked) == "source":
        return Choice(tier="source", why="source: asked for")
    if wish.bytes is None:
        return Choice(tier="source", why=f"source: {wish.unheld}")
    allowed = TIERS if asked == "auto" else TIERS[TIERS.index(asked) :]
    if below is not None:
        allowed = tuple(tier for tier in allowed if TIERS.index(tier) > TIERS.index(below))
    passed = []
    for tier in allowed:
        if tier == "source":
            break
        reason, fits = (_vram if tier == "vram" else _ram)(wish, room)
        if fits:
            return Choice(tier=tier, why=f"{tier}: {reason}")
        passed.append(f"{tier}: {reason}")
    return Choice(tier="source", why="source; not " + "; not ".join(passed) if passed else "source")


def _vram(wish: Wish, room: Room) -> tuple[str, bool]:
    assert wish.bytes is not None
    if room.vram is None:
        return "the device is the CPU", False
    if wish.reserve is None:
        return "what the model needs is not known yet (give reserve=, or wait for 3 steps)", False
    left = int((room.vram - wish.reserve) * (1 - _KEPT_SHARE))
    said = f"{size(room.vram)} free, {size(wish.reserve)} kept for the model ({wish.reserve_said})"
    if wish.bytes <= left:
        return f"{size(wish.bytes)} fits {said}", True
    return f"{size(wish.bytes)} does not fit {said}", False


def _ram(wish: Wish, room: Room) -> tuple[str, bool]:
    assert wish.bytes is not None
    if room.ram is None:
        return "how much memory is free could not be told", False
    left = int(room.ram * (1 - _KEPT_SHARE))
    if wish.bytes > left:
        return f"{size(wish.bytes)} does not fit {size(room.ram)} free", False
    if wish.ranks > 1 and (room.shm is None or wish.bytes > room.shm):
        shm = "none" if room.shm is None else size(room.shm)
        return f"{size(wish.bytes)} shared by {wish.ranks} ranks does not fit /dev/shm ({shm} free)", False
    return f"{size(wish.bytes)} fits {size(room.ram)} free", True
