"""The rounds: a case is shown once a version, in the time that there is; the score counts what was run."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stoker.bench.result import Result
from stoker.cli import app
from stoker.errors import UsageError
from stoker.ward import rounds, score
from stoker.ward.case import Case
from stoker.ward.catalogue import cases as all_cases
from stoker.ward.needs import of_card
from stoker.ward.results import NOT_RUN, Seen, Stamp, join, keep
from stoker.ward.rounds import make_rounds


def case(name: str, cause: str, **more: object) -> Case:
    return Case(id=name, script="x.py", cause=cause, variant="v", **more)  # type: ignore[arg-type]


def seen(name: str, truth: str, said: str | None, *, seconds: float | None = 12.0) -> Seen:
    return Seen(case=name, truth=truth, also=(), said=said, said_also=(), seconds=seconds, reason=None)


def stamp(version: str = "1", hardware: str = "h200") -> Stamp:
    return Stamp(version=version, hardware=hardware, versions={"torch": "2.11"}, date="2026-11-16")


def test_a_result_is_kept_for_its_version_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that were broken off go on where they were; another version begins anew."""
    shown: list[str] = []

    def show(one: Case, **how: object) -> Seen:
        shown.append(one.id)
        return seen(one.id, one.cause, "handoff")

    monkeypatch.setattr(rounds, "show", show)
    cases = [case("a", "handoff"), case("b", "healthy")]
    told: list[str] = []
    make_rounds(cases[:1], tmp_path, stamp=stamp(), renamed=False, tell=told.append)
    again = make_rounds(cases, tmp_path, stamp=stamp(), renamed=False, tell=told.append)
    assert shown == ["a", "b"]
    assert [one.right for one in again] == [True, False]
    make_rounds(cases, tmp_path, stamp=stamp("2"), renamed=False, tell=told.append)
    assert shown == ["a", "b", "a", "b"]
    assert json.loads((tmp_path / "a.json").read_text())["version"] == "2"


def test_the_right_cause_for_another_reason_is_wrong(tmp_path: Path) -> None:
    """Where a case tells the reason, by the change that must come first; kept with the result."""
    told = replace(seen("a", "straggler", "straggler"), cure="rank_data", said_cure="rank_host")
    assert told.right is False
    assert replace(told, said_cure="rank_data").right is True
    assert "by rank_host" in rounds.line_of(told)
    keep(tmp_path, told, stamp())
    _, joined = join(tmp_path, [case("a", "straggler", cure="rank_data")], version=None, hardware=None)
    assert joined == [told]


def test_a_result_is_kept_for_its_machine_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another begins anew; what could not be run there is looked at again."""
    shown: list[str] = []

    def show(one: Case, **how: object) -> Seen:
        shown.append(one.id)
        return seen(one.id, one.cause, None, seconds=None) if one.id == "b" else seen(one.id, one.cause, "x")

    monkeypatch.setattr(rounds, "show", show)
    cases = [case("a", "handoff"), case("b", "healthy")]
    for machine in ("cpu", "cpu", "h200"):
        make_rounds(cases, tmp_path, stamp=stamp(hardware=machine), renamed=False, tell=lambda line: None)
    assert shown == ["a", "b", "b", "a", "b"]


def test_what_the_time_does_not_suffice_for_leaves_no_result(tmp_path: Path) -> None:
    """A case that is not begun in time is told as not run, and is begun by the next rounds."""
    told: list[str] = []
    done = make_rounds(
        [case("a", "handoff")], tmp_path, stamp=stamp(), renamed=False, tell=told.append, stop_after=0.0
    )
    assert ([one.reason for one in done], list(tmp_path.iterdir())) == ([NOT_RUN], [])
    assert told == ["n/a    a: not run"]


def test_a_case_that_the_end_interrupts_is_not_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time was not its own fault; one that has had three times what a verdict may take is wrong."""

    def late(*words: object, **how: object) -> object:
        raise subprocess.TimeoutExpired("doctor", 1.0)

    one = next(case for case in all_cases() if case.id == "compute-bound-melodies")
    monkeypatch.setattr(subprocess, "run", late)
    monkeypatch.setattr(rounds, "prepared", lambda case, renamed: _Ready())
    assert (rounds.show(one, patience=30.0).reason, rounds.show(one, patience=30.0).right) == (NOT_RUN, None)
    assert rounds.show(one).right is False
    assert rounds.show(one, patience=100.0).reason == "no verdict within 100 s"


class _Ready:
    env = cwd = None

    def __enter__(self) -> "_Ready":
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def command(self, *tool: str) -> list[str]:
        return list(tool)


def test_results_of_one_version_are_joined(tmp_path: Path) -> None:
    """In the order of the cases; one without a result is told as not run, and counted apart."""
    keep(tmp_path, seen("b", "handoff", "handoff"), stamp())
    keep(tmp_path, seen("a", "healthy", "handoff"), stamp())
    cases = [case("a", "healthy"), case("b", "handoff"), case("c", "tiny-batch")]
    made_by, all_seen = join(tmp_path, cases, version=None, hardware=None)
    assert made_by == stamp()
    assert [(one.case, one.right, one.reason) for one in all_seen] == [
        ("a", False, None), ("b", True, None), ("c", None, NOT_RUN),
    ]  # fmt: skip
    found = score.figures_of(all_seen, cases)
    assert (found["cases"], found["cases_not_run"], found["cases_not_injectable"]) == (2, 1, 0)


def test_results_that_do_not_belong_together_are_not_joined(tmp_path: Path) -> None:
    """Of two versions, of two machines, or of none: each is said."""
    cases = [case("a", "healthy"), case("b", "handoff")]
    with pytest.raises(UsageError, match="no results"):
        join(tmp_path, cases, version=None, hardware=None)
    keep(tmp_path, seen("a", "healthy", "healthy"), stamp("1"))
    keep(tmp_path, seen("b", "handoff", "handoff"), stamp("2", "cpu"))
    with pytest.raises(UsageError, match=r"several versions.*--commit"):
        join(tmp_path, cases, version=None, hardware=None)
    with pytest.raises(UsageError, match="version 3"):
        join(tmp_path, cases, version="3", hardware=None)
    assert join(tmp_path, cases, version="2", hardware=None)[0].hardware == "cpu"
    keep(tmp_path, seen("b", "handoff", "handoff"), stamp("1", "cpu"))
    with pytest.raises(UsageError, match="cpu, h200"):
        join(tmp_path, cases, version="1", hardware=None)


def test_joined_results_become_a_benchmark(tmp_path: Path) -> None:
    """Its file is named by the machine and the day of the results, and a page stands beside it."""
    for one in all_cases():
        if of_card(one):
            keep(tmp_path / "ward", seen(one.id, one.cause, one.cause), stamp())
    words = ["ward", "--join", str(tmp_path / "ward"), "--device", "cuda", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    value = json.loads((tmp_path / "ward_h200_2026-11-16.json").read_text())
    assert (value["commit"], value["versions"]) == ("1", {"torch": "2.11"})
    assert value["figures"]["top1"] == value["figures"]["lookalikes"] == 1.0
    assert "host-sync 3" in (tmp_path / "ward.md").read_text()
    wrong = CliRunner().invoke(app, ["ward", "--join", str(tmp_path), "--list"])
    assert "--join" in str(wrong.exception)


def test_every_case_is_of_a_card_or_not() -> None:
    """The two lists of `--device` together hold every case."""
    lists = [CliRunner().invoke(app, ["ward", "--list", "--device", name]).output for name in ("cpu", "cuda")]
    assert sum(len(text.splitlines()) for text in lists) == len(all_cases())
    assert "host-sync-items:" in lists[1]
    assert "handoff-arm-40:" in lists[0]


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


def test_a_second_cause_that_was_put_there_is_counted_apart() -> None:
    """Named too, in any place; the first one is right or wrong as ever."""
    two = case("a", "cpu-transform", also=("loop-stall",))
    cases = [replace(two, id=name) for name in "abcd"] + [case("e", "handoff")]
    first = replace(seen("a", "cpu-transform", "cpu-transform"), also=("loop-stall",))
    found = score.figures_of(
        [
            replace(first, said_also=("handoff", "loop-stall")),
            replace(first, case="b"),
            replace(first, case="c", said="loop-stall"),
            replace(first, case="d", said=None, seconds=None),
            seen("e", "handoff", "handoff"),
        ],
        cases,
    )
    assert (found["second_named"], found["second_cases"]) == (2, 3)
    assert found["top1"] == pytest.approx(3 / 4)
    made = Result(bench="ward", hardware="cpu", figures=found, runs=[], versions={})
    assert "| a second cause named too | 2 of 3 |" in score.page([made])
    alone = score.figures_of([seen("e", "handoff", "handoff")], cases)
    assert "second_named" not in alone
    assert "second cause" not in score.page([replace(made, figures=alone)])


def test_the_cases_can_be_listed_and_an_unknown_one_is_named() -> None:
    """By id or cause."""
    listed = CliRunner().invoke(app, ["ward", "--list", "no-overlap"])
    assert listed.exit_code == 0
    assert all(line.startswith("no-overlap") for line in listed.output.splitlines())
    wrong = CliRunner().invoke(app, ["ward", "haunted"])
    assert "haunted" in str(wrong.exception)
