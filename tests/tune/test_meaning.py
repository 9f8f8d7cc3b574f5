"""What a probe shows of a change."""

from dataclasses import replace
from math import exp
from random import Random

import pytest

from stoker.changes import Kind
from stoker.tune.meaning import Probe, identical, judge

IDS = [[3, 1], [0, 2], [4, 5]]
BATCHES = [11, 22, 33]
LOSSES = [1.0, 0.9, 0.8]
PLAIN = Probe(ids=IDS, batches=BATCHES, losses=LOSSES)
OTHER_SEED = Probe(ids=[[5, 2], [1, 0], [3, 4]], batches=[44, 55, 66], losses=[1.1, 0.8, 0.9])
BEFORE = [PLAIN, PLAIN, OTHER_SEED]


@pytest.mark.parametrize(
    ("changed", "kind", "says"),
    [
        (PLAIN, "same", "bit-identical"),
        (Probe(ids=IDS, batches=[1, 2, 3], losses=[1.0, 0.7, 0.6]), "redraw", "other draws inside"),
        (Probe(ids=[[3, 1], [2, 0], [4, 5]], batches=BATCHES, losses=LOSSES), "optimization", "batch 2 on"),
        (Probe(ids=IDS, batches=BATCHES, losses=[1.0, 0.901, 0.799]), "numerics", "from seed to seed"),
        (Probe(ids=IDS, batches=BATCHES, losses=[3.0, 4.0, 5.0]), "optimization", "from seed to seed"),
        (Probe(ids=IDS, batches=BATCHES, losses=[1.0, float("nan"), 0.8]), "optimization", "not finite"),
    ],
)
def test_a_change_shows_its_kind(changed: Probe, kind: Kind, says: str) -> None:
    """By ids, then by what is in the batches, then by the losses."""
    found = judge("same", changed, BEFORE)
    assert (found.kind, says in found.by) == (kind, True), found
    assert found.holds == (kind == "same")
    assert judge(kind, changed, BEFORE).holds


def test_a_script_that_never_does_the_same_proves_nothing() -> None:
    """From the same seed it trains on other batches: a change that does so too is not told from it."""
    found = judge("optimization", PLAIN, [PLAIN, OTHER_SEED, OTHER_SEED])
    assert (found.kind, found.holds) == (None, False)


def test_losses_that_differ_by_themselves_are_no_reproach() -> None:
    """Atomic sums on a card, say: no more than twice as far as from run to run."""
    again = Probe(ids=IDS, batches=BATCHES, losses=[1.0, 0.9001, 0.8001])
    near = Probe(ids=IDS, batches=BATCHES, losses=[1.0, 0.9, 0.8001])
    assert judge("same", near, [PLAIN, again, OTHER_SEED]).kind == "same"


def test_where_seeds_change_nothing_little_is_rounding() -> None:
    """Weights that are loaded, and an order that is fixed: what is little is stated."""
    near = Probe(ids=IDS, batches=BATCHES, losses=[1.0, 0.899, 0.801])
    far = Probe(ids=IDS, batches=BATCHES, losses=[1.0, 0.95, 0.85])
    found = judge("numerics", near, [PLAIN] * 4)
    assert (found.kind, found.holds) == ("numerics", True)
    assert "seeds change nothing in it, so up to 0.01 is taken for rounding" in found.by
    assert judge("numerics", far, [PLAIN] * 4).kind == "optimization"
    assert judge("numerics", near, [PLAIN] * 2).kind == "optimization"  # no other seed was looked at


def unseen(*after: list[float]) -> Probe:
    """No loss of it was seen; weights before and after each update."""
    weights = [([1.0] * 40, entries * 40) for entries in after]
    return Probe(ids=IDS, batches=BATCHES, losses=[None] * 3, weights=weights)


def test_where_no_loss_is_seen_weights_are_compared() -> None:
    """Zeros would all be alike."""
    plain = unseen([1.1], [1.2])
    assert (
        judge("same", plain, [plain, plain]).by
        == "no loss was seen; weights after 2 updates are bit-identical"
    )
    other = judge("same", unseen([1.1], [1.3]), [plain, plain])
    assert (other.kind, other.holds) == ("optimization", False)
    assert identical(plain, plain)
    assert not identical(unseen([1.1], [1.3]), plain)


def test_where_nothing_is_seen_nothing_is_proved() -> None:
    """Neither losses nor weights that move; nor losses with the change alone."""
    for probe in (unseen([1.0]), unseen()):
        found = judge("optimization", probe, [probe, probe])
        assert (found.kind, found.holds) == (None, False)
        assert "no loss was seen" in found.by
    half = Probe(ids=IDS, batches=BATCHES, losses=[1.0, None, 0.8])
    assert judge("same", half, [PLAIN, PLAIN]).kind == "optimization"
    assert judge("same", half, [half, half]).by == "2 losses are bit-identical"


def test_an_epoch_that_was_not_seen_is_said() -> None:
    """Of changes that may show what they are from the second one on alone, and where draws differ."""
    short = replace(PLAIN, turned=False, late=True)
    assert "no epoch ended in these steps" in judge("same", short, [PLAIN, PLAIN]).by
    assert "no epoch" not in judge("same", replace(short, late=False), [PLAIN, PLAIN]).by
    assert "no epoch" not in judge("same", replace(short, turned=True), [PLAIN, PLAIN]).by
    redrawn = Probe(ids=IDS, batches=[1, 2, 3], losses=LOSSES)
    assert "no epoch ended" in judge("redraw", redrawn, [replace(PLAIN, turned=False)] * 2).by
    assert "no epoch" not in judge("redraw", redrawn, [PLAIN, PLAIN]).by


def test_without_ids_other_batches_are_other_samples() -> None:
    """An iterable dataset has none."""
    nothing: list[list[list[int]]] = [[], [[], [], []]]
    for ids in nothing:
        plain = Probe(ids=ids, batches=BATCHES, losses=LOSSES)
        changed = Probe(ids=ids, batches=[11, 99, 33], losses=LOSSES)
        assert judge("same", changed, [plain, plain]).kind == "optimization"


@pytest.mark.parametrize(
    ("losses", "kind"),
    [
        ([1.05, 0.85, 0.82], "numerics"),
        ([3.0, 4.0, 5.0], "optimization"),
        ([1.0, float("nan")], "optimization"),
    ],
)
def test_other_draws_excuse_no_rounding(losses: list[float], kind: Kind) -> None:
    """A change that may round otherwise, and draws otherwise too, has its losses looked at all the same."""
    changed = Probe(ids=IDS, batches=[1, 2, 3], losses=losses)
    found = judge("numerics", changed, [PLAIN, PLAIN, OTHER_SEED, OTHER_SEED])
    assert (found.kind, found.holds) == (kind, kind == "numerics"), found


STEPS = 40


def falling(seed: int, *, spread: float = 0.2) -> list[float]:
    """Losses that fall, each batch's by as much off as batches differ."""
    draw = Random(seed)
    return [2.0 * 0.98**step * exp(draw.gauss(0.0, spread)) for step in range(STEPS)]


def steps_of(losses: list[float], batch: int = 0) -> Probe:
    return Probe(ids=[[batch]] * STEPS, batches=[batch] * STEPS, losses=losses)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("spread", [0.2, 0.4])
def test_losses_that_are_all_higher_are_no_rounding(seed: int, spread: float) -> None:
    """By 15%, where batches differ by 20% and more: less than from seed to seed, and all to one side."""
    draw = Random(1000 + seed)
    plain = falling(seed, spread=spread)
    before = [steps_of(plain)] * 2 + [steps_of(falling(100 + seed + at, spread=spread), 1) for at in (0, 50)]
    for times in (1.15, 0.87):
        biased = [loss * times * exp(draw.gauss(0.0, 0.01)) for loss in plain]
        found = judge("numerics", steps_of(biased), before)
        assert (found.kind, found.holds) == ("optimization", False), found
        assert "off in the mean" in found.by


@pytest.mark.parametrize("seed", range(20))
def test_losses_that_are_rounded_are_no_bias(seed: int) -> None:
    """As in half precision: each a little off, or on a way of its own that drifts off slowly."""
    draw = Random(seed)
    plain = falling(seed)
    before = [steps_of(plain)] * 2 + [steps_of(falling(100 + seed + at), 1) for at in (0, 50)]
    rounded = [loss * exp(draw.gauss(0.0, 0.004)) for loss in plain]
    drifting, off = [], 0.0
    for loss in plain:
        off += draw.gauss(0.0, 0.001)
        drifting.append(loss * exp(off))
    noisy = [loss * exp(draw.gauss(0.0, 0.03)) for loss in plain]
    for losses in (rounded, drifting, noisy):
        assert judge("numerics", steps_of(losses), before).kind == "numerics"
