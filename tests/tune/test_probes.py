"""Probes of a script that does much itself: seeds, samplers, batches and what goes backward are its own."""

import textwrap
from pathlib import Path

import pytest

from stoker.tune.meaning import Probe, identical, judge, take

SCRIPT = """
    import random, sys
    import numpy as np, torch
    from torch.utils.data import DataLoader, Dataset

    class Rows(Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, at):
            return torch.full((4,), at / 64)

    class Batch:  # it has no __repr__
        def __init__(self, rows):
            self.x, self.means = torch.stack(rows), np.stack([row.mean() for row in rows])

    class Sampler:
        def __len__(self):
            return 8
        def __iter__(self):
            return iter(np.random.permutation(64).reshape(-1, 8))

    torch.manual_seed(42)
    np.random.seed(seed=42)
    random.seed(42)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Rows(), batch_sampler=Sampler(), collate_fn=Batch)
    for batch in (batch for _ in range(2) for batch in loader):
        optimizer.zero_grad()
        errors = (model(batch.x) + random.random()).square()
        if "vector" in sys.argv:
            errors.backward(gradient=torch.full_like(errors, 1 / 8))
        elif "grad" in sys.argv:
            for one, found in zip(model.parameters(), torch.autograd.grad(errors.mean(), model.parameters())):
                one.grad = found
        elif "unseen" in sys.argv:
            for one in model.parameters():
                one.grad = torch.ones_like(one)
        else:
            torch.autograd.backward([errors.mean()])
        optimizer.step()
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A loop of 16 steps, 8 in an epoch."""
    path = tmp_path_factory.mktemp("probes") / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return str(path)


@pytest.fixture(scope="module")
def plain(script: str) -> Probe:
    """Its first steps, and on to where its second epoch begins."""
    return take([script], {}, steps=5)


def test_what_a_script_does_itself_is_seen(plain: Probe) -> None:
    """Samples of arrays of numbers, batches that are objects, losses that go backward among others."""
    assert [len(numbers) for numbers in plain.ids] == [8] * 10
    assert len(set(plain.batches)) == 10
    assert all(loss > 0 for loss in plain.losses)  # type: ignore[operator]


def test_the_turn_of_an_epoch_is_looked_at_where_it_is_near(plain: Probe) -> None:
    """Twice as many steps at most; what a change does may show there alone."""
    assert (plain.turned, len(plain.losses)) == (True, 10)


@pytest.mark.slow
def test_a_turn_that_is_far_is_not_waited_for(script: str) -> None:
    """The steps that were asked for, and no more."""
    probe = take([script], {}, steps=4)
    assert (probe.turned, len(probe.losses)) == (False, 4)


def test_a_script_that_seeds_itself_has_other_seeds(script: str, plain: Probe) -> None:
    """Else all its probes were alike, and how much losses differ from seed to seed not known."""
    other = take([script], {}, seed=1, steps=5)
    assert not set(map(tuple, other.ids)) & set(map(tuple, plain.ids))
    assert not set(other.losses) & set(plain.losses)


@pytest.mark.slow
def test_a_script_that_seeds_itself_does_the_same_in_every_run(script: str, plain: Probe) -> None:
    """Where its batches are objects too; and a change that rounds otherwise shows itself as that."""
    assert identical(take([script], {}, steps=5), plain)
    others = [take([script], {}, seed=seed, steps=5) for seed in (1, 2)]
    found = judge("numerics", take([script], {"autocast": "bf16"}, steps=5), [plain, plain, *others])
    assert (found.kind, found.holds) == ("numerics", True), found


@pytest.mark.slow
@pytest.mark.parametrize("word", ["vector", "grad"])
def test_losses_are_seen_however_they_go_backward(script: str, plain: Probe, word: str) -> None:
    """The same but for rounding."""
    assert take([script, word], {}, steps=5).losses == pytest.approx(plain.losses)


@pytest.mark.slow
def test_a_loss_that_nobody_sees_is_no_zero(script: str) -> None:
    """Then weights are compared."""
    probe = take([script, "unseen"], {}, steps=5)
    assert list(probe.losses) == [None] * 10
    found = judge("same", probe, [probe, probe])
    assert (found.kind, found.by) == ("same", "no loss was seen; weights after 3 updates are bit-identical")


TWO_LOADERS = """
    import torch
    from torch.utils.data import DataLoader

    rows = torch.arange(64.0).reshape(64, 1) / 64
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    one, other = (torch.Generator().manual_seed(seed) for seed in (1, 2))
    labelled = DataLoader(rows, batch_size=4, shuffle=True, generator=one)
    unlabelled = DataLoader(rows.flip(0), batch_size=8, shuffle=True, generator=other)
    for _ in range(4):
        for at, (a, b) in enumerate(zip(labelled, unlabelled)):
            optimizer.zero_grad()
            (model(a).square().mean() + model(b).mean()).backward()
            optimizer.step()
            if at == 5:
                break  # workers have drawn the indices of batches that nobody gets
"""


@pytest.mark.parametrize("lives_on", [False, True])
def test_workers_of_two_loaders_draw_as_they_like(tmp_path: Path, lives_on: bool) -> None:
    """They draw ahead, each for its own: the loop gets the same samples in the same order."""
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(TWO_LOADERS))
    plain = take([str(path)], {}, steps=16)
    changed = take([str(path)], {"num_workers": 1, "persistent_workers": lives_on}, steps=16)
    assert [len(numbers) for numbers in plain.ids] == [4, 8] * 16
    found = judge("same", changed, [plain, plain])
    assert (found.kind, found.holds) == ("same", True), found
