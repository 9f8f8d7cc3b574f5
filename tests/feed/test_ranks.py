"""Ranks of torchrun: the same batches bit by bit on every tier and in every world size, resumed or not."""

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from stoker.feed import Order

from .trainers.every_rank import (
    CROP,
    EPOCHS,
    GLOBAL_BATCH,
    LENGTH,
    SEED,
    STEPS,
    TIERS,
    WORLDS,
    Pictures,
    Told,
    tell,
)

TESTS = Path(__file__).parent.parent
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")
CASES = [(tier, world) for world in WORLDS for tier in TIERS]


@pytest.fixture(scope="module")
def handed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of four ranks was handed."""
    out = tmp_path_factory.mktemp("ranks")
    done = subprocess.run(
        [sys.executable, *TORCHRUN, str(TESTS / "feed" / "trainers" / "every_rank.py"), str(out)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        cwd=out,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(4)]


@pytest.fixture(scope="module")
def truth() -> Told:
    """The global batches, made here without a feed."""
    order = Order(length=LENGTH, batch_size=GLOBAL_BATCH, shuffle=True, seed=SEED)
    found: Told = []
    for epoch in range(EPOCHS):
        for step in range(STEPS):
            samples = order.batch(epoch, step)
            found += tell([CROP(Pictures().read(samples), samples=samples, seed=SEED, epoch=epoch)])
    return found


def joined(parts: list[Told]) -> Told:
    """All ranks' shares of each step in a row."""
    return [list(chain.from_iterable(step)) for step in zip(*parts, strict=True)]


@pytest.mark.parametrize(("tier", "world"), CASES)
def test_all_ranks_together_are_handed_the_global_batches(
    tier: str, world: int, handed: list[dict[str, Any]], truth: Told
) -> None:
    """Two epochs, random crops and all."""
    shares = [rank[f"{tier} {world}"]["whole"] for rank in handed[:world]]
    assert joined(shares) == truth
    assert {len(batch) for share in shares for batch in share} == {GLOBAL_BATCH // world, 4 // world}


@pytest.mark.parametrize(("tier", "world"), CASES)
def test_a_resume_at_any_step_goes_on_with_the_next_batch(
    tier: str, world: int, handed: list[dict[str, Any]], truth: Told
) -> None:
    """From states that four ranks kept: after each step of each epoch but the last."""
    resumes = [rank[f"{tier} {world}"]["resumed"] for rank in handed[:world]]
    for step in range(1, EPOCHS * STEPS):
        end = min(step + 2, (step // STEPS + 1) * STEPS)
        assert joined([resumed[step - 1] for resumed in resumes]) == truth[step:end], f"after step {step}"
