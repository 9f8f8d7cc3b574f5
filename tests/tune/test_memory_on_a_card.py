"""Trials on a card that run out of its memory: each ends with what it was, and the memory is back."""

import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stoker.scratch import Guards
from stoker.tune import find_micro_batch
from stoker.tune.trial import Trial, hold

pytestmark = pytest.mark.gpu
# A sample of 1 MiB takes some 250 on the card, until its gradients are there.
SCRIPT = """
    import sys, torch
    from torch.utils.data import DataLoader, TensorDataset

    batch, growing = int(sys.argv[1]), float(sys.argv[2])
    data = TensorDataset(torch.rand(512, 1 << 18))
    weight = torch.nn.Parameter(torch.rand(1, 64, 1, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for epoch in range(1000):
        for (x,) in DataLoader(data, batch_size=batch):
            optimizer.zero_grad()
            (x.cuda()[:, None] * weight).square().mean().backward()
            if growing:  # a block fits nowhere where one before it was
                growing *= 1.003
                torch.empty(int(growing * 2**30), dtype=torch.uint8, device="cuda")
            optimizer.step()
"""


def share(gib: float) -> float:
    """Of the card."""
    return gib * 2**30 / torch.cuda.get_device_properties(0).total_memory


def script(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return str(path)


@pytest.fixture(autouse=True)
def _memory_is_back() -> Iterator[None]:
    """What is free on the card before a test is free after it, as its driver says."""
    torch.cuda.init()
    before = torch.cuda.mem_get_info()[0]
    yield
    until = time.monotonic() + 10
    while (now := torch.cuda.mem_get_info()[0]) < before - (64 << 20) and time.monotonic() < until:
        time.sleep(0.1)  # a driver takes a moment to take back what a killed process had
    assert now >= before - (64 << 20)


def held(folder: Path, batch: int, growing: float, gib: float) -> Trial:
    guards = Guards(vram_fraction=share(gib))
    return hold([script(folder), str(batch), str(growing)], {}, folder=folder, seconds=0.5, guards=guards)


def test_what_a_trial_may_have_of_the_card_is_held(tmp_path: Path) -> None:
    """It ends as one that ran out of memory, though the card has some left; with more it runs."""
    small = held(tmp_path / "small", 64, 0, gib=4)
    assert small.outcome == "failed"
    assert "OutOfMemoryError" in small.reason
    large = held(tmp_path / "large", 64, 0, gib=40)
    assert large.outcome == "measured", large.reason
    assert large.vram_share is not None
    assert share(4) < large.vram_share < share(40)


def test_memory_that_is_full_again_and_again_is_told(tmp_path: Path) -> None:
    """The allocator gives back what it has kept, and tries once more, in every step: that is no rate."""
    found = held(tmp_path / "turns", 1, 2.2, gib=4)
    assert found.outcome == "thrashed", found.reason
    assert "ran out of memory" in found.reason


def test_a_part_of_a_batch_that_fits_is_found(tmp_path: Path) -> None:
    """After one that does not: what is answered ran, and makes the weights that larger parts make."""
    guards = Guards(vram_fraction=share(8))
    found = find_micro_batch([script(tmp_path), "256", "0"], seconds=0.3, budget=150, guards=guards)
    assert found.trials[0].outcome == "too large"
    assert found.size is not None
    assert {one.outcome for one in found.trials if one.size == found.size} == {"ran"}
    assert found.check is not None
    assert found.check.holds, found.check
