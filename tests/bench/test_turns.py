"""Taking turns, and the statistics over them."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.bench.turns import Interval, as_figures, differences, interval, rounds

NUMBERS = st.floats(min_value=-1e6, max_value=1e6)


def test_the_base_comes_before_and_after_every_round() -> None:
    """Turns go base, each other in order, base, each other in order."""
    assert list(islice(rounds("bare", ["a", "b"]), 7)) == ["bare", "a", "b", "bare", "a", "b", "bare"]


def test_a_steady_drift_is_not_booked_on_who_comes_later() -> None:
    """A machine that slows by the same amount each turn makes no difference between the kinds."""
    turns = [(kind, float(at)) for at, kind in enumerate(islice(rounds("bare", ["a", "b"]), 10))]
    assert pytest.approx(differences(turns, "bare", "a")) == [0.0, 0.0, 0.0]
    assert pytest.approx(differences(turns, "bare", "b")) == [0.0, 0.0, 0.0]


def test_a_turn_is_held_against_its_own_neighbours() -> None:
    """A difference is taken from the bases next to it, not from all of them."""
    turns = [("bare", 10.0), ("a", 13.0), ("bare", 12.0), ("a", 102.0), ("bare", 100.0)]
    assert differences(turns, "bare", "a") == [2.0, 46.0]


def test_a_turn_with_the_base_on_one_side_is_held_against_that_one() -> None:
    """A measurement that ended early still counts; one without any base does not."""
    assert differences([("bare", 5.0), ("a", 6.0)], "bare", "a") == [1.0]
    assert differences([("a", 6.0)], "bare", "a") == []


def test_the_middle_is_the_median() -> None:
    """One stretch that somebody else disturbed does not move the figure."""
    assert interval([1.0, 2.0, 2.0, 3.0, 900.0]).middle == 2.0


@pytest.mark.parametrize("values", [[4.0], [4.0, 6.0]])
def test_too_few_repeats_have_no_interval(values: list[float]) -> None:
    """With one or two repeats the median is told, and no interval is claimed."""
    found = interval(values)
    assert (found.low, found.high) == (None, None)
    assert {"us"} == set(as_figures("us", found))


def test_no_repeats_are_an_error() -> None:
    """Nothing measured is never a figure."""
    with pytest.raises(ValueError, match="no repeats"):
        interval([])


@given(st.lists(NUMBERS, min_size=3, max_size=40))
def test_an_interval_holds_its_middle_and_lies_among_its_values(values: list[float]) -> None:
    """low <= middle <= high, all within what was measured."""
    found = interval(values, draws=200)
    assert found.low is not None
    assert found.high is not None
    assert min(values) <= found.low <= found.middle <= found.high <= max(values)


@given(st.lists(NUMBERS, min_size=3, max_size=20))
def test_the_same_repeats_give_the_same_interval(values: list[float]) -> None:
    """A result's figures can be made again from its runs."""
    assert interval(values, draws=100) == interval(values, draws=100)


def test_an_interval_becomes_three_figures() -> None:
    """`key`, `key_low` and `key_high` stand in the file."""
    found = as_figures("us", Interval(middle=2.0, low=1.0, high=3.0))
    assert found == {"us": 2.0, "us_low": 1.0, "us_high": 3.0}
