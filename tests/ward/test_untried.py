"""The card's memory at sizes that were not tried: predictions beside real peaks."""

from pathlib import Path

import pytest

from stoker.ward.untried import SIZES, compare, measure


def test_a_prediction_is_off_by_a_share_of_the_real_peak() -> None:
    """Of a line of 1000 + 10 a sample: 1240 for 24 of them, where it took 1200."""
    (one,) = compare({"fixed": 1000, "per_sample": 10}, {24: 1200})
    assert one.to_json() == {"batch": 24, "predicted": 1240, "peak": 1200, "error": pytest.approx(1 / 30)}


def test_without_a_line_there_is_nothing_to_compare() -> None:
    """The reason is the budget's own."""
    with pytest.raises(ValueError, match="no batch of another size was run"):
        compare({"fixed": None, "per_sample": None, "why": "no batch of another size was run"}, {24: 1})


@pytest.mark.gpu
def test_peaks_at_untried_sizes_are_as_predicted(tmp_path: Path) -> None:
    """Within 3%, between the sizes that the doctor ran and beyond them."""
    found = measure(tmp_path)
    assert len(found["untried"]) >= 2
    assert {one["batch"] for one in found["untried"]} <= set(SIZES)
    assert found["vram_error_max"] <= 0.03, found
