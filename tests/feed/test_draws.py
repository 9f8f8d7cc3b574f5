"""Random numbers by counting."""

import numpy as np

from feed.chances import deviation
from stoker.feed.draws import bits, draw, key, uniform


def test_the_bits_are_those_of_splitmix64() -> None:
    """The published first outputs for the seed 0, from the reference C code."""
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert expected == bits(0, np.arange(1, 4, dtype=np.uint64)).tolist()


def test_golden_numbers() -> None:
    """What comes out never changes within a version: orders and augmentations of old runs hang on it."""
    assert key(0, "full", 0) == 8294759048234378058
    assert key(1, "full", 0) == 12654651328363696556
    assert key(-5, "limit") == 15941182467078211953
    assert uniform(7, np.arange(3)).tolist() == [0.0729703985808493, 0.3898297483912715, 0.01678829452815611]
    assert draw(seed=3, epoch=2, samples=np.array([0, 696_277]), count=2).tolist() == [
        [0.2995769705120084, 0.36670080507340586],
        [0.9742205774147739, 0.33306373477891105],
    ]


def test_numpy_integers_make_the_same_keys_as_plain_ones() -> None:
    """A seed out of an array or a config is the same seed."""
    assert key(int(np.int64(5)), "full", 3) == key(np.int64(5), "full", np.int32(3))  # type: ignore[arg-type]


def test_a_samples_draws_do_not_depend_on_its_batch() -> None:
    """Whichever samples it comes with, in whatever order, and however many draws are asked for."""
    alone = draw(seed=1, epoch=4, samples=np.array([70]), count=2)
    among = draw(seed=1, epoch=4, samples=np.array([5, 70, 5]), count=3)
    assert (among[1, :2] == alone[0]).all()
    assert (among[0] == among[2]).all()


def test_draws_differ_by_seed_epoch_and_sample() -> None:
    """No two of them share a number."""
    samples = np.arange(100)
    tables = [draw(seed=seed, epoch=epoch, samples=samples, count=3) for seed in (0, 1) for epoch in (0, 1)]
    together = np.concatenate([table.ravel() for table in tables])
    assert len(np.unique(together)) == 4 * 100 * 3


def test_draws_are_uniform_and_unrelated() -> None:
    """Over 0 to 1 in 100 bins, and in 10 x 10 bins for one sample's first two and for neighbours."""
    table = draw(seed=9, epoch=0, samples=np.arange(100_000), count=2)
    assert table.min() >= 0
    assert table.max() < 1
    assert deviation(np.histogram(table, bins=100, range=(0, 1))[0]) < 4
    for one, other in ((table[:, 0], table[:, 1]), (table[:-1, 0], table[1:, 0])):
        pairs = np.histogram2d(one, other, bins=10, range=((0, 1), (0, 1)))[0]
        assert deviation(pairs.ravel()) < 4
