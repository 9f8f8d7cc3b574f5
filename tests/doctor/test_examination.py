"""A diagnosis's own care: how long further runs may take, and what is not worked out twice."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diagnoses import diagnosis
from diagnoses import record as recorded

from stoker.doctor import examination
from stoker.doctor.experiments.resize import Resized
from stoker.doctor.held import RING, Held
from stoker.doctor.parts import Parts
from stoker.scratch import Message, Plan, Result
from stoker.watch import Record


def test_a_further_run_has_the_seconds_that_are_left_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs would otherwise take a diagnosis past its budget."""
    held: list[float | None] = []

    def noted(plan: Plan) -> Result:
        held.append(plan.limits.seconds)
        return Result(outcome="timed-out", reason="", seconds=2.5, messages=())

    monkeypatch.setattr(examination, "run", noted)
    examination._hold(("train.py",), tmp_path, "it", Parts(), 2.5)
    assert held == [2.5]


def test_a_plan_for_more_steps_has_the_budget_that_was_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes that were played take seconds; without a budget it is drawn."""

    def refuse(_: Any) -> Any:
        raise AssertionError("it was drawn a second time")

    known = diagnosis(tmp_path)
    drawn = replace(known, budget=None).planned(tmp_path).budget
    assert drawn is not None
    monkeypatch.setattr(examination, "draw_budget", refuse)
    again = replace(known, budget=drawn).planned(tmp_path, steps=10_000)
    assert again.budget is drawn
    assert again.plan is not None
    assert again.plan.total is not None


def test_a_size_has_no_peak_where_another_allocator_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps are told all the same."""

    def refuse(*_: Any) -> Any:
        raise RuntimeError("not supported by this allocator")

    told: list[dict[str, Any]] = []
    held = Held()
    for _ in range(RING):
        held.keep(torch.zeros(4, 2))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", refuse)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", refuse)
    size = Resized(held, 8, lambda _, **body: told.append(body), 0)
    size.enter()
    size.tell(0.5, 4)
    assert told == [{"samples": 8, "seconds": 0.5, "peak": None}]


@pytest.mark.parametrize(("steps", "said"), [(0, True), (3, False)])
def test_a_script_that_never_steps_is_told_what_a_step_is(tmp_path: Path, steps: int, said: bool) -> None:
    """More time alone would not help it; one that has made some has only begun late."""
    late = Result(outcome="timed-out", reason="15 s are over", seconds=15.0, messages=())
    record = Record.open(recorded(tmp_path / "it", steps=steps))
    told = examination._why_nothing(late, ("train.py",), record, folder=tmp_path)
    assert ("no optimizer step was seen" in told) is said
    assert ("a call of step() of a torch optimizer" in told) is said
    assert "give it longer with --budget SECONDS" in told
    assert "no optimizer step was seen" in examination._why_nothing(late, ("train.py",), folder=tmp_path)


@pytest.mark.parametrize(("steps", "free", "said"), [(900, 0, True), (900, 1 << 20, False), (0, 0, False)])
def test_steps_that_found_no_room_to_be_recorded_are_told_with_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, free: int, said: bool
) -> None:
    """The loop trains: to run it as it stands would not help."""
    ended = Result(outcome="done", reason="ended", seconds=15.0, messages=(), steps=steps)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    told = examination._why_nothing(ended, ("train.py",), folder=tmp_path)
    assert (f"train.py made {steps} steps, and none could be recorded: {free} bytes are free" in told) is said
    assert (str(tmp_path) in told) is said


def test_passwords_in_what_a_script_said_are_in_nothing_that_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in why it ended nor in what an experiment could not do."""
    address = "postgresql://u:hunter2@db/x"
    messages = (
        Message(kind="unresized", body={"why": f"no answer of {address}"}, at=0.0),
        Message(kind="storage", body={"missing": {"reread": address}, "lines": [1]}, at=0.0),
    )
    told: dict[str, Any] = {"reason": f"RuntimeError: {address}", "stderr_tail": address}
    raised = Result(outcome="failed", seconds=1.0, messages=messages, **told)
    monkeypatch.setattr(examination, "run", lambda _: raised)
    shown = examination._hold(("train.py",), tmp_path, "it", Parts(), 2.5)
    assert "hunter2" not in repr(shown)
    assert examination._notes(shown) == (
        "the script ended before the experiments did (failed: RuntimeError: postgresql://u:***@db/x)",
    )
