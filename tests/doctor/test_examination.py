"""A diagnosis's own care: how long further runs may take, and what is not worked out twice."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diagnoses import diagnosis

from stoker.doctor import examination
from stoker.doctor.experiments.resize import Resized
from stoker.doctor.held import RING, Held
from stoker.doctor.trial import Parts
from stoker.scratch import Plan, Result


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
