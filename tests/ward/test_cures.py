"""Cures tried: which change is applied, what is kept, and how predictions are scored."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stoker.bench.result import Result, write_text
from stoker.cli import app
from stoker.doctor.calibration import read_scores
from stoker.ward import cures, score
from stoker.ward.case import Case, Neutral
from stoker.ward.cures import Tried, read_tried, try_all_cures, try_cures
from stoker.ward.results import Seen, Stamp, keep
from stoker.ward.rounds import answer_kept


def case(name: str, cause: str, **more: Any) -> Case:
    return Case(id=name, script="wind_tunnel.py", cause=cause, variant="v", **more)


def change(name: str, value: object, mid: float | None, cause: str = "too-few-workers") -> dict[str, Any]:
    rate = None if mid is None else {"low": mid, "mid": mid, "high": mid}
    return {"change": name, "value": value, "predicted": rate, "cause": cause, "limit": "compute"}


def told(*changes: dict[str, Any]) -> dict[str, Any]:
    return {
        "verdict": {"cause": "too-few-workers"}, "rate": 20.0, "spread": 0.02, "foreign_cores": 0.0,
        "loader": {"workers": 2}, "plan": {"options": [{"changes": list(changes)}]},
    }  # fmt: skip


def tried(name: str, predicted: float, measured: float, *, way: str = "setting") -> Tried:
    return Tried(
        case=name, change="num_workers", value=4, way=way, before=20.0, spread=0.01,
        low=0.9 * predicted, predicted=predicted, high=1.1 * predicted, measured=measured,
    )  # fmt: skip


TRIAL = {
    "outcome": "measured", "rates": [380.0, 400.0, 390.0], "size": 10.0, "unit": "sample", "disturbed": False,
    "told": ["changed: DataLoader(Rows): num_workers 2 -> 4"],
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What was started, answered from memory."""
    started: list[tuple[str, ...]] = []
    plan = told(change("feed", None, 90.0), change("num_workers", 4, 40.0), change("stage", None, None))

    def run(ready: Any, module: str, *words: str) -> Any:
        started.append((module, *words))
        return plan if module == "stoker" else TRIAL

    monkeypatch.setattr(cures, "_run", run)
    return started


def test_a_setting_is_put_over_the_scripts_own(asked: list[tuple[str, ...]]) -> None:
    """In turns with the script as it is, and the median over all stretches is what counts."""
    found = next(one for one in try_cures(case("a", "too-few-workers")) if one.change == "num_workers")
    assert (found.value, found.way) == (4, "setting")
    assert (found.predicted, found.measured, found.again) == (40.0, 39.0, 39.0)
    assert len(found.rates) == 6
    assert found.error == pytest.approx(1 / 39)
    assert [json.loads(words[1]) for words in asked[1:4]] == [{}, {"feed": "ram"}, {"num_workers": 4}]
    assert asked[1:4] == asked[4:]


def test_every_change_with_a_predicted_rate_is_tried_by_itself(asked: list[tuple[str, ...]]) -> None:
    """One that a script's author would write is tried by the setting that does the same."""
    found = try_cures(case("a", "too-few-workers"))
    assert [(one.change, one.value, one.way) for one in found] == [
        ("feed", "ram", "setting"), ("num_workers", 4, "setting"),
    ]  # fmt: skip


def test_a_rewriting_is_tried_by_the_neutral_form(
    asked: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that is what the change makes of the script; by samples where batches differ."""
    monkeypatch.setattr(cures, "_ask", lambda ready: told(change("rarer", None, 80.0, "loop-stall")))
    (found,) = try_cures(case("a", "loop-stall", neutral=Neutral(args=(), steps=2.0)))
    assert (found.change, found.way, found.measured, found.again) == ("rarer", "script", 78.0, 39.0)
    assert json.loads(asked[-1][1]) == {}
    (other,) = try_cures(case("a", "handoff", neutral=Neutral(args=())))
    assert other.error is None
    assert "neutral form" in (other.reason or "")
    monkeypatch.setattr(cures, "_ask", lambda ready: told(change("async_save", None, 80.0, "loop-stall")))
    (beside,) = try_cures(case("a", "loop-stall", neutral=Neutral(args=())))
    assert "neutral form" in (beside.reason or "")


def test_a_change_that_the_script_does_not_take_is_no_score(
    asked: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader was left alone: its rate is none of the change's."""
    line = "changed: DataLoader(Rows): as it was; left alone: feed: samples are random"
    monkeypatch.setattr(cures, "_run", lambda *words: {**TRIAL, "told": [line]})
    monkeypatch.setattr(cures, "_ask", lambda ready: told(change("feed", None, 80.0)))
    (found,) = try_cures(case("a", "cpu-transform"))
    assert (found.measured, found.reason) == (None, line)


def test_what_cannot_be_tried_is_told(asked: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Healthy runs, runs that die, several ranks, plans without a rate: none of them is a score."""
    for one, why in (
        (case("a", "healthy"), "nothing to cure"),
        (case("a", "ram-pressure", effect="death"), "death"),
        (case("a", "straggler", ranks=2), "one process"),
    ):
        (found,) = try_cures(one)
        assert why in (found.reason or "")
    assert asked == []
    monkeypatch.setattr(cures, "_ask", lambda ready: told(change("num_workers", 4, None)))
    (found,) = try_cures(case("a", "too-few-workers"))
    assert "no change" in (found.reason or "")


def test_what_was_measured_on_a_busy_machine_is_no_score(
    tmp_path: Path, asked: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A diagnosis is asked for once more, then told, and tried again the next time; so are measurements."""
    busy = {**told(change("num_workers", 4, 40.0)), "foreign_cores": 1.0}

    def run(ready: Any, module: str, *words: str) -> Any:
        asked.append((module, *words))
        return busy

    monkeypatch.setattr(cures, "_run", run)
    folder = tmp_path / "kept"
    (found,) = try_all_cures([case("a", "too-few-workers")], folder, version="1", tell=lambda line: None)
    assert found.error is None
    assert "to be tried again" in (found.reason or "")
    assert len(asked) == 2
    assert list(folder.glob("*.json")) == []
    monkeypatch.setattr(cures, "_ask", lambda ready: told(change("num_workers", 4, 40.0)))
    monkeypatch.setattr(cures, "_run", lambda *words: {**TRIAL, "disturbed": True})
    (found,) = try_cures(case("a", "too-few-workers"))
    assert (found.measured, found.again) == (None, None)
    assert "to be tried again" in (found.reason or "")


def test_a_case_that_a_round_has_shown_is_not_shown_again(
    tmp_path: Path, asked: list[tuple[str, ...]]
) -> None:
    """For that version and machine, unless the round was made on a busy one."""
    here = Stamp(version="1", hardware="cpu", versions={}, date="2026-11-18")
    one = case("a", "too-few-workers")
    seen = Seen(
        case="a", truth=one.cause, also=(), said="too-few-workers", said_also=(), seconds=9.0
    )  # fmt: skip
    assert answer_kept(tmp_path, one, here) is None
    keep(tmp_path, seen, here)
    assert answer_kept(tmp_path, one, here) is None  # the whole answer was not taken along
    answer = told(change("num_workers", 4, 44.0))
    write_text(tmp_path / "told" / "a.json", json.dumps(answer))
    assert answer_kept(tmp_path, one, here) == answer
    assert answer_kept(tmp_path, one, replace(here, version="2")) is None
    assert [found.predicted for found in try_cures(one, answer=answer)] == [44.0]
    assert "stoker" not in [words[0] for words in asked]
    assert 40.0 in [found.predicted for found in try_cures(one, answer={**answer, "foreign_cores": 1.0})]
    assert [words[0] for words in asked].count("stoker") == 1


def test_results_are_kept_for_their_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying that was broken off goes on where it was."""
    shown: list[str] = []

    def one(which: Case, *, told: Path, answer: object) -> list[Tried]:
        shown.append(which.id)
        return [tried(which.id, 40.0, 39.0), Tried(case=which.id, change="stage", reason="not here")]

    monkeypatch.setattr(cures, "try_cures", one)
    lines: list[str] = []
    scores = tmp_path / ".stoker" / "calibration.jsonl"
    try_all_cures([case("a", "x")], tmp_path, version="1", tell=lines.append, scores=scores)
    try_all_cures([case("a", "x"), case("b", "x")], tmp_path, version="1", tell=lines.append, scores=scores)
    assert shown == ["a", "b"]
    assert [kept.case for kept in read_tried(tmp_path, "1")] == ["a", "a", "b", "b"]
    assert read_tried(tmp_path, "2") == []
    assert [one.measured for one in read_scores(scores)] == [39.0, 39.0]
    assert "predicted 40.0, measured 39.0" in lines[0]
    assert lines[1] == "n/a     a, stage: not here"


def test_predictions_are_scored_by_the_intervals_that_were_told() -> None:
    """One that was told without bounds is in the error, and not in the coverage."""
    some = [tried(f"{n}", 40.0, 40.0 * (1 + 0.002 * n)) for n in range(3)]
    bare = replace(tried("bare", 40.0, 40.0), low=None, high=None)
    found = score.figures_of_cures([*some, tried("bad", 40.0, 80.0), bare, Tried(case="n/a", reason="none")])
    assert found["predictions"] == 5
    assert found["coverage"] == 0.75
    assert found["prediction_median_error"] < 0.01
    assert "predictions_scripts" not in found
    assert "coverage" not in score.figures_of_cures([bare])


def test_the_page_has_every_prediction_beside_what_was_measured() -> None:
    """What was predicted and could not be tried is told; a case without a prediction is left out."""
    unmeasured = replace(tried("c", 40.0, 50.0), measured=None, reason="not here")
    runs = [one.to_json() for one in (tried("a", 40.0, 50.0), Tried(case="b", reason="none"), unmeasured)]
    figures = score.figures_of_cures([tried("a", 40.0, 50.0)])
    result = Result(bench="cures", hardware="cpu", figures=figures, runs=runs, versions={})
    text = score.page_of_cures([result])
    row = "| a | num_workers=4 | setting | 20.0 | n/a | 40.0 | 36.0 to 44.0 | 50.0 | -20.0% | n/a |"
    assert row in text
    assert "| c | num_workers | not here |" in text
    assert "| b |" not in text


def test_cures_are_neither_listed_nor_renamed() -> None:
    """Wrong use, said at once."""
    wrong = CliRunner().invoke(app, ["ward", "--cures", "--list"])
    assert "--cures" in str(wrong.exception)
