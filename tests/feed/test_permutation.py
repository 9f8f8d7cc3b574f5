"""The permutation by random access: one to one, pinned, and as good as random."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feed.chances import deviation
from stoker.errors import UsageError
from stoker.feed.draws import VERSION
from stoker.feed.permutation import invert, permute

# How long a case takes says how busy the machine is.
untimed = settings(deadline=None)
KEYS = st.integers(0, 2**64 - 1)
GOLDEN_VERSION = 1
# n, key, positions, numbers
GOLDEN = [
    (1, 0, [0], [0]),
    (2, 1, [0, 1], [1, 0]),
    (3, 2, [0, 1, 2], [1, 0, 2]),
    (10, 0, [0, 1, 2, 3, 4, 5, 6, 7], [2, 0, 8, 6, 9, 3, 4, 1]),
    (1000, 7, [0, 1, 2, 3, 500, 998, 999], [256, 843, 754, 483, 626, 347, 247]),
    (1024, 7, [0, 1, 2, 3, 512, 1022, 1023], [355, 922, 344, 281, 735, 883, 997]),
    (696_278, 42, [0, 1, 2, 3, 348_139, 696_277], [540018, 624213, 493071, 190143, 671215, 414109]),
    (10**9, 0, [0, 1, 2, 10**9 - 1], [405872718, 310066644, 546871886, 957523151]),
    (2**40, 2**64 - 1, [0, 1, 2**40 - 1], [8297070763, 550994776674, 951252106811]),
    (2**62, 1, [0, 1, 2**62 - 1], [930894357838800160, 3128412490308795484, 3337080223549850585]),
]


@pytest.mark.parametrize(("n", "key", "positions", "numbers"), GOLDEN)
def test_golden_vectors(n: int, key: int, positions: list[int], numbers: list[int]) -> None:
    """The outputs of this version. If they change, VERSION must, and states of old runs are refused."""
    assert VERSION == GOLDEN_VERSION
    assert numbers == permute(np.array(positions, dtype=np.int64), n, key).tolist()


def in_plain_python(position: int, n: int, key: int) -> int:
    """The definition, one number at a time, with integers that cannot overflow."""

    def mixed(word: int) -> int:
        word %= 2**64
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        return word ^ word >> 31

    def word_at(own: int, counter: int) -> int:
        return mixed(own + counter * 0x9E3779B97F4A7C15)

    rows = math.isqrt(n - 1) + 1
    rows += rows % 2
    columns = math.ceil(n / rows) if n < 2**50 else -(-n // rows)
    while True:
        row, column = divmod(position, columns)
        for number in range(24 if n < 1024 else 8):
            own = word_at(key, number)
            if number % 2 == 0:
                row = (row + (word_at(own, column) >> 32) * rows // 2**32) % rows
            else:
                column = (column + (word_at(own, row) >> 32) * columns // 2**32) % columns
        position = row * columns + column
        if position < n:
            return position


@untimed
@given(st.integers(1, 2**62).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))), KEYS)
@example((2**62, 2**62 - 1), 2**64 - 1)
@example((1023, 5), 0)
@example((1024, 5), 0)
def test_it_is_what_plain_integers_give(place: tuple[int, int], key: int) -> None:
    """The arrays' wrapping 64-bit arithmetic computes the definition, at every size."""
    n, position = place
    assert permute(np.array([position]), n, key).tolist() == [in_plain_python(position, n, key)]


@untimed
@given(st.integers(1, 3000), KEYS)
def test_every_number_comes_exactly_once(n: int, key: int) -> None:
    """It is a permutation for any n, not only where its table has no cells too many."""
    everything = np.arange(n)
    numbers = permute(everything, n, key)
    assert (np.sort(numbers) == everything).all()
    assert (invert(numbers, n, key) == everything).all()


@pytest.mark.parametrize("n", [696_278, 1_000_000])
def test_every_number_comes_exactly_once_in_a_large_set(n: int) -> None:
    """The 696,278 samples of the field notes, and a square number."""
    assert (np.bincount(permute(np.arange(n), n, 3), minlength=n) == 1).all()


@untimed
@given(st.integers(2**40, 2**62), KEYS, st.lists(st.integers(0, 2**40 - 1), min_size=1, max_size=50))
def test_a_large_one_can_be_inverted(n: int, key: int, positions: list[int]) -> None:
    """Sets that no memory holds: what is asked for comes, and leads back."""
    given_positions = np.array(positions, dtype=np.int64)
    numbers = permute(given_positions, n, key)
    assert ((numbers >= 0) & (numbers < n)).all()
    assert (invert(numbers, n, key) == given_positions).all()


@untimed
@given(st.integers(1, 10**6), KEYS, st.data())
def test_a_number_does_not_depend_on_what_it_is_asked_with(n: int, key: int, data: st.DataObject) -> None:
    """Random access: by itself, in a batch, or twice."""
    position = data.draw(st.integers(0, n - 1))
    others = data.draw(st.lists(st.integers(0, n - 1), max_size=20))
    alone = permute(np.array([position]), n, key)[0]
    assert permute(np.array([*others, position, position]), n, key)[-2:].tolist() == [alone, alone]


def test_nothing_asked_for_gives_nothing() -> None:
    """An empty batch is an empty batch."""
    assert permute(np.empty(0, dtype=np.int64), 10, 1).tolist() == []


def test_positions_are_left_as_they_were() -> None:
    """The caller's array is not written to."""
    positions = np.arange(100)
    permute(positions, 100, 1)
    assert (positions == np.arange(100)).all()


@pytest.mark.parametrize(("position", "n"), [(-1, 5), (5, 5), (2**62, 2**62)])
def test_a_position_that_is_not_there_is_told(position: int, n: int) -> None:
    """With its value and what there is; it would walk for ever."""
    with pytest.raises(UsageError, match=rf"^{position} is not among .* from 0 to {n - 1}$"):
        permute(np.array([0, position]), n, 1)


@pytest.mark.parametrize("n", [0, -3, 2**62 + 1])
def test_a_size_that_cannot_be_is_told(n: int) -> None:
    """Nothing to permute, or more than the words can hold."""
    with pytest.raises(UsageError, match=f"^{n} numbers cannot be permuted"):
        permute(np.array([0]), n, 1)


@pytest.mark.parametrize("n", [4, 5])
def test_all_permutations_of_few_are_as_likely(n: int) -> None:
    """Odd ones and even ones, over fixed keys."""
    seen = Counter(tuple(permute(np.arange(n), n, key).tolist()) for key in range(6000))
    counts = np.array([seen[one] for one in itertools.permutations(range(n))])
    assert deviation(counts) < 4


@pytest.mark.parametrize("n", [64, 1000, 5000])
def test_every_number_is_as_likely_at_every_position(n: int) -> None:
    """In 8 x 8 bins of position and number, over fixed keys."""
    table = np.zeros((8, 8))
    keys = 200_000 // n
    for key in range(keys):
        numbers = permute(np.arange(n), n, key)
        np.add.at(table, (np.arange(n) * 8 // n, numbers * 8 // n), 1)
    # Rows and columns of the table are full in every permutation: 49 counts of the 64 are free.
    expected = keys * n / 64
    chi_square = ((table - expected) ** 2 / expected).sum()
    assert (chi_square - 49) / math.sqrt(2 * 49) < 4


@pytest.mark.parametrize("n", [64, 1000, 5000])
def test_neighbours_go_separate_ways(n: int) -> None:
    """Every difference is as likely between the numbers at two positions: next to each other, or in one
    column of the network's table, where few rounds leave a pattern."""
    rows = math.isqrt(n - 1) + 1
    column = -(-n // (rows + rows % 2))
    for apart in (1, column):
        counts = np.zeros(n)
        for key in range(300_000 // n):
            numbers = permute(np.arange(n), n, key)
            counts += np.bincount((numbers[apart:] - numbers[:-apart]) % n, minlength=n)
        assert counts[0] == 0
        assert deviation(counts[1:]) < 4


def test_a_large_set_is_drawn_from_evenly() -> None:
    """The first 100,000 positions of a billion go everywhere, and so do steps from one to the next."""
    n = 10**9
    numbers = permute(np.arange(100_000), n, 11)
    assert deviation(np.bincount(numbers * 200 // n, minlength=200)) < 4
    assert deviation(np.bincount((np.diff(numbers) % n) * 200 // n, minlength=200)) < 4


def test_other_keys_give_unrelated_permutations() -> None:
    """Two of them agree at one position on average, as random ones do; neighbouring keys no more often."""
    n, keys = 1000, 1000
    tables = [permute(np.arange(n), n, key) for key in range(keys)]
    agreeing = [int((one == other).sum()) for one, other in itertools.pairwise(tables)]
    assert abs(np.mean(agreeing) - 1) < 4 / math.sqrt(keys)
    related = [np.corrcoef(one, other)[0, 1] * math.sqrt(n) for one, other in itertools.pairwise(tables)]
    assert abs(np.mean(related)) < 4 / math.sqrt(keys)
    assert abs(np.std(related) - 1) < 0.1
