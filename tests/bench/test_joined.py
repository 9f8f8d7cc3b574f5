"""A benchmark whose parts are measured apart: each keeps its date and its commit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.bench import Options, feed, run
from stoker.bench.feed_figures import figures_of
from stoker.bench.feed_page import page
from stoker.bench.joined import join
from stoker.bench.result import Origin, Result, read_result, write_result


def turns(*parts: str, rate: float) -> list[dict[str, Any]]:
    return [
        {"part": part, "how": "turn", "turn": 0, "kind": "vram", "gb_s": rate, "samples": rate, "seconds": 1}
        for part in parts
    ]


def result(*parts: str, rate: float, date: str, commit: str, **versions: str) -> Result:
    """These parts, measured at one time."""
    runs, origin = turns(*parts, rate=rate), Origin(date=date, commit=commit, versions=versions)
    return Result(
        bench="feed",
        hardware="cpu",
        figures=figures_of(runs),
        runs=runs,
        versions=versions,
        commit=commit,
        date=date,
        parts=dict.fromkeys(parts, origin),
    )


OLD = result("window", "ram", rate=1.0, date="2026-01-02", commit="a" * 40, torch="1", system="Linux")
NEW = result("ram", rate=2.0, date="2026-03-04", commit="b" * 40, torch="2", system="Linux")


def test_what_was_not_measured_is_kept_with_its_date_and_commit(tmp_path: Path) -> None:
    """In the file, and on the page; versions that differ are told with their parts."""
    both = feed.join(NEW, OLD)
    assert [(run["part"], run["gb_s"]) for run in both.runs] == [("window", 1.0), ("ram", 2.0)]
    assert both.parts == {"window": OLD.parts["window"], "ram": NEW.parts["ram"]}
    assert (both.date, both.versions) == ("2026-03-04", {"torch": "1 (window), 2 (ram)", "system": "Linux"})
    assert {*NEW.figures, *(key for key in OLD.figures if "window" in key)} <= set(both.figures)
    kept = read_result(write_result(both, tmp_path))
    assert kept == both
    told = "commit aaaaaaaaaaaa on 2026-01-02 (window), bbbbbbbbbbbb on 2026-03-04 (ram)"
    assert told in page([kept])


def test_a_part_that_is_measured_again_is_the_new_one_alone() -> None:
    """Nothing of the old file is left where all of its parts are."""
    again = result("window", "ram", rate=3.0, date="2026-03-04", commit="b", torch="2")
    assert feed.join(again, OLD) == again


def test_of_a_file_that_tells_no_parts_each_has_its_date() -> None:
    """As older ones do; what was skipped there is no part."""
    skipped = {"part": "vram", "how": "skipped", "kind": "vram", "why": "no card"}
    older = replace(OLD, parts={}, runs=[*OLD.runs, skipped])
    assert join(NEW, older, figures_of).parts == feed.join(NEW, OLD).parts


def test_shrunk_sets_are_joined_with_nothing() -> None:
    """Their figures mean nothing."""
    small = replace(NEW, figures={**NEW.figures, "size_percent": 1})
    assert feed.join(small, OLD) == small
    assert feed.join(NEW, replace(OLD, figures={"size_percent": 1})) == NEW


def test_a_run_of_one_part_keeps_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the newest file of the same hardware, whatever was measured last."""
    write_result(OLD, tmp_path)
    write_result(replace(OLD, hardware="h200", date="2026-02-02"), tmp_path)
    monkeypatch.setattr(feed, "measure", lambda _: iter([NEW]))
    ((path, written),) = run("feed", Options(parts=["ram"]), tmp_path)
    assert path.name == "feed_cpu_2026-03-04.json"
    assert written == read_result(path) == feed.join(NEW, OLD)


def test_rows_of_another_name_are_joined_by_it_and_most_of_them_are_the_others() -> None:
    """Seventy names would tell less than that."""
    names = [f"row{number}" for number in range(10)]
    old = Result(
        bench="faults", hardware="cpu", date="2026-03-01", commit="a" * 12, versions={"torch": "2"},
        figures={}, runs=[{"row": name, "outcome": "lost"} for name in names],
    )  # fmt: skip
    again = Origin(date="2026-03-02", commit="b" * 12, versions={"torch": "2"})
    new = replace(
        old,
        date="2026-03-02",
        commit="b" * 12,
        parts={"row3": again},
        runs=[{"row": "row3", "outcome": "held"}],
    )
    found = join(new, old, lambda runs: {"runs": float(len(runs))}, key="row")
    assert [run["outcome"] for run in found.runs if run["row"] == "row3"] == ["held"]
    assert len(found.runs) == 10
    assert found.commit == f"{'b' * 12} on 2026-03-02 (row3), {'a' * 12} on 2026-03-01 (the others)"
