"""Batches in parts: whether they make the same updates, judged by weights."""

import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.changes import Kind
from stoker.tune.meaning import Probe, judge, take
from stoker.tune.weights import distance

SCRIPT = """
    import sys, torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    x = torch.linspace(-1, 1, 960 * 4).reshape(960, 4).sin()
    norm = [nn.BatchNorm1d(16)] if "norm" in sys.argv else []
    drop = nn.Dropout(0.3 if "drops" in sys.argv else 0.0)
    model = nn.Sequential(nn.Linear(4, 16), *norm, nn.Tanh(), drop, nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loss_of = nn.MSELoss(reduction="sum" if "sum" in sys.argv else "mean")
    for at, (rows,) in enumerate(DataLoader(TensorDataset(x), batch_size=10, shuffle=True)):
        if "counts" in sys.argv:
            optimizer.param_groups[0]["lr"] = 1e-4 / (at + 1)
        optimizer.zero_grad()
        loss_of(model(rows), rows.sum(1, keepdim=True)).backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("word", "kind", "says"),
    [
        ("mean", "numerics", "weights after 3 updates"),
        pytest.param("sum", None, "no mean over samples", marks=pytest.mark.slow),
        pytest.param("drops", "numerics", "weights after 3 updates", marks=pytest.mark.slow),
        pytest.param("norm", "optimization", "weights after 3 updates", marks=pytest.mark.slow),
        pytest.param("counts", None, "by counting batches", marks=pytest.mark.slow),
    ],
)
def test_parts_are_judged_by_weights(tmp_path: Path, word: str, kind: Kind | None, says: str) -> None:
    """The same but for rounding, at a rate at which weights hardly move; what is dropped does not count."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    plain = take([str(script), word], {}, steps=3, dropout=False)
    found = judge(
        "numerics",
        take([str(script), word], {"micro_batch": 4}, steps=3, dropout=False),
        [plain, plain],
        by_weights=True,
    )
    assert (found.kind, found.holds) == (kind, kind == "numerics"), found
    assert says in found.by


def probe(*, losses: list[float], after: list[float]) -> Probe:
    weights: Any = [([1.0] * len(after), after)]
    return Probe(ids=[[1]], batches=[1], losses=losses, weights=weights, rates=[[0.1]])


def test_a_loss_that_grows_with_its_samples_is_no_mean() -> None:
    """Of the same batch: in parts a sum is weighed down to a share of what it is."""
    whole = probe(losses=[10.0], after=[1.1] * 40)
    found = judge("numerics", probe(losses=[4.0], after=[1.04] * 40), [whole, whole], by_weights=True)
    assert (found.kind, found.holds) == (None, False)
    assert "no mean over samples" in found.by


def test_a_few_entries_that_are_all_rounding_do_not_count() -> None:
    """One of forty with the other sign; three of them do."""
    moved = [1.1] * 40
    assert (
        distance(
            probe(losses=[1.0], after=[0.9, *moved[1:]]).weights, probe(losses=[1.0], after=moved).weights
        )
        < 0.01
    )
    assert (
        distance(
            probe(losses=[1.0], after=[0.9] * 3 + moved[3:]).weights, probe(losses=[1.0], after=moved).weights
        )
        > 1
    )


def test_runs_that_differ_by_themselves_widen_what_agrees() -> None:
    """Sums in another order on a card: twice as far as from run to run."""
    first = probe(losses=[1.0], after=[1.1] * 40)
    again = probe(losses=[1.0], after=[1.104] * 40)
    near = probe(losses=[1.01], after=[1.106] * 40)
    assert judge("numerics", near, [first, again], by_weights=True).holds
    assert not judge("numerics", near, [first, first], by_weights=True).holds


NAN = float("nan")


@pytest.mark.parametrize("allowed", ["numerics", "optimization"])
def test_a_loss_that_is_not_finite_in_parts_is_refused(allowed: Kind) -> None:
    """A part of which all labels are ignored: its mean is no number, nor are the weights from there on."""
    whole = probe(losses=[1.0, 0.9, 0.8], after=[1.1] * 40)
    parts = probe(losses=[1.0001, NAN, NAN], after=[1.1] * 40)
    found = judge(allowed, parts, [whole, whole], by_weights=True)
    assert (found.holds, found.by) == (False, "a loss is not finite")


@pytest.mark.parametrize("value", [NAN, float("inf")])
def test_weights_that_are_not_finite_agree_with_none(value: float) -> None:
    """Not with finite ones, nor with those of a script whose own are not."""
    plain, wild = probe(losses=[1.0], after=[1.1] * 40), probe(losses=[1.0001], after=[value] * 40)
    assert distance(wild.weights, plain.weights) == float("inf")
    assert distance(plain.weights, wild.weights) == float("inf")
    for before in ([plain, plain], [wild, wild], [plain, wild]):
        assert not judge("numerics", replace(wild, losses=[1.0002]), before, by_weights=True).holds
    unseen = [replace(one, losses=[None]) for one in (wild, plain, wild)]
    assert not judge("same", unseen[0], unseen[1:]).holds


def test_no_loss_of_the_first_updates_is_a_sum() -> None:
    """The first batch is one part, say: the second shows what a loss is."""
    whole = probe(losses=[1.0, 10.0], after=[1.1] * 40)
    whole = replace(whole, weights=[*whole.weights, *whole.weights])
    found = judge("numerics", replace(whole, losses=[1.0, 4.0]), [whole, whole], by_weights=True)
    assert (found.kind, "the loss of update 2" in found.by) == (None, True), found


@pytest.mark.parametrize("losses", [[1.0], [None]])
def test_other_parameters_are_not_compared(losses: list[float | None]) -> None:
    """A layer that a change makes, or leaves out: refused with words, and the search goes on."""
    plain = replace(probe(losses=[1.0], after=[1.1] * 40), losses=losses)
    more = replace(probe(losses=[1.0], after=[1.1] * 41), losses=[loss and 1.0001 for loss in losses])
    found = judge("optimization", more, [plain, plain], by_weights=losses != [None])
    assert (found.holds, "other parameters" in found.by) == (False, True), found
