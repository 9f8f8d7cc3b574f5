"""The figures and the page of `stoker bench tune`, from runs that are known."""

from stoker.bench.result import Result
from stoker.bench.tune import figures_of, page


def run(case: str, share: float, trials: int) -> dict[str, object]:
    return {
        "case": case,
        "share": share,
        "trials": trials,
        "rate_before": 100.0,
        "rate": 400.0 * share,
        "rate_grid_best": 400.0,
        "found": {"num_workers": 4},
        "grid_best": {"num_workers": 6, "prefetch_factor": 2},
    }


RUNS = [run("one", 0.99, 3), run("two", 0.96, 7), run("three", 1.01, 5)]


def test_figures_are_of_the_worst_case() -> None:
    """And of the longest search."""
    assert figures_of(RUNS) == {
        "share_of_grid_best": 0.96,
        "share_of_grid_best_median": 0.99,
        "trials_max": 7,
        "cases": 3,
        "cases_within_share": 2,
    }


def test_the_page_has_a_row_a_case() -> None:
    """With what was found, and the grid's best beside it."""
    result = Result(bench="tune", hardware="cpu", figures=figures_of(RUNS), runs=RUNS, versions={})
    assert "| two | 0.960 | 7 | 100 | 384 | 400 | num_workers 4 | num_workers 6, prefetch_factor 2 |" in page(
        [result]
    )
