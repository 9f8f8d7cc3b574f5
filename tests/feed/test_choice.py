"""Which tier holds the samples, by what fits; and what is said about it."""

import pytest

from stoker.errors import UsageError
from stoker.feed.choice import Room, Wish, choose

GB = 1 << 30
WISH = Wish(bytes=3 * GB, reserve=12 * GB, reserve_said="peak of 3 steps")


@pytest.mark.parametrize(
    ("wish", "room", "tier", "said"),
    [
        (WISH, Room(vram=92 * GB, ram=64 * GB), "vram", "3.0 GiB fits 92.0 GiB free, 12.0 GiB kept for"),
        (WISH, Room(vram=14 * GB, ram=64 * GB), "window", "1.8 GiB of 3.0 GiB in VRAM (14.0 GiB free, 12.0"),
        (WISH, Room(vram=12 * GB, ram=64 * GB), "ram", "3.0 GiB fits 64.0 GiB free"),
        (WISH, Room(vram=int(12.3 * GB), ram=64 * GB), "ram", "3.0 GiB fits 64.0 GiB free"),
        (WISH, Room(vram=14 * GB, ram=2 * GB), "source", "not vram: 3.0 GiB does not fit 14.0 GiB free"),
        (WISH, Room(vram=None, ram=64 * GB), "ram", "fits"),
        (WISH, Room(vram=None, ram=None), "source", "could not be told"),
        (Wish(bytes=3 * GB), Room(vram=92 * GB, ram=64 * GB), "ram", "fits"),
        (Wish(bytes=None, unheld="a is text"), Room(vram=92 * GB, ram=64 * GB), "source", "a is text"),
        (Wish(bytes=3 * GB, ranks=8), Room(ram=64 * GB, shm=GB), "source", "shared by 8 ranks"),
        (Wish(bytes=3 * GB, ranks=8), Room(ram=64 * GB, shm=4 * GB), "ram", "fits"),
    ],
)
def test_the_highest_tier_that_fits(wish: Wish, room: Room, tier: str, said: str) -> None:
    """Room for the model and for others is kept free."""
    choice = choose(wish, room)
    assert (choice.tier, said in choice.why + choice.above) == (tier, True), choice


@pytest.mark.parametrize("asked", ["vram", "auto"])
@pytest.mark.parametrize(
    ("wish", "room", "why", "above"),
    [
        (
            Wish(bytes=5 << 10),
            Room(vram=139 * GB, ram=125 * GB),
            "ram: 5.0 KiB fits 125 GiB free",
            "; not vram: what the model needs is not known yet (give reserve=, or wait for 3 steps)",
        ),
        (
            Wish(bytes=5 << 10, reserve=2 << 20, reserve_said="peak of 3 steps"),
            Room(vram=139 * GB, ram=125 * GB),
            "vram: 5.0 KiB fits 139 GiB free, 2.0 MiB kept for the model (peak of 3 steps)",
            "",
        ),
        (
            WISH,
            Room(vram=12 * GB, ram=64 * GB),
            "ram: 3.0 GiB fits 64.0 GiB free",
            "; not vram: 3.0 GiB does not fit 12.0 GiB free, 12.0 GiB kept for the model (peak of 3 steps)",
        ),
        (WISH, Room(ram=64 * GB), "ram: 3.0 GiB fits 64.0 GiB free", ""),
    ],
)
def test_why_none_above_it(asked: str, wish: Wish, room: Room, why: str, above: str) -> None:
    """VRAM that was asked for is taken once the model's need is known, and else the reason said."""
    choice = choose(wish, room, asked)
    assert (choice.why, choice.above) == (why, above)


def test_a_tenth_of_what_is_free_is_left_to_others() -> None:
    """What just fits does not."""
    assert choose(Wish(bytes=10 * GB), Room(ram=11 * GB)).tier == "source"
    assert choose(Wish(bytes=10 * GB), Room(ram=12 * GB)).tier == "ram"


def test_a_tier_that_was_asked_for_is_the_highest() -> None:
    """Lower ones stand in for it."""
    room = Room(vram=92 * GB, ram=64 * GB)
    assert choose(WISH, room, "ram").tier == "ram"
    assert choose(WISH, room, "source").tier == "source"
    assert choose(WISH, Room(vram=GB, ram=64 * GB), "vram").tier == "ram"
    assert choose(WISH, Room(vram=14 * GB, ram=64 * GB), "window").tier == "window"
    assert choose(WISH, Room(vram=14 * GB, ram=64 * GB), "ram").tier == "ram"
    with pytest.raises(UsageError, match="no tier 'gpu': take one of auto, vram"):
        choose(WISH, room, "gpu")


def test_what_stays_in_vram() -> None:
    """All of it, a part, or nothing."""
    assert choose(WISH, Room(vram=92 * GB, ram=64 * GB)).resident == 3 * GB
    assert choose(WISH, Room(vram=14 * GB, ram=64 * GB)).resident == int(1.8 * GB)
    assert choose(WISH, Room(vram=12 * GB, ram=64 * GB)).resident == 0


SPREAD = Wish(bytes=30 * GB, reserve=12 * GB, reserve_said="reserve=", spread=8 * GB, cards=4)


@pytest.mark.parametrize(
    ("room", "asked", "tier", "said"),
    [
        # Before the ranks have met, and where one of them does not know its model's need, nothing is spread.
        (Room(vram=20 * GB, ram=64 * GB), "auto", "window", "7.2 GiB of 30.0 GiB in VRAM"),
        (
            Room(vram=24 * GB, every=9 * GB),
            "auto",
            "spread",
            "30.0 GiB over 4 cards, 8.0 GiB on each, fits the",
        ),
        (Room(vram=24 * GB, every=9 * GB), "vram", "spread", "9.0 GiB that every rank has left"),
        (
            Room(vram=24 * GB, ram=64 * GB, every=7 * GB),
            "auto",
            "window",
            "8.0 GiB on each, does not fit the 7.0",
        ),
        # On the smallest card it would not fit: so this one, where it would, takes its part as the others do.
        (
            Room(vram=92 * GB, every=9 * GB),
            "auto",
            "spread",
            "does not fit every rank's card (9.0 GiB left on",
        ),
        (Room(vram=92 * GB, every=7 * GB), "auto", "vram", "30.0 GiB fits 92.0 GiB free"),
        (Room(vram=92 * GB, every=40 * GB), "auto", "vram", "fits every rank's card (40.0 GiB left on each)"),
        (Room(vram=92 * GB, every=40 * GB), "spread", "spread", "fits the 40.0 GiB that every rank has left"),
        (Room(vram=24 * GB, ram=64 * GB, every=9 * GB), "window", "window", "10.8 GiB of 30.0 GiB in VRAM"),
    ],
)
def test_over_the_cards_of_all_ranks(room: Room, asked: str, tier: str, said: str) -> None:
    """By what every rank has left, as they told each other: so all take the same."""
    choice = choose(SPREAD, room, asked)
    assert (choice.tier, said in choice.why + choice.above) == (tier, True), choice


@pytest.mark.parametrize("every", [9 * GB, 29 * GB, 30 * GB, 40 * GB])
def test_all_ranks_spread_or_none(every: int) -> None:
    """Whatever each has free by itself: only what all know decides."""
    tiers = {choose(SPREAD, Room(vram=vram * GB, every=every)).tier for vram in range(13, 200, 7)}
    assert tiers == ({"spread"} if every < 30 * GB else {"vram"})


def test_below_one_that_failed() -> None:
    """After an allocation that failed, only what lies below it is chosen."""
    room = Room(vram=92 * GB, ram=64 * GB)
    assert choose(WISH, room, below="vram").tier == "window"
    assert choose(WISH, room, below="spread").tier == "window"
    assert choose(WISH, room, below="window").tier == "ram"
    assert choose(WISH, room, below="ram").tier == "source"
