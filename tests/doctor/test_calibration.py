"""Scores of predictions: kept whole by several writers, and what they say of the next ones."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.doctor.calibration import Score, errors_of, keep, read_scores, score, summarise
from stoker.doctor.model import Change, Interval, Prediction, untried

WRITER = """
import sys
from pathlib import Path
from stoker.doctor.calibration import Score, keep
for number in range(50):
    keep(Score(change=sys.argv[2] * 300, low=1, mid=2, high=3, measured=2), Path(sys.argv[1]))
"""


def made(measured: float, *, change: str = "num_workers", mid: float = 100.0) -> Score:
    return Score(change=change, low=0.9 * mid, mid=mid, high=1.1 * mid, measured=measured)


def test_a_prediction_is_scored_and_kept(tmp_path: Path) -> None:
    """How far off it was, and whether its interval held."""
    told = Prediction(
        changes=(Change(change="prefetch_factor", value=4), Change(change="num_workers", value=4)),
        rate=Interval(low=90, mid=100, high=110),
        limit="compute",
    )
    place = tmp_path / "deep" / "calibration.jsonl"
    found = score(told, 80.0, place)
    assert found.error == pytest.approx(0.25)
    assert not found.covered
    assert read_scores(place) == [found]
    assert found.change == "num_workers+prefetch_factor"


def test_a_torn_line_is_left_out_and_harms_none_after_it(tmp_path: Path) -> None:
    """As a kill or a full disk leaves it."""
    place = tmp_path / "calibration.jsonl"
    keep(made(100), place)
    whole = place.read_bytes()
    place.write_bytes(whole + whole[: len(whole) // 2])
    assert read_scores(place) == [made(100)]
    keep(made(90), place)
    assert read_scores(place) == [made(100), made(90)]
    assert place.read_bytes().startswith(whole)


def test_several_writers_at_once_leave_whole_lines(tmp_path: Path) -> None:
    """Each score is one write, and none is taken for torn while another writes it."""
    place = tmp_path / "calibration.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(place), name]) for name in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert len(read_scores(place)) == 150
    assert len(place.read_text().splitlines()) == 150


def test_without_scores_there_is_nothing_to_learn_from(tmp_path: Path) -> None:
    """No file is no score."""
    assert read_scores(tmp_path / "none.jsonl") == []
    assert errors_of([]) == {}
    assert summarise([]) == {}


def test_few_scores_do_not_make_a_narrow_interval() -> None:
    """Their worst, and not less than what is taken for a change that was never tried."""
    assert errors_of([made(100), made(99)])["num_workers"] == untried("num_workers")
    assert untried("num_workers") < untried("feed")
    assert errors_of([made(100), made(50)])["num_workers"] == pytest.approx(0.693, abs=0.001)


@given(st.lists(st.floats(0.5, 2.0), min_size=9, max_size=60))
def test_the_learnt_width_covers_nine_in_ten_of_what_it_was_learnt_from(ratios: list[float]) -> None:
    """Whatever the errors are."""
    scores = [made(100 * ratio) for ratio in ratios]
    width = 2.718281828 ** errors_of(scores)["num_workers"] * (1 + 1e-9)
    held = sum(100 / width <= one.measured <= 100 * width for one in scores)
    assert held >= 0.9 * len(scores)


def test_the_summary_is_by_change_and_over_all() -> None:
    """Number, median error, coverage."""
    told = summarise([made(100), made(125), made(100, change="feed")])
    assert (told["all"].number, told["all"].median_error) == (3, 0.0)
    assert told["all"].coverage == pytest.approx(2 / 3)
    assert told["num_workers"].median_error == pytest.approx(0.1)
    assert told["feed"].coverage == 1.0


def test_scores_that_a_disk_has_harmed_are_left_out(tmp_path: Path) -> None:
    """No text, no numbers, rates of which there is no logarithm: those that are whole still count."""
    place = tmp_path / "calibration.jsonl"
    keep(made(110.0), place)
    whole = place.read_bytes()
    harmed = [whole.strip().replace(b"110.0", rate) for rate in (b"-10.0", b"0.0", b"1e999", b"[]")]
    place.write_bytes(b"\n".join([b"\xff\xfe", b"[1]", *harmed, whole]))
    assert read_scores(place) == [made(110.0)]
    assert errors_of(read_scores(place))["num_workers"] > 0
