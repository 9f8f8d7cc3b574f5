"""find_randomness: random datasets found, look-alikes not, and the run's own draws left as they were."""

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from stoker.errors import UsageError
from stoker.feed.generators import tell_states
from stoker.feed.randomness import find_randomness
from stoker.feed.sources.torch import TorchSource


class Made(Dataset[Any]):
    """Samples made by a function of their number; counts the reads."""

    def __init__(self, make: Callable[[int], Any], length: int = 1000) -> None:
        self.make, self.length, self.reads = make, length, 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return self.make(index)


class Turned(Made):
    """Turns a sample round now and then, by a generator of its own."""

    def __init__(self, p: float, seed: int, length: int = 1000) -> None:
        generator = np.random.default_rng(seed)

        def make(index: int) -> torch.Tensor:
            sample = torch.arange(4) + index
            return sample.flip(0) if generator.random() < p else sample

        super().__init__(make, length)


def plain(index: int) -> dict[str, Any]:
    """The same each time, with a NaN in it."""
    return {"image": torch.tensor([index, float("nan")]), "label": index, "names": ("a", b"b", None, {1, 2})}


def test_a_fixed_dataset_is_not_random() -> None:
    """70 samples of 1,000, read twice and no more; NaN is equal to itself."""
    dataset = Made(plain)
    verdict = find_randomness(dataset)
    assert (verdict.random, verdict.samples, verdict.epoch, verdict.cacheable) == (False, 70, None, True)
    assert verdict.why == "70 samples were the same, bit by bit, when read again"
    assert dataset.reads == 140


def test_a_slow_dataset_is_not_random() -> None:
    """How long a read takes says nothing of what it gives."""
    waits = np.random.default_rng(0)

    def slow(index: int) -> float:
        time.sleep(waits.random() / 1000)
        return index / 3

    assert not find_randomness(Made(slow)).random


def test_seeding_by_the_sample_with_a_private_generator_is_not_random() -> None:
    """Noise that is the same for each sample every time may be kept."""
    assert not find_randomness(Made(lambda n: np.random.default_rng(n).random(5))).random


@pytest.mark.parametrize("seed", range(20))
def test_a_change_with_p_of_one_in_twenty_is_found(seed: int) -> None:
    """By its values: the generator is the dataset's own."""
    verdict = find_randomness(Turned(0.05, seed))
    assert verdict.random
    assert "differed on a second read, in the sample" in verdict.why


@pytest.mark.parametrize("seed", range(5))
def test_a_rare_change_is_found_in_a_small_set_too(seed: int) -> None:
    """Ten samples are read as often as 70 would be."""
    assert find_randomness(Turned(0.05, seed, length=10)).random


@pytest.mark.parametrize(
    ("draw", "name"), [(torch.rand, "torch"), (np.random.random, "numpy"), (random.getrandbits, "random")]
)
def test_a_draw_is_random_whatever_comes_of_it(draw: Callable[[int], Any], name: str) -> None:
    """A flip with p = 0.001 draws every time, and is found at once."""

    def make(index: int) -> int:
        draw(1)
        return index

    dataset = Made(make)
    verdict = find_randomness(dataset)
    assert verdict.random
    assert verdict.why == f"reading a sample draws from {name}'s random generator"
    assert dataset.reads <= 16


def test_one_array_written_over_and_over_is_found() -> None:
    """Though both reads give the very same object."""
    shared = np.zeros(3)

    def make(index: int) -> Any:
        shared[:] += 1
        return shared

    assert "differed on a second read" in find_randomness(Made(make)).why


def test_a_field_that_comes_and_goes_is_found() -> None:
    """Another structure is a difference, and the field is named."""
    reads = iter(range(1000))
    verdict = find_randomness(Made(lambda n: {"a": 1} | ({"mask": 2} if next(reads) > 90 else {})))
    assert (verdict.random, verdict.why.endswith("in mask")) == (True, True)


def test_a_sign_of_zero_is_a_difference() -> None:
    """Bit by bit means it."""
    reads = iter(range(1000))
    assert find_randomness(Made(lambda n: 0.0 if next(reads) < 70 else -0.0)).random


def test_what_cannot_be_compared_counts_as_random() -> None:
    """Rather than being cached in the hope that it is the same."""
    verdict = find_randomness(Made(lambda n: {"x": (k for k in range(3))}))
    assert verdict.random
    assert verdict.why.startswith("x in sample")
    assert "cannot be compared: a generator has no bits to compare" in verdict.why


@pytest.mark.parametrize("fails", [False, True])
def test_the_run_draws_what_it_would_have_drawn(fails: bool) -> None:
    """The generators stand where they stood, also when the dataset raises."""

    def make(index: int) -> Any:
        torch.rand(3), np.random.rand(3), random.random()
        if fails:
            raise ZeroDivisionError
        return index

    before = tell_states()
    if fails:
        with pytest.raises(ZeroDivisionError):
            find_randomness(Made(make))
    else:
        assert find_randomness(Made(make)).random
    assert tell_states() == before


class Epochs(Made):
    """Told the epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Nothing changes yet."""


def test_a_dataset_that_is_told_the_epoch_is_not_cached_unasked() -> None:
    """It, one that it wraps, or one among several; the samples may still be the same now."""
    told = Epochs(plain)
    kept = Made(plain)
    kept.epoch = 3  # type: ignore[attr-defined]
    for dataset, name in (
        (told, "set_epoch"),
        (TorchSource(told), "set_epoch"),
        (Subset(told, range(100)), "set_epoch"),
        (ConcatDataset([Made(plain), Subset(kept, range(5))]), "epoch"),
    ):
        verdict = find_randomness(dataset)
        assert (verdict.random, verdict.epoch, verdict.cacheable) == (False, name, False)
        assert verdict.why.endswith(f"the dataset has '{name}', so they may change with the epoch")


def test_the_same_seed_reads_the_same_samples() -> None:
    """And another one others."""
    read: list[int] = []
    dataset = Made(lambda n: read.append(n))
    for seed in (1, 1, 2):
        find_randomness(dataset, seed=seed)
    assert read[:140] == read[140:280] != read[280:]


def test_no_samples_and_wrong_numbers_of_them() -> None:
    """An empty set is not random; none cannot be read."""
    assert find_randomness(Made(plain, 0)).samples == 0
    with pytest.raises(UsageError, match="samples is 0"):
        find_randomness(Made(plain), samples=0)
