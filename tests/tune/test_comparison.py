"""Rates by stretches, ratios by runs."""

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.tune.comparison import compare, spread_of
from stoker.tune.stretches import epoch_of, length, rates

LOADER = {"fed": 100, "num_workers": 4, "prefetch_factor": 2, "length": None}


def test_a_stretch_is_of_whole_turns() -> None:
    """50 steps, rounded up to whole turns of the workers; two queues full where that is more."""
    assert length([], 1000) == 50
    assert length([LOADER], 1000) == 52
    assert length([{**LOADER, "num_workers": 16, "prefetch_factor": 4}], 1000) == 128


def test_a_stretch_is_of_whole_epochs_where_they_are_short() -> None:
    """An epoch's end costs what it costs; not where three do not fit."""
    assert length([{**LOADER, "length": 30}], 1000) == 60
    assert length([{**LOADER, "length": 400}], 1000) == 52


def test_a_rate_counts_samples_over_wall_time() -> None:
    """The last batch of an epoch has fewer; waits of 132, 2, 2, 2 ms count as they are."""
    ends = [0.0]
    for _ in range(25):
        for wait in (0.132, 0.002, 0.002, 0.002):
            ends.append(ends[-1] + wait)
    found = rates(ends, [8] * len(ends), 50)
    assert found.unit == "sample"
    turns = 0.138 * 12.5
    assert found.each == pytest.approx([400 / (turns + 0.063), 400 / (turns - 0.063)], rel=0.01)
    assert rates(ends, [None] * len(ends), 100).each == pytest.approx([100 / ends[-1]])
    assert rates(ends, [None] * len(ends), 100).unit == "step"


def test_the_turn_of_an_epoch_is_shared_out_over_it() -> None:
    """Steps of 10 ms, 200 in an epoch that takes 0.8 s to begin: a rate of 200 in 2.8 s.

    Where no turn was seen, what it costs is not known.
    """
    ends = [0.0]
    for step in range(1, 301):
        ends.append(ends[-1] + 0.01 + (0.8 if step == 120 else 0.0))
    found = rates(ends, [1] * len(ends), 50, turns={120}, epoch=200)
    assert found.each == pytest.approx([200 / 2.8] * 5)
    assert rates(ends[:101], [1] * 101, 50, turns=(), epoch=200).each == pytest.approx([100.0] * 2)
    assert rates(ends, [1] * len(ends), 50, turns={120}, epoch=50).each[2] == pytest.approx(50 / 1.3)


def test_an_epoch_is_counted_in_steps() -> None:
    """Of a loop that draws two batches for each."""
    assert epoch_of([{**LOADER, "length": 80, "fed": 100}], 50) == 40.0
    assert epoch_of([LOADER], 50) is None
    assert epoch_of([], 50) is None


def test_stretches_beside_other_work_are_left_out() -> None:
    """By the machine's busy time less the run's own; where all are, that is said."""
    lines: list[dict[str, Any]] = [
        {"t": float(t), "machine_user_s": 2.0 * t if t > 4 else 1.0 * t, "cpu_s": 1.0 * t, "processes": []}
        for t in range(10)
    ]
    ends, samples = [0.0, 1.0, 2.0, 8.0, 9.0], [4] * 5
    found = rates(ends, samples, 2, lines)
    assert (found.each, found.disturbed, found.size) == ((4.0,), False, 4.0)
    assert (
        len(rates(ends, samples, 2, [{**line, "beside_cpu_s": 1.0 * line["t"]} for line in lines]).each) == 2
    )
    busy = [{**line, "machine_user_s": 2.0 * line["t"]} for line in lines]
    assert rates(ends, samples, 2, busy).disturbed
    assert len(rates(ends, samples, 2, busy).each) == 2
    assert not rates(ends, samples, 2).disturbed


def test_one_run_of_each_proves_nothing() -> None:
    """How much runs differ is not known then."""
    spread = spread_of({"before": [[10.0]], "after": [[20.0]]})
    ratio = compare([[10.0]], [[20.0]], spread)
    assert (ratio.low, ratio.high) == (0.0, inf)
    assert ratio.mid == pytest.approx(2.0)
    assert ratio.says == "open"


def test_what_is_far_faster_is_told_by_few_runs() -> None:
    """And what is a little faster by more of them."""
    runs = {"before": [[10.0], [10.1]], "after": [[20.0]], "little": [[10.4]]}
    spread = spread_of(runs)
    assert compare(runs["before"], runs["after"], spread).says == "faster"
    assert compare(runs["before"], runs["little"], spread).says == "open"
    many = {"before": [[10.0], [10.1], [10.0], [10.05]], "little": [[10.5], [10.52], [10.48], [10.51]]}
    assert compare(many["before"], many["little"], spread_of(many)).says == "faster"


def test_what_is_slower_is_not_faster() -> None:
    """Nor is what is as fast, once that is known well."""
    runs = {"before": [[10.0], [10.02], [10.01]], "after": [[9.0], [9.02]]}
    assert compare(runs["before"], runs["after"], spread_of(runs)).says == "not faster"


@given(
    before=st.lists(st.floats(1.0, 1.1), min_size=2, max_size=6),
    after=st.lists(st.floats(1.0, 1.1), min_size=1, max_size=6),
    factor=st.floats(0.1, 10.0),
)
def test_the_interval_holds_the_middle(before: list[float], after: list[float], factor: float) -> None:
    """Whatever the rates; and it does not matter in which unit they are."""
    one = [[rate] for rate in before]
    other = [[rate * factor] for rate in after]
    ratio = compare(one, other, spread_of({"a": one, "b": other}))
    assert ratio.low <= ratio.mid <= ratio.high
    scaled = compare(
        [[rate * 7 for rate in run] for run in one],
        [[rate * 7 for rate in run] for run in other],
        spread_of({"a": one, "b": other}),
    )
    assert scaled.mid == pytest.approx(ratio.mid)
