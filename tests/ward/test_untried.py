"""The card's memory at sizes that were not tried: predictions beside real peaks."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from stoker.bench.result import Result
from stoker.ward import untried
from stoker.ward.untried import compare, figures_of, measure, page

TOLD = {
    "context": 100,
    "ran": [16, 32],
    "why": None,
    "by_batch": [
        {"samples": 16, "low": 900, "mid": 900, "high": 900},
        {"samples": 24, "low": 1200, "mid": 1240, "high": 1280},
        {"samples": 48, "low": 2000, "mid": 2100, "high": 2200},
    ],
}


def test_predictions_stand_beside_what_a_process_of_its_own_took() -> None:
    """The context is added to both; sizes that were run, or that nothing was foretold of, are left out."""
    found = compare("net", TOLD, {16: 800, 24: 1100, 48: 2200, 96: 4000})
    assert [(one.batch, one.peak, one.is_covered) for one in found] == [(24, 1200, True), (48, 2300, False)]
    assert found[0].error == pytest.approx(1 / 30)
    figures = figures_of(found)
    assert figures["vram_error_max"] == pytest.approx(200 / 2300)
    assert (figures["vram_coverage"], figures["vram_within_limit"]) == (0.5, 0.0)


def test_without_a_forecast_there_is_nothing_to_compare() -> None:
    """The reason is the budget's own."""
    nothing: dict[str, Any] = {"by_batch": [], "ran": [], "why": "no batch of another size was run"}
    with pytest.raises(ValueError, match="no batch of another size was run"):
        compare("net", nothing, {24: 1})


def test_the_page_has_a_line_for_each_size() -> None:
    """With its range, and which sizes it was told from."""
    runs = [one.to_json() for one in compare("net", TOLD, {24: 10**9})]
    told = Result(
        bench="vram",
        hardware="h200",
        figures={},
        versions={},
        runs=[*runs, {"model": "net", "ran": [16, 32], "probed": [12, 24]}, {"model": "text", "ran": [8]}],
    )
    text = page([told])
    assert "| net, 24 | 0.00 | 0.00 to 0.00 | 1.00 | 100.0% | no |" in text
    assert "Sizes that the doctor had run: net [16, 32], text [8]." in text
    assert "Sizes at which it had run convolutions alone: net [12, 24]." in text


def test_where_one_size_fails_the_others_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold the card's memory, and nobody waits for them any more."""
    started: list[subprocess.Popen[str]] = []

    class Popen(subprocess.Popen[str]):
        def __init__(self, *words: Any, **how: Any) -> None:
            super().__init__(*words, **how)
            started.append(self)

    def words(script: Any, batch: int) -> list[str]:
        return ["-c", "raise SystemExit('no memory')" if batch == 12 else "import time; time.sleep(60)"]

    monkeypatch.setattr(untried, "_diagnose", lambda folder, words: TOLD)
    monkeypatch.setattr(untried, "_probe", words)
    monkeypatch.setattr(subprocess, "Popen", Popen)
    with pytest.raises(RuntimeError, match="no memory"):
        measure(tmp_path)
    assert len(started) == 8
    assert all(process.returncode for process in started)


@pytest.mark.gpu
@pytest.mark.slow
def test_ranges_hold_the_peaks_of_untried_sizes(tmp_path: Path) -> None:
    """Of a U-Net and a transformer, between sizes that ran and beyond."""
    found = measure(tmp_path)
    assert found.figures["vram_sizes"] >= 4
    assert found.figures["vram_coverage"] >= 0.9, found.runs
