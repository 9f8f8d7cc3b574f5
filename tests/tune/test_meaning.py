"""What a probe shows of a change."""

import pytest

from stoker.changes import Kind
from stoker.tune.meaning import Probe, judge

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


def test_without_ids_other_batches_are_other_samples() -> None:
    """An iterable dataset has none."""
    for ids in ([], [[], [], []]):
        plain = Probe(ids=ids, batches=BATCHES, losses=LOSSES)
        changed = Probe(ids=ids, batches=[11, 99, 33], losses=LOSSES)
        assert judge("same", changed, [plain, plain]).kind == "optimization"
