"""`stoker bench scale`: what its runs come to, and that its loop trains for real."""

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.bench import scale
from stoker.bench.catalogue import Options
from stoker.bench.result import Result
from stoker.errors import UsageError


def run(case: str, ranks: int, measured: float, predicted: float | None, **more: Any) -> dict[str, Any]:
    bounds = {} if predicted is None else {"low": 0.8 * predicted, "high": 1.1 * predicted, "limit": "store"}
    return {"case": case, "ranks": ranks, "measured": measured, "predicted": predicted, **bounds, **more}


RUNS = [
    run("store", 1, 100, 130),
    run("store", 2, 150, 160),
    run("store", 4, 150, 200),
    run("link", 2, 80, None, why="gradient_bytes not known"),
]


def test_a_ratio_is_measured_over_predicted() -> None:
    """The errors are those of more ranks than were recorded; what was not predicted has none."""
    figures = scale.figures_of(RUNS)
    assert figures["store_2_ratio"] == pytest.approx(150 / 160)
    assert figures["error_max"] == pytest.approx(0.25)
    assert figures["error_median"] == pytest.approx((0.25 + 0.0625) / 2)
    assert figures["coverage"] == 0.5
    assert figures["link_2_measured"] == 80
    assert "link_2_predicted" not in figures


def test_the_page_shows_each_run_beside_its_prediction() -> None:
    """And n/a where there was none."""
    result = Result(
        bench="scale",
        hardware="cpu",
        figures=scale.figures_of(RUNS),
        runs=RUNS,
        versions={},
        date="2026-01-01",
    )
    text = scale.page([result])
    assert "| store: a store of 12 MB/s for all | 4 | 150 | 200 | 160 to 220 | 0.75 | store |" in text
    assert "| 2 | 80 | n/a | n/a | n/a | n/a |" in text
    assert "off by 16% in the median and by 25% at most; 50% within" in text


def test_ranks_of_one_machine_share_its_network() -> None:
    """Each has its part of it; whatever a case holds to nothing is no ceiling."""
    link = next(case for case in scale.CASES if case.name == "link")
    assert scale.links_told(link, 4)["peer"] == pytest.approx(1e9 / 8 / 4)
    store = next(case for case in scale.CASES if case.name == "store")
    assert scale.links_told(store, 4)["store"] == 12e6
    assert scale.links_told(link, 4)["store"] >= 1e12


def test_a_part_that_is_none_is_told() -> None:
    """With those there are."""
    with pytest.raises(UsageError, match="no part sotre; there are: store, latency, cores, link"):
        next(scale.measure(Options(parts=("sotre",))))


@pytest.mark.slow
def test_a_case_runs_and_is_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real ranks under torchrun read from a real store that is held back; the record of one predicts two."""
    monkeypatch.setattr(scale, "RANKS", (1, 2))
    case = next(case for case in scale.CASES if case.name == "store")
    one, two = scale.run_case(case, tmp_path / "store", 4.0)
    assert (one["ranks"], two["ranks"]) == (1, 2)
    assert two["predicted"] > 0
    assert two["parts"]["store"] == pytest.approx(2 * one["parts"]["store"])
    # A request's head comes with its body.
    assert one["parts"]["store"] == pytest.approx(8 * 3 * 128 * 128 / 12e6, rel=0.05)
    json.dumps([one, two])
