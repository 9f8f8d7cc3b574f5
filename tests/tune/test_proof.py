"""What is kept is proved: by runs that count, alternated with runs of what was kept before it."""

import time
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_search import STARVED, by_workers, search, tuned

from stoker.doctor.verdict import reach
from stoker.tune import tuner
from stoker.tune.search import Search
from stoker.tune.settings_file import as_json
from stoker.tune.trial import Outcome
from stoker.tune.tuned import LastPair


def workers_alone() -> Search:
    """Nothing but workers and prefetch is tried."""
    return Search(verdict=reach(STARVED), run=STARVED, kinds=frozenset({"same"}), finds="workers")


def by_the_clock(monkeypatch: pytest.MonkeyPatch, times: float) -> Callable[[Mapping[str, Any]], float]:
    """With any change so many times as fast; a trial takes 5 s of the search's clock."""
    spent = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + spent[0])
    monkeypatch.setattr(tuner, "time", clock)

    def rate_of(settings: Mapping[str, Any]) -> float:
        spent[0] += 5.0
        return 800.0 * (times if settings else 1.0)

    return rate_of


class Later:
    """Runs that others use the machine in: of the script as it is, from the third run on."""

    def __init__(self, held: list[Mapping[str, Any]]) -> None:
        self._held = held

    def __contains__(self, number: object) -> bool:
        return len(self._held) > 2 and not self._held[-1]


@pytest.mark.parametrize("ends", ["crashed", "short"])
def test_a_later_run_without_a_rate_proves_nothing(tmp_path: Path, ends: Outcome) -> None:
    """The script as it is does not run a third time: nothing shows that it is not the machine."""
    held: list[Mapping[str, Any]] = []
    found = tuned(
        lambda s: ends if not s and len(held) > 2 else 800.0 if len(held) <= 2 else 900.0,
        tmp_path / "it",
        held=held,
    )
    assert found.settings == {}
    assert {} in held[3:]
    (one,) = [one for one in found.tried if one.candidate.name == "num_workers = 4"]
    assert one.outcome == "open"
    assert one.reason.startswith("what is kept was not measured once more beside it")


def test_a_later_run_that_others_held_up_proves_nothing(tmp_path: Path) -> None:
    """It does not count while quiet ones before it do: a machine that is faster since then is no gain."""
    held: list[Mapping[str, Any]] = []
    found = tuned(
        lambda _: 800.0 if len(held) <= 2 else 900.0, tmp_path / "it", held=held, disturbed=Later(held)
    )
    assert found.settings == {}
    assert found.tried[0].outcome == "open"


def test_a_busy_machine_is_not_compared_with_a_quiet_one(tmp_path: Path) -> None:
    """Others use it in every run of the script as it is, and in none with a change: that is left open."""
    held: list[Mapping[str, Any]] = []

    class Plain:
        def __contains__(self, number: object) -> bool:
            return not held[-1]

    found = tuned(lambda s: 900.0 if s else 450.0, tmp_path / "it", held=held, disturbed=Plain())
    assert found.settings == {}
    assert {one.outcome for one in found.tried} == {"open"}
    assert "others used the machine" in found.tried[0].reason
    assert not any(one.counts for one in found.tried)  # nor does it say that a prediction was wrong


def test_what_serves_a_faster_run_works_more_and_is_no_stranger(tmp_path: Path) -> None:
    """A store on this machine: it is noticed in every run with a change, and in none as it is."""
    held: list[Mapping[str, Any]] = []

    class Served:
        def __contains__(self, number: object) -> bool:
            return bool(held[-1])

    found = tuned(by_workers, tmp_path / "it", held=held, disturbed=Served(), wanted=workers_alone())
    assert found.settings == {"num_workers": 6}
    assert found.ratio is not None
    assert found.ratio.low > 1.02 and found.ratio.high == inf
    assert found.ratio.within.endswith(" or more")
    first = found.tried[0].to_json()
    assert first["ratio"]["low"] > 1.02 and first["ratio"]["high"] is None
    assert first["low"] < first["rate"] and first["high"] is None
    assert not any(one.counts for one in found.tried[:1])
    worse = tmp_path / "slower"
    slower = tuned(
        lambda s: 700.0 if s else 800.0, worse, held=held, disturbed=Served(), wanted=workers_alone()
    )
    assert slower.settings == {}
    assert slower.tried[0].outcome == "open" and "others used the machine" in slower.tried[0].reason


def test_busy_runs_are_compared_with_busy_runs(tmp_path: Path) -> None:
    """Others take half of the machine, from the second run on: of two runs as it is one was quiet."""
    held: list[Mapping[str, Any]] = []

    def rate_of(settings: Mapping[str, Any]) -> float:
        return (1200.0 if settings else 800.0) * (1.0 if len(held) == 1 else 0.5)

    found = tuned(rate_of, tmp_path / "it", held=held, disturbed=range(1, 99), wanted=workers_alone())
    assert found.settings
    assert found.ratio is not None
    assert found.ratio.mid == pytest.approx(1.5, rel=0.02)
    assert found.baseline == pytest.approx(400, rel=0.01)
    assert found.best == pytest.approx(600, rel=0.01)
    assert not any(one.counts for one in found.tried)  # a prediction is of a machine that is left to a script


def test_one_lucky_run_is_not_kept(tmp_path: Path) -> None:
    """10% faster once, and never again."""
    held: list[Mapping[str, Any]] = []

    def rate_of(settings: Mapping[str, Any]) -> float:
        return 880.0 if settings and held.count(settings) == 1 else 800.0

    found = tuned(rate_of, tmp_path / "it", held=held, wanted=workers_alone())
    assert found.settings == {}
    assert all(one.runs > 1 for one in found.tried)


def test_what_is_kept_was_run_twice_with_a_run_without_it_between(tmp_path: Path) -> None:
    """One with, one without, and with it again."""
    held: list[Mapping[str, Any]] = []
    found = tuned(by_workers, tmp_path / "it", held=held, wanted=workers_alone())
    assert found.settings == {"num_workers": 6}
    first = {"num_workers": 4}
    assert held[:5] == [{}, {}, first, {}, first]


def test_runs_alternate_until_they_tell(tmp_path: Path) -> None:
    """A change of which runs differ much: with it, without it, and so on, up to four of each."""
    held: list[Mapping[str, Any]] = []

    def rate_of(settings: Mapping[str, Any]) -> float:
        return 800.0 * (1.0 if not settings else 1.3 if held.count(settings) % 2 else 0.9)

    tuned(rate_of, tmp_path / "it", held=held, wanted=workers_alone())
    first = {"num_workers": 4}
    assert held[2:10] == [first, {}] * 4


@pytest.mark.parametrize(("times", "is_kept"), [(3.0, True), (1.15, False)])
def test_where_there_is_time_for_one_run_it_has_to_tell_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: float, is_kept: bool
) -> None:
    """A trial takes 5 s, and there are 22 s: three times as fast is kept by one run, 15% are not."""
    rate_of = by_the_clock(monkeypatch, times)
    found = tuned(rate_of, tmp_path / "it", seconds=22.0, wanted=search(kinds=("same",)))
    assert (bool(found.settings), found.runs) == (is_kept, 4), found
    assert found.tried[0].runs == 1
    if not is_kept:
        assert found.tried[0].outcome == "open"
        assert found.tried[0].reason.startswith("one run of it counts")


def test_the_whole_gain_is_measured_once_more_at_the_end(tmp_path: Path) -> None:
    """As it is, then with all that is kept: the runs that changes were held beside had some of it already."""
    held: list[Mapping[str, Any]] = []
    found = tuned(by_workers, tmp_path / "it", held=held)
    assert held[-2:] == [{}, found.settings]
    assert found.last_pair == LastPair(held=True)


def test_a_last_pair_that_there_is_no_time_for_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what would take how long."""
    found = tuned(by_the_clock(monkeypatch, 3.0), tmp_path / "it", seconds=22.0)
    assert found.settings
    assert found.last_pair is not None
    assert (found.last_pair.held, "it would take 10 s, with 2 s left" in found.last_pair.reason) == (
        False,
        True,
    )
    assert as_json(found)["last_pair"]["held"] is False


def test_a_last_pair_that_proves_nothing_is_told(tmp_path: Path) -> None:
    """What is kept crashes in it, or others use the machine."""
    plain = tuned(by_workers, tmp_path / "plain", wanted=workers_alone())
    held: list[Mapping[str, Any]] = []

    def crashing(settings: Mapping[str, Any]) -> float | Outcome:
        return "crashed" if len(held) == plain.runs else by_workers(settings)

    found = tuned(crashing, tmp_path / "it", held=held, wanted=workers_alone())
    assert found.last_pair == LastPair(
        held=False, reason="with what is kept it had no rate (crashed: as built)"
    )
    busy = tuned(by_workers, tmp_path / "busy", wanted=workers_alone(), disturbed={plain.runs - 2})
    assert busy.last_pair == LastPair(held=False, reason="others used the machine in its run as it is")


def test_nothing_kept_has_no_last_pair(tmp_path: Path) -> None:
    """There is nothing to compare."""
    assert tuned(lambda s: 800.0, tmp_path / "it").last_pair is None
