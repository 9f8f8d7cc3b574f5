"""`stoker doctor --json` as a whole: every field that others rely on, each of its type; and its words."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from diagnoses import diagnosis, evidence, plan, record
from rich.console import Console

from stoker.doctor.budget import Budget, Ram, Vram
from stoker.doctor.evidence import Evidence
from stoker.doctor.examination import Diagnosis
from stoker.doctor.finding import Cure
from stoker.doctor.plan import KINDS, draw_up
from stoker.doctor.report import html_of, markdown_of
from stoker.doctor.verdict import reach
from stoker.doctor.words import show

NUMBER = (int, float)
RAM = Ram(count=2, main=1 << 30, each_worker=1 << 28, each_queue=1 << 21, need=3 << 29, free=1 << 33)


def two_causes(**more: Any) -> Evidence:
    """Workers that wait for a disk and then decode; behind them, the loop saves every 5 steps."""
    plain = evidence()
    made = {**plain.making, "read": 0.036, "transform": 0.024, "cpu": 0.024, "disk": 9e5}
    host = {**plain.host, "memory_free_bytes": 1 << 33}
    run = replace(
        plain, step=0.03, compute=0.004, loader=0.03, loader_with=(4, 0.0299), making=made, host=host,
        batch_bytes=1 << 20, shares={**plain.shares, "wait": 0.87},
    )  # fmt: skip
    return replace(run, **more)


def whole(folder: Path, run: Evidence) -> Diagnosis:
    """With the plan that is drawn up for it."""
    budget = Budget(vram=Vram(), ram=RAM)
    return diagnosis(folder, run, budget=budget, plan=draw_up(reach(run), run, budget))


@pytest.fixture
def told(tmp_path: Path) -> dict[str, Any]:
    """The object that is printed, there and back."""
    found = whole(record(tmp_path / "20260921-000000"), two_causes())
    value: dict[str, Any] = json.loads(json.dumps(found.to_json(), allow_nan=False))
    return value


def is_rate(value: Any) -> bool:
    """Steps a second, or not known."""
    return value is None or (isinstance(value, NUMBER) and value > 0)


def test_the_verdict_has_its_cause_share_confidence_and_ceiling(told: dict[str, Any]) -> None:
    """The share is one of the step, and what is known of the rest is by the same names."""
    verdict = told["verdict"]
    assert verdict["cause"] == "storage-latency"
    assert 0 < verdict["share"] <= 1
    assert 0 < verdict["confidence"] <= 1
    assert verdict["ceiling_after"] == pytest.approx(1 / 0.012)
    assert all(isinstance(line, str) for line in verdict["why"])
    for cure in verdict["cures"]:
        assert set(cure) == {"change", "value", "text", "kind", "risk"}
        assert cure["kind"] in KINDS


def test_each_further_cause_has_share_ceiling_and_ids_of_cures(told: dict[str, Any]) -> None:
    """The rate is the one with those before it cured as well."""
    (also,) = told["verdict"]["also"]
    assert also["cause"] == "cpu-transform"
    assert 0 < also["share"] <= 1
    assert also["ceiling_after"] == pytest.approx(250)
    assert also["cures"] == ["feed", "batch_transform", "gpu_transform"]
    assert 0 < also["confidence"] <= 1


def test_eliminations_name_the_measurement(told: dict[str, Any]) -> None:
    """By whom each was ruled out, in words."""
    assert told["eliminated"]
    for one in told["eliminated"]:
        assert set(one) == {"cause", "by"}
        assert isinstance(one["cause"], str)
        assert isinstance(one["by"], str)
        assert one["by"]


def test_ceilings_and_rates_are_steps_a_second(told: dict[str, Any]) -> None:
    """Of held batches, of the loader alone, of the copy; and of the run itself, burst and sustained."""
    assert set(told["ceilings"]) == {"compute", "loader", "copy"}
    assert told["ceilings"]["compute"] == pytest.approx(250)
    assert told["ceilings"]["loader"] == pytest.approx(1 / 0.03)
    assert told["ceilings"]["copy"] is None
    assert set(told["rates"]) == {"burst", "sustained"}
    assert all(is_rate(rate) for rate in told["rates"].values())
    assert told["rates"]["sustained"] == pytest.approx(1 / 0.03)


def test_options_have_all_that_one_chooses_by(told: dict[str, Any]) -> None:
    """Name, changes, kind, a rate with its interval or none, memory beside what is free, and risk."""
    options = told["plan"]["options"]
    assert [option["name"] for option in options] == ["conservative", "moderate", "aggressive"]
    for option in options:
        assert option["kind"] in KINDS
        assert isinstance(option["risk"], str)
        for change in option["changes"]:
            assert isinstance(change["change"], str)
            assert change["kind"] in KINDS
            assert all(isinstance(line, str) for line in change["apply"])
        if option["predicted"] is not None:
            low, mid, high = (option["predicted"][name] for name in ("low", "mid", "high"))
            assert 0 < low <= mid <= high
        for need in (option["vram"], option["ram"]):
            assert set(need) == {"need", "free", "fits"}
            assert all(need[name] is None or isinstance(need[name], int) for name in ("need", "free"))
            assert need["fits"] in (True, False, None)
    assert options[0]["predicted"] is not None
    assert options[0]["ram"]["need"] > RAM.main


def test_overhead_is_what_was_measured_of_it(told: dict[str, Any]) -> None:
    """Microseconds a step, and the recorder's share of a core."""
    assert isinstance(told["overhead"]["hooks_us_per_step"], NUMBER)
    assert isinstance(told["schema"], int)


def test_the_ceiling_after_each_cure_is_printed(tmp_path: Path) -> None:
    """In the terminal, in Markdown and on the page; of each further cause with what cures it."""
    found = whole(record(tmp_path / "20260921-000000"), two_causes())
    console = Console(width=200, file=StringIO(), force_terminal=False)
    with console.capture() as caught:
        show(found, console)
    terminal, markdown, page = caught.get(), markdown_of(found), html_of(found)
    for text in (terminal, markdown, page):
        assert "ith it cured 83.3 steps/s, 2.5x: worked out, not tried" in text
        assert "ith it and those before it cured 250.0 steps/s, 7.5x: worked out, not tried" in text
    assert "do: feed, batch_transform, gpu_transform" in terminal
    assert "Cures: `feed`, `batch_transform`, `gpu_transform`." in markdown


def test_a_ceiling_that_is_not_known_is_none(tmp_path: Path) -> None:
    """Of a cause whose share was not measured; nothing is printed then."""
    unknown = replace(
        reach(two_causes()).named[0], share=None, ceiling_after=None, cures=(Cure(change="a", text="b"),)
    )
    verdict = replace(reach(two_causes()), named=(unknown,), share=None)
    found = diagnosis(record(tmp_path / "20260921-000000"), two_causes(), verdict=verdict, plan=plan())
    assert found.to_json()["verdict"]["ceiling_after"] is None
    assert "worked out, not tried" not in markdown_of(found)
    assert replace(verdict, named=()).ceiling_after is None
