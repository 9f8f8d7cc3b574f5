"""One lease a job: none runs twice, and what is lost goes on."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import LeaseLost
from stoker.jobs.lease import MOST_LOSSES, Heartbeats, Lease
from stoker.jobs.states import HELD, State
from stoker.jobs.store import Store
from stoker.jobs.store.holding import Holding, Number, Progress, Report

from .kit import counting


def lease_of(store: Store, id_: str) -> Lease:
    [held] = [one for one in Holding(store).held() if one.job.id == id_]
    return held.lease


def claim(store: Store, id_: str) -> int:
    attempt = Holding(store).claim(id_, engine="test")
    assert attempt is not None
    return attempt.token


def test_a_job_is_claimed_once(store: Store) -> None:
    """Of many dispatchers that want it at the same moment, one gets it."""
    job = store.create(counting())
    got: list[object] = []

    def want() -> None:
        got.append(Holding(store).claim(job.id, engine="test"))

    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one is not None for one in got].count(True) == 1
    assert len(store.job(job.id).attempts) == 1


def test_who_lost_its_lease_writes_nothing_more(store: Store) -> None:
    """Not a point, not a line, not an end: each is refused, and nothing of it is there."""
    job, holding = store.create(counting()), Holding(store)
    old = claim(store, job.id)
    holding.begin(job.id, old, "old/1")
    assert holding.lose(lease_of(store, job.id), "no heartbeat") is State.QUEUED
    new = claim(store, job.id)
    before = store.last_id()
    points = [Number(name="train/loss", step=1, value=1.0, t=0.0)]
    late = Report(points=points, lines=[(0.0, "late")], log_from=0, log_to=5)
    with pytest.raises(LeaseLost, match="writes nothing more"):
        holding.report(job.id, old, late)
    with pytest.raises(LeaseLost):
        holding.begin(job.id, old, "old/1")
    with pytest.raises(LeaseLost):
        holding.save(job.id, old)
    with pytest.raises(LeaseLost):
        holding.finish(job.id, old, State.DONE)
    with pytest.raises(LeaseLost):
        holding.give_back(job.id, old, "late")
    holding.judge(job.id, old, {"cause": "late", "share": 1.0, "sentence": "late"})
    assert store.last_id() == before
    assert (store.points(job.id).items, store.job(job.id).verdict) == ((), None)
    holding.begin(job.id, new, "new/1")
    holding.finish(job.id, new, State.DONE)
    with pytest.raises(LeaseLost, match="is done"):
        holding.beat(job.id, new)
    assert [one.outcome for one in store.job(job.id).attempts] == [State.LOST, State.DONE]


def test_a_job_that_spoke_meanwhile_is_not_lost(store: Store) -> None:
    """Between the look that found no heartbeat and the decision there may be one."""
    job, holding = store.create(counting()), Holding(store)
    token = claim(store, job.id)
    seen = lease_of(store, job.id)
    holding.beat(job.id, token)
    assert holding.lose(seen, "no heartbeat") is None
    assert store.job(job.id).state is State.STARTING


def test_a_lost_job_keeps_its_place(store: Store) -> None:
    """It goes on before those that came after it."""
    first, second = store.create(counting()), store.create(counting())
    claim(store, first.id)
    Holding(store).lose(lease_of(store, first.id), "its process is gone")
    assert (store.position(first.id), store.position(second.id)) == (1, 2)


def test_a_job_that_is_always_lost_is_left_for_a_person(store: Store) -> None:
    """One that takes its machine down each time does not do so for ever; a step between counts anew."""
    job, holding = store.create(counting()), Holding(store)
    for step in range(5):
        token = claim(store, job.id)
        holding.report(job.id, token, Report(progress=Progress(step=step + 1)))
        assert holding.lose(lease_of(store, job.id), "gone") is State.QUEUED
    for losses in range(2, MOST_LOSSES + 1):
        claim(store, job.id)
        state = holding.lose(lease_of(store, job.id), "gone")
        assert state is (State.LOST if losses == MOST_LOSSES else State.QUEUED)
    found = store.job(job.id)
    assert (found.state, found.error, found.can()["resume"]) == (State.LOST, "gone", True)
    assert store.ask_resume(job.id).state is State.QUEUED


def test_a_job_lost_while_it_was_to_be_cancelled_is_cancelled(store: Store) -> None:
    """It does not start again against its owner's wish."""
    job = store.create(counting())
    claim(store, job.id)
    store.ask_cancel(job.id)
    assert Holding(store).lose(lease_of(store, job.id), "gone") is State.CANCELLED


def test_a_job_given_back_goes_on(store: Store) -> None:
    """A machine that shuts down in order stops its jobs by a signal: that is nobody's wish to cancel."""
    job, holding = store.create(counting()), Holding(store)
    for _ in range(MOST_LOSSES + 2):
        token = claim(store, job.id)
        holding.give_back(job.id, token, "told to stop by a signal")
    assert store.job(job.id).state is State.QUEUED


def test_who_beats_is_never_lost() -> None:
    """By the watcher's own clock: a lease is lost when its count has not changed for as long as it lasts."""
    watch = Heartbeats(lease_s=10)
    lost: dict[str, tuple[int, int]] = {}
    for now in range(30):
        # a beats for ever, b stops after 5, and c is claimed by another at 12.
        leases = [
            Lease(job="a", token=1, beat=now // 8),
            Lease(job="b", token=1, beat=min(now, 5)),
            Lease(job="c", token=1 + (now >= 12), beat=0),
        ]
        for lease in watch.watch(leases, float(now)):
            lost.setdefault(lease.job, (now, lease.token))
    assert lost == {"b": (16, 1), "c": (11, 1)}


def test_a_watcher_that_was_away_blames_nobody() -> None:
    """A store that did not answer for a minute, a dispatcher that was stopped: nobody could be heard then."""
    watch, lease = Heartbeats(lease_s=10), Lease(job="a", token=1, beat=1)
    for now in range(10):
        assert watch.watch([lease], float(now)) == []
    for now in range(70, 81):
        assert watch.watch([lease], float(now)) == []
    assert watch.watch([lease], 81.0) == [lease]


@settings(deadline=None)
@given(gaps=st.lists(st.floats(0, 30), min_size=1, max_size=12))
def test_lost_is_exactly_who_was_silent_for_longer_than_a_lease(gaps: list[float]) -> None:
    """Looked at each second, whatever the pauses between two heartbeats."""
    watch, lease_s = Heartbeats(lease_s=10), 10.0
    beats = [sum(gaps[: number + 1]) for number in range(len(gaps))]
    before, seen = -1, 0
    for now in range(int(beats[-1]) + 2):
        count = sum(beat <= now for beat in beats)
        if count != before:
            before, seen = count, now
        lost = watch.watch([Lease(job="a", token=1, beat=count)], now=float(now))
        assert bool(lost) == (now - seen > lease_s)


def test_states_of_held_jobs_are_those_with_a_lease(store: Store) -> None:
    """Who starts, runs or saves has one; a queued or ended job has none to lose."""
    job, holding = store.create(counting()), Holding(store)
    assert holding.held() == []
    token = claim(store, job.id)
    holding.begin(job.id, token, "h")
    holding.save(job.id, token)
    [held] = holding.held()
    assert held.job.state in HELD
    assert held.attempt.handle == "h"
    holding.finish(job.id, token, State.CANCELLED)
    assert holding.held() == []
