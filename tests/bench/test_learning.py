"""`stoker bench learning`: trainings beside rules that know nothing, and their page."""

from pathlib import Path
from typing import Any

import pytest

from stoker.bench import Options, run
from stoker.bench.learning import figures_of, page
from stoker.bench.learning_part import LESSONS
from stoker.bench.result import Result, read_result
from stoker.errors import BenchFailed, UsageError

RUN: dict[str, Any] = {
    "part": "sar", "model": "residual", "words": ["base=8", "model=residual"], "steps": 460,
    "samples": 14_720, "seconds": 84.0, "metric": "psnr", "label": "PSNR, dB", "digits": 2, "higher": True,
    "value": 27.125, "floor": 18.5, "rule": "the mean", "last": {"psnr": 27.0},
}  # fmt: skip


def test_figures_stand_beside_what_knows_nothing() -> None:
    """A figure for each model, one floor for each system."""
    other = {**RUN, "model": "attention", "value": 28.0}
    assert figures_of([RUN, other]) == {
        "sar_psnr_residual": 27.125,
        "sar_psnr_attention": 28.0,
        "sar_psnr_floor": 18.5,
    }


def test_the_page_tells_figure_floor_and_words() -> None:
    """As they were measured, with the command's settings."""
    told = page([Result(bench="learning", hardware="h200", figures={}, runs=[RUN], versions={})])
    assert "| sar | residual | 14,720 samples | 460 | 1.4 | PSNR, dB (higher is better) | 27.12 |" in told
    assert "18.50 (the mean)" in told
    assert "`base=8 model=residual`" in told


@pytest.mark.parametrize(
    ("given", "says"), [({"parts": ["saw"]}, "no part 'saw'"), ({"device": "gpu"}, "gpu")]
)
def test_what_cannot_be_trained_is_told(given: dict[str, Any], says: str, tmp_path: Path) -> None:
    """Before anything is made."""
    with pytest.raises(UsageError, match=says):
        run("learning", Options(**given), tmp_path)


def test_a_training_that_takes_too_long_is_told(tmp_path: Path) -> None:
    """And nothing is written of it."""
    with pytest.raises(BenchFailed, match=r"heimdall was left out: .*no end after 0 s"):
        run("learning", Options(device="cpu", seconds=0.2, parts=["heimdall"]), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_system_is_trained_and_judged(tmp_path: Path) -> None:
    """The smallest of them: twice as near as saying the middle."""
    [(path, _)] = run("learning", Options(device="cpu", parts=["heimdall"], commit="here"), tmp_path)
    figures = read_result(path).figures
    assert figures["heimdall_median_m_locator"] < figures["heimdall_median_m_floor"] / 2
    assert "heimdall" in (tmp_path / "learning.md").read_text()


def test_every_system_has_a_lesson() -> None:
    """None is left out of what is claimed."""
    from stoker.workloads import NAMES

    assert set(LESSONS) == set(NAMES)
