"""The diagnosis as the first run of a script as it is."""

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.doctor.evidence import Evidence
from stoker.doctor.examination import Diagnosis
from stoker.doctor.method import Stretch
from stoker.doctor.verdict import reach
from stoker.errors import UsageError
from stoker.scratch import Guards
from stoker.tune import finding
from stoker.tune.meaning import Probe
from stoker.tune.observed import trial_of
from stoker.tune.search import Search
from stoker.tune.trial import Trial
from stoker.watch import Step
from stoker.watch.record import LineWriter, Writer

LOADER = {"id": 0, "name": "L", "fed": 300, "num_workers": 2, "batch_size": 8, "epochs": 1, "length": 1000}


def diagnosis(folder: Path, *, observed: tuple[float, float] | None) -> Diagnosis:
    """300 steps of 20 ms; in the last 100 batches were held, and steps took 5 ms."""
    writer = Writer(folder / "it", rank=0)
    writer.describe_run({"id": "it"})
    writer.describe_rank({"rank": 0, "loaders": [LOADER]})
    lines = LineWriter(writer.rank_folder)
    t = 100.0
    for number in range(300):
        took = 0.02 if number < 200 else 0.005
        t += took
        lines.add("steps", _step(number, t, took).to_line())
    lines.close()
    evidence = Evidence(step=0.02, shares={"wait": 0.5})
    parts = [Stretch(name="start and warm-up", seconds=1.0)]
    if observed is not None:
        parts.append(Stretch(name="observe", seconds=3.0, began=observed[0], ended=observed[1]))
    return Diagnosis(
        verdict=reach(evidence),
        evidence=evidence,
        record=folder / "it",
        seconds=9.0,
        shield=None,
        method=tuple(parts),
    )


def _step(number: int, t: float, took: float) -> Step:
    return Step(
        step=number, t=t, samples=8, loader=0, wait=took, copy=0.0, forward=0.0, backward=0.0, update=0.0,
        other=0.0, startup=0.0,
    )  # fmt: skip


def test_what_was_observed_is_a_run_without_changes(tmp_path: Path) -> None:
    """Its rate is that of the steps in which nothing was tried."""
    trial = trial_of(diagnosis(tmp_path, observed=(100.1, 104.0)))
    assert trial is not None
    assert (trial.settings, trial.outcome, trial.first) == ({}, "measured", None)
    assert trial.rates is not None
    assert trial.rates.each == pytest.approx([400.0] * 3)


def test_a_few_steps_are_no_run(tmp_path: Path) -> None:
    """Nor where nothing was observed, or when is not known."""
    told = diagnosis(tmp_path, observed=(100.1, 101.5))
    assert trial_of(told) is None
    assert trial_of(replace(told, method=told.method[:1])) is None
    unknown = Stretch(name="observe", seconds=3.0)
    assert trial_of(replace(told, method=(unknown,))) is None


def test_a_search_that_is_resumed_has_its_first_run_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is observed anew stands in for no later run of the script as it is."""
    told = diagnosis(tmp_path, observed=(100.1, 104.0))
    plain = trial_of(told)
    assert plain is not None
    runs: list[Path] = []

    def held(command: Any, settings: Any, *, folder: Path, **how: Any) -> Trial:
        folder.mkdir(parents=True)
        runs.append(folder)
        return plain

    def begin(command: Any, **how: Any) -> tuple[Diagnosis, Search]:
        return told, Search(verdict=told.verdict, run=told.evidence, kinds=frozenset({"same"}))

    monkeypatch.setattr(finding, "hold", held)
    monkeypatch.setattr(finding, "begin", begin)
    folder = finding.find(["train.py"], home=tmp_path, budget=60).folder
    assert [run.name for run in runs] == ["001"]  # the first was observed
    shutil.rmtree(runs[0])
    finding.find(["train.py"], home=tmp_path, budget=60, resume=folder)
    assert [run.name for run in runs] == ["001", "001"]


def test_a_search_that_cannot_be_resumed_is_refused_before_its_diagnosis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits a minute for that."""
    monkeypatch.setattr(finding, "begin", lambda *_, **__: pytest.fail("a diagnosis was begun"))
    with pytest.raises(UsageError, match="is no search: name a folder under"):
        finding.find(["train.py"], home=tmp_path, resume=tmp_path / "none")


def test_a_probe_has_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of two seconds too are looked at, where the budget is for that."""
    given: list[float] = []

    def taken(command: Any, settings: Any, *, most: float, **how: Any) -> Probe:
        given.append(most)
        return Probe(ids=[], batches=[], losses=[])

    monkeypatch.setattr(finding, "take", taken)
    for left in (600.0, -1.0):
        finding._probe(["train.py"], time.monotonic() + left, 1)({}, 0, True)
    assert given == pytest.approx([605.0, 5.0], abs=1.0)


def test_a_change_may_take_longer_to_start_than_the_script_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script itself has all its time for its first step; a change is measured by that."""
    plain = trial_of(diagnosis(tmp_path, observed=(100.1, 104.0)))
    assert plain is not None
    given: list[float | None] = []

    def held(command: Any, settings: Any, *, start: float | None, **how: Any) -> Trial:
        given.append(start)
        return replace(plain, first=20.0)

    monkeypatch.setattr(finding, "hold", held)
    hold = finding._hold(["train.py"], None, 1)
    for settings in ({}, {"num_workers": 2}):
        hold(settings, tmp_path / "trial", 100.0)
    assert given == [None, 120.0]


@pytest.mark.parametrize(("share", "given"), [(None, 0.95), (0.4, 0.95), (0.96, 0.98), (0.99, 1.0)])
def test_a_change_leaves_some_of_the_card_or_what_the_script_leaves(
    share: float | None, given: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script as it is has no limit: it runs beside others without us too."""
    plain = trial_of(diagnosis(tmp_path, observed=(100.1, 104.0)))
    assert plain is not None
    limits: list[float | None] = []

    def held(command: Any, settings: Any, *, guards: Guards, **how: Any) -> Trial:
        limits.append(guards.vram_fraction)
        return replace(plain, vram_share=share)

    monkeypatch.setattr(finding, "hold", held)
    hold = finding._hold(["train.py"], None, 1)
    for settings in ({}, {"num_workers": 2}):
        hold(settings, tmp_path / "trial", 100.0)
    assert limits == [None, pytest.approx(given)]
