"""The search: by the diagnosis, one change at a time, and only what ran is returned."""

import time
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from stoker.changes import Kind
from stoker.doctor.evidence import Evidence, LoaderFacts
from stoker.doctor.model import Change, Interval, predict
from stoker.doctor.verdict import reach
from stoker.errors import TrialFailed, UsageError
from stoker.tune.checking import TakeProbe
from stoker.tune.finding import score_of
from stoker.tune.ledger import Ledger
from stoker.tune.meaning import Probe
from stoker.tune.search import Candidate, Search
from stoker.tune.stretches import Rates
from stoker.tune.trial import Outcome, Trial
from stoker.tune.tuned import Tried, Tuned
from stoker.tune.tuner import Tuner

ABOUT = {"command": ["train.py"]}
PLAIN = Probe(ids=[[0, 1]], batches=[7], losses=[1.0])
STARVED = Evidence(
    step=0.04,
    shares={"wait": 0.75, "forward": 0.1, "backward": 0.1, "update": 0.05, "copy": 0.0, "other": 0.0},
    steps=100,
    samples=32.0,
    compute=0.01,
    loader=0.04,
    loader_with=(2, 0.02),
    drawn=LoaderFacts(name="DataLoader", workers=1, batch_size=32, prefetch=2, length=100),
    making={"batches": 50, "read": 0.04, "cpu": 0.002},
    host={"usable_cores": 4.0},
    cores=0.2,
)


def search(run: Evidence = STARVED, kinds: tuple[Kind, ...] = ("same", "redraw")) -> Search:
    return Search(verdict=reach(run), run=run, kinds=frozenset(kinds))


def tuned(
    rate_of: Callable[[Mapping[str, Any]], float | Outcome],
    folder: Path,
    *,
    wanted: Search | None = None,
    probe: TakeProbe = lambda settings, seed, dropout: PLAIN,
    seconds: float = 60.0,
    ceiling: float | None = None,
    held: list[Mapping[str, Any]] | None = None,
    told: tuple[str, ...] = (),
    scored: Callable[[Tried], None] = lambda tried: None,
    disturbed: Container[int] = (),
    host: str | None = None,
) -> Tuned:
    """A search over a machine that is only a function of the settings: a rate, or how a trial ends.

    In the `disturbed` trials, counted from 0, others use it too. `host` is what the machine is called.
    """
    about = Ledger.resume if folder.exists() else Ledger.begin
    number = count()
    jitter = iter([1.0, 1.004, 0.997, 1.002, 0.999, 1.003] * 50)

    def hold(settings: Mapping[str, Any], path: Path, left: float) -> Trial:
        path.mkdir(parents=True)
        if held is not None:
            held.append(settings)
        answer = rate_of(settings)
        rates = None
        if isinstance(answer, float):
            others = next(number) in disturbed
            rate = answer * next(jitter)
            rates = Rates(each=(rate,), unit="sample", stretch_steps=50, disturbed=others)
        return Trial(
            settings=settings,
            outcome="measured" if isinstance(answer, float) else answer,
            reason="" if rates else "as built",
            rates=rates,
            first=1.0,
            seconds=5.0,
            vram=None,
            told=told,
            record=None,
            host=host,
        )

    with about(folder, ABOUT) as ledger:
        return Tuner(
            search=wanted or search(),
            ledger=ledger,
            hold=hold,
            probe=probe,
            deadline=time.monotonic() + seconds,
            ceiling=ceiling,
            tell=lambda text: None,
            scored=scored,
        ).find()


def by_workers(settings: Mapping[str, Any], *, most: int = 6) -> float:
    return 800.0 * float(min(settings.get("num_workers", 1), most))


def test_workers_are_raised_while_that_is_faster(tmp_path: Path) -> None:
    """Up to where the machine is at its limit, and no further."""
    found = tuned(by_workers, tmp_path / "it")
    assert found.settings == {"num_workers": 6}
    assert found.best == pytest.approx(4800, rel=0.01)
    assert found.ratio is not None
    assert found.ratio.low > 1.02


def test_a_machine_that_others_have_left_is_no_gain(tmp_path: Path) -> None:
    """From the third run on all is 8% faster, and two runs before it agreed: no change is kept for that."""
    held: list[Mapping[str, Any]] = []
    found = tuned(lambda _: 800.0 if len(held) <= 2 else 864.0, tmp_path / "it", held=held)
    assert found.settings == {}
    assert found.tried
    assert {} in held[3:]


@pytest.mark.parametrize("hit", [0, 1, 2, 4])
def test_a_run_that_others_held_up_decides_nothing(tmp_path: Path, hit: int) -> None:
    """It is run again, and does not count; whichever it was, the same is found."""
    held: list[Mapping[str, Any]] = []

    def rate_of(settings: Mapping[str, Any]) -> float:
        return by_workers(settings) * (0.25 if len(held) == hit + 1 else 1.0)

    found = tuned(rate_of, tmp_path / "it", held=held, disturbed={hit})
    assert found.settings == {"num_workers": 6}
    assert found.baseline == pytest.approx(800, rel=0.01)
    assert found.best == pytest.approx(4800, rel=0.01)


def test_a_script_with_a_server_beside_it_is_searched_as_any(tmp_path: Path) -> None:
    """Where something runs beside every trial, no trial is told from the others by that."""
    plain = tuned(by_workers, tmp_path / "plain")
    found = tuned(by_workers, tmp_path / "it", disturbed=range(1000))
    assert (found.settings, found.runs) == (plain.settings, plain.runs)


def test_the_largest_is_not_taken_for_the_fastest(tmp_path: Path) -> None:
    """Past a cliff more workers are slower: what ran fastest is kept."""
    found = tuned(lambda s: by_workers(s) if s.get("num_workers", 1) <= 3 else 400.0, tmp_path / "it")
    assert found.settings == {"num_workers": 3}


def test_a_number_that_was_predicted_far_too_high_is_brought_down(tmp_path: Path) -> None:
    """Step by step, as long as fewer are faster."""
    rates = {1: 800.0, 2: 2400.0, 3: 2200.0, 4: 2000.0}
    found = tuned(lambda s: rates.get(s.get("num_workers", 1), 1500.0), tmp_path / "it")
    climbed = [one.candidate.value for one in found.tried if one.candidate.change == "num_workers"]
    assert climbed == [4, 6, 3, 2]
    assert found.settings == {"num_workers": 2}


def test_what_cannot_run_is_a_result(tmp_path: Path) -> None:
    """Where 4 workers are killed, fewer are tried; nothing that did not run is returned."""
    found = tuned(lambda s: by_workers(s) if s.get("num_workers", 1) < 4 else "stopped", tmp_path / "it")
    assert found.settings == {"num_workers": 3}
    assert [one.outcome for one in found.tried if one.candidate.name == "num_workers = 4"] == ["guarded"]


def test_where_nothing_runs_faster_nothing_is_kept(tmp_path: Path) -> None:
    """And that is said."""
    found = tuned(lambda s: 800.0, tmp_path / "it")
    assert (found.settings, found.ratio, found.best) == ({}, None, found.baseline)
    assert {one.outcome for one in found.tried} <= {"not faster", "open"}


def test_a_script_that_cannot_be_measured_is_said(tmp_path: Path) -> None:
    """As it is, it crashes."""
    with pytest.raises(TrialFailed, match="the script could not be measured as it is"):
        tuned(lambda s: "crashed", tmp_path / "it")


def test_a_faster_change_that_means_something_else_is_refused(tmp_path: Path) -> None:
    """Other samples, however fast."""
    other = Probe(ids=[[1, 0]], batches=[8], losses=[2.0])
    found = tuned(
        by_workers, tmp_path / "it", probe=lambda settings, seed, dropout: other if settings else PLAIN
    )
    assert found.settings == {}
    assert {one.outcome for one in found.tried if one.candidate.change == "num_workers"} == {"refused"}


def test_under_strict_a_redraw_is_refused(tmp_path: Path) -> None:
    """And kept without it."""
    redrawn = Probe(ids=[[0, 1]], batches=[9], losses=[1.1])

    def probe(settings: Mapping[str, Any], seed: int, dropout: bool) -> Probe:
        return redrawn if settings else PLAIN

    strict = tuned(by_workers, tmp_path / "strict", wanted=search(kinds=("same",)), probe=probe)
    assert strict.settings == {}
    assert tuned(by_workers, tmp_path / "plain", probe=probe).settings == {"num_workers": 6}


def test_a_search_that_was_killed_goes_on(tmp_path: Path) -> None:
    """What was measured is not measured again; a trial that was cut off is."""
    first: list[Mapping[str, Any]] = []
    whole = tuned(by_workers, tmp_path / "whole", held=first)

    class Killed(BaseException):
        pass

    def until_killed(settings: Mapping[str, Any]) -> float:
        if len(before) > 4:
            raise Killed
        return by_workers(settings)

    before: list[Mapping[str, Any]] = []
    with pytest.raises(Killed):
        tuned(until_killed, tmp_path / "it", held=before)
    after: list[Mapping[str, Any]] = []
    assert tuned(by_workers, tmp_path / "it", held=after).settings == whole.settings
    assert [*before[:-1], *after] == first


def test_another_command_does_not_go_on_with_a_search(tmp_path: Path) -> None:
    """Nor does a folder that is none."""
    Ledger.begin(tmp_path / "it", {"command": ["other.py"]})
    with pytest.raises(UsageError, match=r"a search of other\.py, not of train\.py"):
        Ledger.resume(tmp_path / "it", ABOUT)
    with pytest.raises(UsageError, match="is no search"):
        Ledger.resume(tmp_path, ABOUT)


@pytest.mark.parametrize("text", ["", "[]", "3", '{"command": null}', "noise"])
def test_a_search_that_was_harmed_is_none(tmp_path: Path, text: str) -> None:
    """Or one of nothing: told as such, with what to name instead."""
    Ledger.begin(tmp_path / "it", ABOUT)
    (tmp_path / "it" / "search.json").write_text(text)
    with pytest.raises(UsageError, match=r"is no search: name a folder|a search of nothing, not of"):
        Ledger.resume(tmp_path / "it", ABOUT)


def test_a_trial_that_was_harmed_is_tried_again(tmp_path: Path) -> None:
    """Those before it are found again, those after it are not."""
    first: list[Mapping[str, Any]] = []
    tuned(by_workers, tmp_path / "it", held=first)
    (tmp_path / "it" / "trials" / "002" / "trial.json").write_text('{"rates": [1, ')
    again: list[Mapping[str, Any]] = []
    tuned(by_workers, tmp_path / "it", held=again)
    assert again == first[2:]


def test_the_search_ends_with_its_budget(tmp_path: Path) -> None:
    """With what was measured by then; where that is nothing but the script as it is, what to do is said."""
    stopped = tuned(by_workers, tmp_path / "it", seconds=0.0).stopped
    assert stopped == "the budget is used up before a change was tried: give more with --budget SECONDS"


def test_the_search_ends_where_little_is_left_to_gain(tmp_path: Path) -> None:
    """Computing alone would hardly be faster."""
    found = tuned(by_workers, tmp_path / "it", ceiling=4.1)
    assert found.settings == {"num_workers": 4}
    assert found.stopped.startswith("computing alone would be")


def test_what_cannot_help_is_not_tried() -> None:
    """Where twice the workers give no more, the store is at its limit; and precision waits for data."""
    run = replace(STARVED, loader_with=(2, 0.0399))
    wanted = search(run, kinds=("same", "redraw", "numerics"))
    assert {one.change for one in wanted.candidates()} == {"feed", "prefetch_factor"}
    assert any("more won't help" in line and "take 39.9 ms" in line for line in wanted.not_tried)
    assert any(line.startswith("precision, layout, compile:") for line in wanted.not_tried)


def test_a_run_that_computes_is_offered_what_is_allowed() -> None:
    """Nothing unasked; other rounding where it is allowed."""
    run = replace(
        STARVED, shares={**STARVED.shares, "wait": 0.01, "forward": 0.84}, loader=0.005, step=0.0101
    )
    plain, wide = search(run), search(run, kinds=("same", "redraw", "numerics"))
    assert list(plain.candidates()) == []
    assert any("--allow numerics" in line for line in plain.not_tried)
    assert "autocast" in {one.change for one in wide.candidates()}


def test_held_samples_are_tried_where_a_cause_names_them(tmp_path: Path) -> None:
    """Before workers where they are predicted better; and then workers have nothing to read."""
    host = {**STARVED.host, "memory_free_bytes": 10**10}
    wanted = search(replace(STARVED, loader_with=(2, 0.0399), batch_bytes=10**6, host=host))
    assert any(cure.change == "feed" for one in wanted.verdict.named for cure in one.cures)
    found = tuned(lambda s: 3000.0 if "feed" in s else by_workers(s), tmp_path / "it", wanted=wanted)
    assert found.settings == {"feed": "ram"}
    assert found.tried[0].candidate.change == "feed"
    assert any("nothing to read" in line for line in found.not_tried)


def test_an_epoch_too_long_for_a_trial_is_said() -> None:
    """What is held is read in the first epoch."""
    assert STARVED.drawn is not None
    wanted = search(replace(STARVED, drawn=replace(STARVED.drawn, length=100_000)))
    assert "feed" not in {one.change for one in wanted.candidates()}
    assert any(line.startswith("feed: ") and "one takes 4000 s" in line for line in wanted.not_tried)


def test_a_change_that_was_left_alone_is_said(tmp_path: Path) -> None:
    """One run is enough, whatever its rate was."""
    wanted = search(replace(STARVED, loader_with=(2, 0.0399)))
    told = ("changed: DataLoader(Slow): as it was; left alone: feed: a sample is random",)
    found = tuned(lambda s: 900.0 if s else 800.0, tmp_path / "it", wanted=wanted, told=told)
    (one,) = [one for one in found.tried if one.candidate.change == "feed"]
    assert (one.outcome, one.reason, one.runs) == ("not faster", "left alone: feed: a sample is random", 1)
    assert score_of(one.candidate.modelled, one, 25.0) is None


def test_each_trial_scores_the_model_once(tmp_path: Path) -> None:
    """By the ratios predicted and measured, in steps a second; not again when it is resumed."""
    scores = []

    def scored(one: Tried) -> None:
        scores.append(score_of(one.candidate.modelled, one, 25.0))

    tuned(by_workers, tmp_path / "it", scored=scored)
    first = [one for one in scores if one is not None]
    assert first
    assert first[0].change == "num_workers"
    by_six = [one for one in first if one.measured == pytest.approx(6 * 25.0, rel=0.02)]
    assert by_six
    assert all(one.low < one.mid < one.high for one in first)
    number = len(scores)
    tuned(by_workers, tmp_path / "it", scored=scored)
    assert len(scores) == number


def test_what_earlier_scores_were_off_by_widens_what_is_predicted() -> None:
    """The interval is the calibrated one."""
    plain = next(search().candidates()).predicted
    off = Search(verdict=reach(STARVED), run=STARVED, kinds=frozenset({"same"}), errors={"num_workers": 1.5})
    wide = next(off.candidates()).predicted
    assert plain is not None
    assert wide is not None
    assert wide.mid == plain.mid
    assert wide.high > 2 * plain.high


def test_workers_and_prefetch_can_be_searched_alone() -> None:
    """Nothing else is tried, and nothing said of it; what cannot help is said."""
    only = Search(verdict=reach(STARVED), run=STARVED, kinds=frozenset({"same"}), finds="workers")
    assert {one.change for one in only.candidates()} == {"num_workers", "prefetch_factor"}
    assert only.not_tried == []
    idle = replace(STARVED, shares={**STARVED.shares, "wait": 0.01, "forward": 0.84})
    none = Search(verdict=reach(idle), run=idle, kinds=frozenset({"same"}), finds="workers")
    assert list(none.candidates()) == []
    assert none.not_tried == ["num_workers: 1% of the step is lost to waiting for batches"]


def test_a_candidate_is_named_as_the_settings_write_it() -> None:
    """Words in double quotes, switches in small letters."""
    named = [Candidate(change="it", value=value, why="").name for value in ("ram", True, 4)]
    assert named == ['it = "ram"', "it = true", "it = 4"]


def test_more_workers_that_take_long_to_start_are_to_stay(tmp_path: Path) -> None:
    """1% of the time for one worker is more for four of them, each four times as fast."""
    run = replace(STARVED, startup=0.01, making={"batches": 50, "read": 0.004, "cpu": 0.002})
    found = tuned(by_workers, tmp_path / "it", wanted=search(run))
    assert "persistent_workers" in [one.candidate.change for one in found.tried]
    alone = tuned(lambda s: 800.0, tmp_path / "alone", wanted=search(run))
    assert "persistent_workers" not in [one.candidate.change for one in alone.tried]


def test_what_cannot_end_in_time_is_not_begun(tmp_path: Path) -> None:
    """A trial takes up to 5 s, two probes 3: with 4.5 s left nothing is tried, with 12 a change is."""
    few = tuned(by_workers, tmp_path / "few", seconds=4.5)
    assert (few.tried, few.settings) == ((), {})
    assert few.stopped == "the budget is used up before a change was tried: give more with --budget SECONDS"
    assert tuned(by_workers, tmp_path / "some", seconds=12.0).settings


def test_bit_identical_losses_need_no_second_probe_without_the_change(tmp_path: Path) -> None:
    """What the script does by itself decides nothing then; where they differ, it does."""
    seeds: list[tuple[bool, int]] = []

    def probe(settings: Mapping[str, Any], seed: int, dropout: bool) -> Probe:
        seeds.append((bool(settings), seed))
        return PLAIN

    tuned(by_workers, tmp_path / "same", probe=probe)
    assert seeds[:2] == [(False, 0), (True, 0)]
    assert [one for one in seeds if not one[0]] == [(False, 0)]


def test_what_was_measured_corrects_what_is_predicted_next(tmp_path: Path) -> None:
    """Workers that bring half of what the model says: the next number is predicted lower by as much."""
    found = tuned(lambda s: 400.0 + by_workers(s) / 2, tmp_path / "it", wanted=search())
    first, second = found.tried[:2]
    assert first.total is not None
    assert first.candidate.predicted is not None
    off = first.total.mid / first.candidate.predicted.mid
    assert off < 0.8
    again = predict(STARVED, [Change(change="num_workers", value=second.candidate.value)])
    assert again is not None
    assert second.candidate.predicted is not None
    assert second.candidate.predicted.mid == pytest.approx(off * again.rate.mid * STARVED.step)
    # What is scored is the model's own word, or its errors would be those of a search that had mended them.
    assert second.candidate.modelled is not None
    assert second.candidate.modelled.mid == pytest.approx(again.rate.mid * STARVED.step)


def test_the_share_of_starting_workers_is_the_models_alone() -> None:
    """What each change that was kept was off by makes no share of its own."""
    run = replace(STARVED, startup=0.01, making={"batches": 50, "read": 0.004, "cpu": 0.002})
    told = Interval(low=1.0, mid=1.0, high=1.0)

    def share(*measured: float) -> str:
        wanted = search(run)
        for (change, value), rate in zip(
            {"num_workers": 4, "prefetch_factor": 4}.items(), measured, strict=True
        ):
            one = Candidate(change=change, value=value, why="", modelled=told)
            wanted.tell(one, faster=True, measured=rate)
        return next(one.why for one in wanted.candidates() if one.change == "persistent_workers")

    assert share(1.0, 1.0) == share(1.0, 2.0)


def test_the_probes_that_a_kind_needs_are_counted(tmp_path: Path) -> None:
    """Its trials take up to 10 s, a probe 1.6: other rounding needs five of them, too many for 14 s."""
    run = replace(
        STARVED, shares={**STARVED.shares, "wait": 0.01, "forward": 0.84}, loader=0.005, step=0.0101
    )
    kinds: tuple[Kind, ...] = ("same", "redraw", "numerics")
    for seconds, is_tried in ((14.0, False), (19.0, True)):
        found = tuned(by_workers, tmp_path / f"{seconds}", wanted=search(run, kinds), seconds=seconds)
        assert bool(found.tried) == is_tried, found
    assert tuned(by_workers, tmp_path / "same", seconds=14.0).tried


def test_one_change_that_takes_too_long_leaves_time_for_others(tmp_path: Path) -> None:
    """Samples are held after an epoch of 40 s; with 20 s left workers are tried, and that is said."""
    epoch = replace(STARVED.drawn, length=1000) if STARVED.drawn is not None else None
    wanted = search(replace(STARVED, drawn=epoch, making={**STARVED.making, "calls": {"recv": 32.0}}))
    found = tuned(by_workers, tmp_path / "it", wanted=wanted, seconds=20.0)
    assert "num_workers" in found.settings
    told = [line for line in found.not_tried if line.startswith('feed = "ram": its trials would take')]
    assert len(told) == 1


class CutOff(Exception):
    """The machine that a search was on is gone."""


@pytest.mark.parametrize("after", [1, 2, 3, 5, 8])
def test_a_search_that_goes_on_elsewhere_compares_within_a_machine(tmp_path: Path, after: int) -> None:
    """The other is three times as fast: what was decided stands, and no rate of the one is the other's."""
    held: list[Mapping[str, Any]] = []

    def dying(settings: Mapping[str, Any]) -> float:
        if len(held) > after:
            raise CutOff
        return by_workers(settings)

    with pytest.raises(CutOff):
        tuned(dying, tmp_path / "it", held=held, host="one")
    before = len(held) - 1
    held.clear()
    found = tuned(lambda s: 3 * by_workers(s), tmp_path / "it", held=held, host="other")
    assert found.settings == {"num_workers": 6}
    assert found.baseline == pytest.approx(2400, rel=0.01)
    assert found.best == pytest.approx(14400, rel=0.01)
    assert found.ratio is not None
    assert found.ratio.mid == pytest.approx(6, rel=0.02)
    # What was tried on the first machine is not tried again on the other, but for what is compared with.
    plain = tuned(by_workers, tmp_path / "plain")
    assert [one.candidate.name for one in found.tried] == [one.candidate.name for one in plain.tried]
    assert [one.outcome for one in found.tried] == [one.outcome for one in plain.tried]
    assert held.count({}) >= 2
    assert found.runs <= plain.runs + before + 4


def test_what_cannot_be_measured_where_a_search_moved_to_is_told(tmp_path: Path) -> None:
    """It ends with the reason: there is nothing to compare with."""
    held: list[Mapping[str, Any]] = []

    def dying(settings: Mapping[str, Any]) -> float:
        if len(held) > 2:
            raise CutOff
        return by_workers(settings)

    with pytest.raises(CutOff):
        tuned(dying, tmp_path / "it", held=held, host="one")
    with pytest.raises(TrialFailed, match=r"could not be measured as it is \(crashed: as built\)"):
        tuned(lambda s: "crashed", tmp_path / "it", host="other")
