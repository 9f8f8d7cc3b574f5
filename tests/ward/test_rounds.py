"""The rounds: a case is shown once a version, and the score counts what could be run."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stoker.cli import app
from stoker.ward import rounds, score
from stoker.ward.case import Case
from stoker.ward.rounds import Seen, make_rounds


def case(name: str, cause: str, **more: object) -> Case:
    return Case(id=name, script="x.py", cause=cause, variant="v", **more)  # type: ignore[arg-type]


def seen(name: str, truth: str, said: str | None, *, seconds: float | None = 12.0) -> Seen:
    return Seen(case=name, truth=truth, also=(), said=said, said_also=(), seconds=seconds, reason=None)


def test_a_result_is_kept_for_its_version_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that were broken off go on where they were; another version begins anew."""
    shown: list[str] = []

    def show(one: Case, *, renamed: bool) -> Seen:
        shown.append(one.id)
        return seen(one.id, one.cause, "handoff")

    monkeypatch.setattr(rounds, "show", show)
    cases = [case("a", "handoff"), case("b", "healthy")]
    told: list[str] = []
    make_rounds(cases[:1], tmp_path, version="1", renamed=False, tell=told.append)
    again = make_rounds(cases, tmp_path, version="1", renamed=False, tell=told.append)
    assert shown == ["a", "b"]
    assert [one.right for one in again] == [True, False]
    make_rounds(cases, tmp_path, version="2", renamed=False, tell=told.append)
    assert shown == ["a", "b", "a", "b"]
    assert json.loads((tmp_path / "a.json").read_text())["version"] == "2"


def test_the_score_counts_what_was_run() -> None:
    """A case without a verdict is wrong; one that cannot be run here is nobody's."""
    cases = [
        case("a", "handoff", lookalikes=(3,)), case("b", "handoff"), case("c", "no-overlap"),
        case("d", "healthy"), case("e", "compute-bound"), case("f", "tiny-batch"),
    ]  # fmt: skip
    found = score.figures_of(
        [
            seen("a", "handoff", "handoff"),
            seen("b", "handoff", None),
            seen("c", "no-overlap", "healthy"),
            seen("d", "healthy", "compute-bound"),
            seen("e", "compute-bound", "handoff"),
            seen("f", "tiny-batch", None, seconds=None),
        ],
        cases,
    )
    assert found["top1"] == pytest.approx(1 / 3)
    assert (found["healthy_alarms"], found["healthy_cases"]) == (1, 2)
    assert (found["lookalikes"], found["cases"], found["cases_not_injectable"]) == (1, 5, 1)


def test_the_cases_can_be_listed_and_an_unknown_one_is_named() -> None:
    """By id or cause."""
    listed = CliRunner().invoke(app, ["ward", "--list", "no-overlap"])
    assert listed.exit_code == 0
    assert all(line.startswith("no-overlap") for line in listed.output.splitlines())
    wrong = CliRunner().invoke(app, ["ward", "haunted"])
    assert "haunted" in str(wrong.exception)
