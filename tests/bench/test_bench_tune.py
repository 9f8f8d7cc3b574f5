"""The figures and the page of `stoker bench tune`, from runs that are known."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker import changes
from stoker.bench import tune
from stoker.bench.catalogue import Options
from stoker.bench.result import Result
from stoker.bench.tune import figures_of, page
from stoker.bench.tune_cases import CONTESTS
from stoker.errors import BenchFailed, UsageError
from stoker.ward.catalogue import Case, cases


def run(case: str, share: float, trials: int) -> dict[str, object]:
    return {
        "grid": [{"num_workers": workers, "rate": 1.0} for workers in range(21)],
        "part": case,
        "share": share,
        "share_low": share - 0.02,
        "share_high": share + 0.02,
        "trials": trials,
        "runs": trials + 4,
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
    share = "| two | 0.960 | 0.940 to 0.980 | 7 | 11 | 21 | 100 | 384 | 400 "
    assert f"{share}| num_workers 4 | num_workers 6, prefetch_factor 2 |" in page([result])


@pytest.mark.parametrize("device", CONTESTS)
def test_contests_are_of_known_cases_and_changes(device: str) -> None:
    """Each grid has 16 to 32 points, no two alike, of changes with values that they take."""
    known = {case.id: case for case in cases()}
    for contest in CONTESTS[device]:
        assert ("cuda" in known[contest.case].needs) == (device == "cuda")
        assert 16 <= len(contest.grid) <= 32
        assert len({json.dumps(point, sort_keys=True) for point in contest.grid}) == len(contest.grid)
        for name, value in (pair for point in contest.grid for pair in point.items()):
            assert changes.find(name).value(value) == value


def test_there_are_enough_contests() -> None:
    """As many as the goal names; where a finder looks for less, the grid holds what that may try alone."""
    for contest in CONTESTS["cpu"]:
        tried = {name for point in contest.grid for name in point}
        assert (tried == {"num_workers", "prefetch_factor"}) == (contest.finder == "--workers")
    assert (len(CONTESTS["cpu"]) >= 8, len(CONTESTS["cuda"]) >= 3) == (True, True)


class Pieces:
    """Answers in place of processes; the rate is a point's workers, and those that were asked are kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.time = 0.0
        self.prepared = 0
        monkeypatch.setattr(tune, "_run", self.run)
        monkeypatch.setattr(tune, "prepared", self.prepare)
        monkeypatch.setattr(tune, "time", SimpleNamespace(monotonic=lambda: self.time))

    @contextmanager
    def prepare(self, case: Case) -> Iterator[Case]:
        self.prepared += 1
        yield case

    def run(self, ready: Any, most: float, module: str, *words: str) -> dict[str, Any]:
        self.asked.append(module)
        if module == "stoker":
            self.time += 100
            trials = [{"change": "num_workers"}]
            found = {"settings": {"num_workers": 12}, "trials": trials, "runs": 4, "baseline": 1.0}
            return {**found, "not_tried": [], "stopped": "nothing more is worth trying"}
        self.time += 10
        workers = json.loads(words[0]).get("num_workers", 0)
        return {"rate": None if workers == 2 else float(workers), "disturbed": workers == 4}


def test_it_goes_on_where_it_was_broken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured twice, and nothing begun for which there is no time."""
    pieces = Pieces(monkeypatch)
    options = Options(device="cpu", parts=["too-few-workers-tunnel-2"], state=tmp_path, commit="c")
    with pytest.raises(BenchFailed, match="feedram-0 may take 30 s"):
        list(tune.measure(replace(options, stop_after=170)))
    assert (len(pieces.asked), pieces.time) == (15, 150.0)
    with pytest.raises(BenchFailed, match="search may take 210 s"):
        list(tune.measure(replace(options, stop_after=250)))
    assert len(pieces.asked) == 21
    (result,) = tune.measure(options)
    assert pieces.asked.count("stoker") == 1
    assert len(pieces.asked) == 21 + 1 + 3 * 5
    assert (result.figures["share_of_grid_best"], result.figures["trials_max"]) == (1.0, 1)
    assert result.runs[0]["grid"][0] == {"num_workers": 2, "prefetch_factor": 1, "rate": None}
    assert result.runs[0]["disturbed"] == 4
    assert pieces.prepared == 3
    (again,) = tune.measure(replace(options, stop_after=0))
    assert again.figures == result.figures
    assert pieces.prepared == 3, "a case that is whole is not made ready again"


def test_what_was_measured_at_another_commit_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it is measured again, and the case is not made ready where there is no time for a point."""
    pieces = Pieces(monkeypatch)
    options = Options(device="cpu", parts=["too-few-workers-tunnel-2"], state=tmp_path, commit="c")
    list(tune.measure(options))
    with pytest.raises(BenchFailed, match="num_workers2-prefetch_factor1-0 may take 30 s"):
        list(tune.measure(replace(options, commit="d", stop_after=20)))
    assert (len(pieces.asked), pieces.prepared) == (37, 1)
    list(tune.measure(replace(options, commit="d")))
    assert len(pieces.asked) == 74


def test_a_share_has_the_interval_that_its_turns_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns that differ by a tenth leave a wide one around it, turns that agree a narrow one."""
    pieces = Pieces(monkeypatch)
    options = Options(device="cpu", parts=["too-few-workers-tunnel-2"], state=tmp_path, commit="c")
    (steady,) = tune.measure(options)
    plain = pieces.run
    monkeypatch.setattr(
        tune, "_run", lambda *words: _scaled(plain(*words), 1.0 + 0.1 * (len(pieces.asked) % 2))
    )
    (shaky,) = tune.measure(replace(options, commit="d"))
    widths = [one.runs[0]["share_high"] - one.runs[0]["share_low"] for one in (steady, shaky)]
    assert widths[0] < 0.02 < 0.1 < widths[1]
    assert shaky.runs[0]["share_low"] < shaky.runs[0]["share"] < shaky.runs[0]["share_high"]


def _scaled(told: dict[str, Any], by: float) -> dict[str, Any]:
    return {**told, "rate": told["rate"] * by} if told.get("rate") else told


def test_a_case_without_a_grid_is_refused() -> None:
    """Those that have one are named."""
    with pytest.raises(UsageError, match="no case healthy-x with a grid; there are too-few-workers-tunnel-2"):
        list(tune.measure(Options(device="cpu", parts=["healthy-x"])))
