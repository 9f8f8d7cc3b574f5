"""Which tier holds the samples: the highest that fits, and the sentence that says why. Pure.

The tiers from the device down: vram; spread, which is each sample on the card of one of the ranks; window,
which is ram with a part of it in VRAM too; ram; source. A disk cache, where a folder for one was given, lies
under whichever is chosen: what memory does not hold is read from there.
"""

from collections.abc import Callable
from dataclasses import dataclass

from stoker.errors import UsageError
from stoker.facts.words import size

TIERS = ("vram", "spread", "window", "ram", "source")
# Of what is free, left to everybody else: the loop's own growth, the page cache, other processes.
KEPT_SHARE = 0.1
# A smaller part of the samples in VRAM is not worth it.
_LEAST_WINDOW = 0.1


@dataclass(frozen=True, kw_only=True)
class Room:
    """What is free here, in bytes; None where there is none, or it could not be told.

    `every` is what samples may take of every rank's card, as the ranks have told each other: the same on all.
    """

    vram: int | None = None
    ram: int | None = None
    shm: int | None = None
    every: int | None = None


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is to be held, and what is known of it.

    `bytes` is what all samples take; None with `unheld` saying why they cannot be held in memory. `reserve`
    is what the model needs of the device at its peak; None while that is not known. `ranks` share this host.
    `spread` is what each card takes where the samples are spread over the `cards` of all ranks; None where
    they cannot be.
    """

    bytes: int | None
    unheld: str = ""
    reserve: int | None = None
    reserve_said: str = ""
    ranks: int = 1
    spread: int | None = None
    cards: int = 1


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A tier, why it is that one, and why none above it; of a window, the bytes of samples in VRAM."""

    tier: str
    why: str
    above: str = ""
    resident: int = 0


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
    passed: list[str] = []
    for tier in allowed[:-1]:
        reason, resident = _FITS[tier](wish, room)
        if resident is not None:
            above = "" if room.vram is None else "".join(passed)  # that there is no device is no news
            return Choice(tier=tier, why=f"{tier}: {reason}", above=above, resident=resident)
        if reason:
            passed.append(f"; not {tier}: {reason}")
    return Choice(tier="source", why="source", above="".join(passed))


# What is said of a tier, and the bytes that would stay in VRAM; None for those where it does not fit.
_Fit = tuple[str, int | None]


def _vram(wish: Wish, room: Room) -> _Fit:
    assert wish.bytes is not None
    left, said = left_on_device(wish, room)
    if left is None:
        return said, None
    if room.every is not None and _spread(wish, room)[1] is not None:  # so all ranks take the same of the two
        left = room.every
        said = f"every rank's card ({size(left)} left on each); here {said}"
    if wish.bytes <= left:
        return f"{size(wish.bytes)} fits {said}", wish.bytes
    return f"{size(wish.bytes)} does not fit {said}", None


def _spread(wish: Wish, room: Room) -> _Fit:
    """The same answer on every rank: of what they have told each other, and nothing of this one's own."""
    if wish.spread is None or room.every is None:
        return "", None
    assert wish.bytes is not None
    what = f"{size(wish.bytes)} over {wish.cards} cards, {size(wish.spread)} on each,"
    left = f"the {size(room.every)} that every rank has left"
    if wish.spread > room.every:
        return f"{what} does not fit {left}", None
    return f"{what} fits {left}", wish.spread


def _window(wish: Wish, room: Room) -> _Fit:
    """What stands in its way is told of the tiers above and below."""
    assert wish.bytes is not None
    left, said = left_on_device(wish, room)
    fits, resident = _ram(wish, room)
    if left is None or resident is None or left < wish.bytes * _LEAST_WINDOW:
        return "", None
    return f"{size(left)} of {size(wish.bytes)} in VRAM ({said}), all of it in RAM ({fits})", left


def _ram(wish: Wish, room: Room) -> _Fit:
    assert wish.bytes is not None
    if room.ram is None:
        return "how much memory is free could not be told", None
    left = int(room.ram * (1 - KEPT_SHARE))
    if wish.bytes > left:
        return f"{size(wish.bytes)} does not fit {size(room.ram)} free", None
    if wish.ranks > 1 and (room.shm is None or wish.bytes > room.shm):
        shm = "none" if room.shm is None else size(room.shm)
        return f"{size(wish.bytes)} shared by {wish.ranks} ranks does not fit /dev/shm ({shm} free)", None
    return f"{size(wish.bytes)} fits {size(room.ram)} free", 0


def left_on_device(wish: Wish, room: Room) -> tuple[int | None, str]:
    """The device's memory that samples may take, and of how much it is left."""
    if room.vram is None:
        return None, "the device is the CPU"
    if wish.reserve is None:
        return None, "what the model needs is not known yet (give reserve=, or wait for 3 steps)"
    said = f"{size(room.vram)} free, {size(wish.reserve)} kept for the model ({wish.reserve_said})"
    return int((room.vram - wish.reserve) * (1 - KEPT_SHARE)), said


_FITS: dict[str, Callable[[Wish, Room], _Fit]] = {
    "vram": _vram,
    "spread": _spread,
    "window": _window,
    "ram": _ram,
}
