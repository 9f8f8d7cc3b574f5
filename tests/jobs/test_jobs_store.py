"""What the service remembers, in SQLite and in a real PostgreSQL alike."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.errors import DatabaseUnreachable, KeyTaken, MoveRefused, NoSuchJob, UsageError
from stoker.jobs.job import Request
from stoker.jobs.states import ENDED, MOVES, State, may_move
from stoker.jobs.store import Store, database
from stoker.jobs.store.holding import Holding, Number, Progress, Report
from stoker.ward.postgres import PostgresServer

from .kit import counting


def start(store: Store, id_: str) -> int:
    """Claim a job and let it run; its token."""
    holding = Holding(store)
    attempt = holding.claim(id_, engine="test")
    assert attempt is not None
    holding.begin(id_, attempt.token, "test/1")
    return attempt.token


def curve(*steps: int, value: float = 1.0, t: float = 1.0) -> list[Number]:
    return [Number(name="train/loss", step=step, value=value / step, t=t) for step in steps]


# --- asking -----------------------------------------------------------------------------------------------


def test_a_job_is_as_it_was_asked_for(store: Store) -> None:
    """All of the request comes back, also after the store was closed and opened again."""
    asked = Request(
        name="größer", workload="sar", config={"train": {"epochs": 3}}, gpus=1, vram_bytes=1 << 40
    )
    made = store.create(asked)
    store.close()
    assert store.job(made.id).request == asked
    assert (made.state, made.position, made.attempts) == (State.QUEUED, 1, ())


def test_the_same_key_is_the_same_job(store: Store) -> None:
    """A client that did not hear the answer may ask again; another request under the key is refused."""
    first = store.create(counting(), key="monday")
    assert store.create(counting(), key="monday").id == first.id
    with pytest.raises(KeyTaken, match=first.id):
        store.create(counting(steps=6), key="monday")
    assert store.create(counting()).id != first.id


def test_a_key_given_by_many_at_once_makes_one_job(store: Store) -> None:
    """However requests cross."""
    made: list[str] = []

    def create() -> None:
        made.append(store.create(counting(), key="once").id)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert len(set(made)) == 1


def test_the_queue_is_told_by_position(store: Store) -> None:
    """First come, first served; who was resumed goes to the end."""
    first, second, third = (store.create(counting(name=name)) for name in "abc")
    assert [store.position(job.id) for job in (first, second, third)] == [1, 2, 3]
    store.ask_cancel(first.id)
    assert [store.position(job.id) for job in (first, second, third)] == [None, 1, 2]
    store.ask_resume(first.id)
    assert [store.position(job.id) for job in (first, second, third)] == [3, 1, 2]


def test_a_list_is_filtered_and_paged(store: Store) -> None:
    """By state, workload and part of the name, whose % and _ are only letters; pages leave nothing out."""
    names = ["a", "ab", "50%", "x_y", "abc"]
    made = [
        store.create(Request(name=name, workload="sar" if name == "ab" else "heimdall")) for name in names
    ]
    store.ask_cancel(made[0].id)
    assert [job.name for job in store.jobs(name="b").items] == ["abc", "ab"]
    assert [job.name for job in store.jobs(name="%").items] == ["50%"]
    assert [job.name for job in store.jobs(name="_").items] == ["x_y"]
    assert [job.name for job in store.jobs(workload="sar").items] == ["ab"]
    assert [job.name for job in store.jobs(state=State.CANCELLED).items] == ["a"]
    seen, before = [], None
    while True:
        page = store.jobs(before=before, limit=2)
        seen += [job.name for job in page.items]
        before = page.next
        if before is None:
            break
    assert seen == names[::-1]
    assert store.counts()[State.QUEUED] == 4


def test_a_job_that_is_not_first_waits_for_those_before_it(store: Store) -> None:
    """That is told by its place alone: nobody writes it, and it is no news."""
    first, second = store.create(counting()), store.create(counting())
    before = store.last_id()
    assert (first.waits_for, second.waits_for) == (None, "waits for those before it in the queue")
    assert [job.waits_for for job in store.jobs().items] == [second.waits_for, None]
    store.ask_cancel(first.id)
    assert store.job(second.id).waits_for is None
    assert [event.job for event in store.events(after=before).items] == [first.id, first.id]


def test_some_jobs_are_read_at_once(store: Store) -> None:
    """Those that are there, each with its own attempts and its place."""
    jobs = [store.create(counting(name=name)) for name in "abc"]
    start(store, jobs[0].id)
    found = store.some([jobs[2].id, jobs[0].id, "0123456789ab"])
    assert {id_: (job.name, len(job.attempts), job.position) for id_, job in found.items()} == {
        jobs[0].id: ("a", 1, None), jobs[2].id: ("c", 0, 2),
    }  # fmt: skip
    assert store.some([]) == {}
    store.check(jobs[0].id)
    with pytest.raises(NoSuchJob):
        store.check("0123456789ab")


def test_what_a_state_does_not_allow_is_refused(store: Store) -> None:
    """With the state, and what may be done instead."""
    job = store.create(counting())
    with pytest.raises(MoveRefused, match="cancelled, failed, lost can be resumed"):
        store.ask_resume(job.id)
    with pytest.raises(MoveRefused, match="cancel it before"):
        store.delete(job.id)
    with pytest.raises(MoveRefused, match="is queued"):
        store.retry(job.id)
    store.ask_cancel(job.id)
    with pytest.raises(MoveRefused, match="nothing to cancel"):
        store.ask_cancel(job.id)
    assert store.retry(job.id).request == job.request
    store.delete(job.id)
    with pytest.raises(NoSuchJob, match=job.id):
        store.job(job.id)


def test_a_running_job_is_asked_to_stop(store: Store) -> None:
    """Its process hears it with its next report; until then it runs, and a second wish changes nothing."""
    job = store.create(counting())
    token = start(store, job.id)
    assert store.ask_cancel(job.id).state is State.RUNNING
    before = store.last_id()
    assert store.ask_cancel(job.id).cancel_asked
    assert store.last_id() == before
    assert Holding(store).beat(job.id, token).stop
    Holding(store).save(job.id, token)
    Holding(store).finish(job.id, token, State.CANCELLED)
    found = store.ask_resume(job.id)
    assert (found.state, found.cancel_asked) == (State.QUEUED, False)


@settings(deadline=None)
@given(path=st.lists(st.sampled_from(State), max_size=12))
def test_states_follow_one_another_as_drawn(path: list[State]) -> None:
    """From wherever a job is, only done has no way on, and nothing leads back from it."""
    state = State.QUEUED
    for wanted in path:
        if may_move(state, wanted):
            state = wanted
    assert MOVES[state] or state is State.DONE
    assert state not in MOVES[state]
    if state in ENDED:
        assert MOVES[state] <= {State.QUEUED, State.CANCELLED}


# --- curves, lines, events --------------------------------------------------------------------------------


def test_a_resumed_curve_has_each_step_once(store: Store) -> None:
    """Points made again replace those of the same step; told again as they were, they are no news."""
    job = store.create(counting())
    token = start(store, job.id)
    holding = Holding(store)
    holding.report(job.id, token, Report(points=curve(1, 2, 3, 4)))
    last = store.points(job.id).items[-1].id
    holding.report(job.id, token, Report(points=curve(1, 2)))
    assert store.points(job.id, after=last).items == ()
    holding.report(job.id, token, Report(points=curve(3, 4, 5, value=2.0, t=2.0)))
    points = store.points(job.id).items
    assert sorted((point.step, point.value) for point in points) == [
        (1, 1.0), (2, 0.5), (3, 2 / 3), (4, 0.5), (5, 0.4),
    ]  # fmt: skip
    assert [point.step for point in store.points(job.id, after=last).items] == [3, 4, 5]


def test_a_line_is_told_once(store: Store) -> None:
    """A report that is sent again, its answer lost, adds nothing; the answer says how far the log is told."""
    job = store.create(counting())
    token = start(store, job.id)
    report = Report(lines=[(1.0, "one"), (1.0, "two")], log_from=0, log_to=8)
    holding = Holding(store)
    assert holding.report(job.id, token, report).log_bytes == 8
    assert holding.report(job.id, token, report).log_bytes == 8
    assert [line.text for line in store.lines(job.id).items] == ["one", "two"]
    assert [line.text for line in store.last_lines(job.id, limit=1).items] == ["two"]


def test_names_choose_curves(store: Store) -> None:
    """Some of them, none of them; pages go on where the last one ended."""
    job = store.create(counting())
    token = start(store, job.id)
    points = [Number(name=name, step=step, value=0.0, t=0.0) for step in (1, 2) for name in ("a", "b", "c")]
    Holding(store).report(job.id, token, Report(points=points))
    assert [point.name for point in store.points(job.id, names=["a", "c"]).items] == ["a", "c", "a", "c"]
    assert store.points(job.id, names=[]).items == ()
    page = store.points(job.id, limit=4)
    assert page.next == page.items[-1].id
    assert [point.name for point in store.points(job.id, after=page.next).items] == ["b", "c"]


def test_progress_is_told_by_its_newest(store: Store) -> None:
    """A job of a million steps leaves one event of that kind, and it is new each time."""
    job = store.create(counting())
    token = start(store, job.id)
    for step in range(1, 4):
        Holding(store).report(
            job.id, token, Report(progress=Progress(step=step, steps=9, phases={"wait": 0.5}))
        )
    [event] = [one for one in store.events(job.id).items if one.kind == "progress"]
    assert (event.body["step"], event.body["steps"], event.id) == (3, 9, store.last_id())
    assert store.job(job.id).phases == {"wait": 0.5}


def test_a_follower_misses_nothing_and_sees_nothing_twice(store: Store) -> None:
    """Whoever asks for what is above the last it saw gets all, in one order, while others write at once."""
    jobs = [store.create(counting(name=str(number))) for number in range(4)]
    tokens = {job.id: start(store, job.id) for job in jobs}
    before = store.last_id()
    ended = threading.Event()

    def write(id_: str) -> None:
        for step in range(1, 26):
            lines = [(0.0, f"{id_} {step}")]
            Holding(store).report(
                id_, tokens[id_], Report(points=curve(step), lines=lines, log_from=step - 1, log_to=step)
            )

    writers = [threading.Thread(target=write, args=(job.id,)) for job in jobs]
    seen: list[int] = []

    def follow() -> None:
        last = before
        while True:
            is_last = ended.is_set()
            page = store.news(after=last, limit=7)
            seen.extend(one.id for one in page.items)
            if page.items:
                last = page.items[-1].id
            elif is_last:
                return

    follower = threading.Thread(target=follow)
    for thread in (*writers, follower):
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    follower.join()
    assert seen == sorted(set(seen))
    assert len(seen) == 4 * 25 * 2


def test_what_is_deleted_is_gone_and_known_to_be(store: Store) -> None:
    """Its points, lines and events too; one event says so to who follows."""
    job, other = store.create(counting()), store.create(counting(name="other"))
    for id_ in (job.id, other.id):
        token = start(store, id_)
        Holding(store).report(id_, token, Report(points=curve(1), lines=[(0.0, "x")], log_from=0, log_to=2))
        Holding(store).finish(id_, token, State.DONE)
    store.delete(job.id)
    assert (store.points(job.id).items, store.lines(job.id).items) == ((), ())
    assert [event.kind for event in store.events(job.id).items] == ["deleted"]
    assert Holding(store).deleted() == ([job.id], store.last_id())
    assert store.points(other.id).items
    assert store.job(other.id).state is State.DONE


# --- the database itself ----------------------------------------------------------------------------------


def test_a_store_opened_by_many_at_once_has_one_schema(store_url: str) -> None:
    """Servers that start together do not make the tables twice."""
    opened: list[Store] = []
    together = threading.Barrier(6)

    def open_one() -> None:
        together.wait(60)
        opened.append(Store.open(store_url))

    threads = [threading.Thread(target=open_one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 6
    assert opened[0].create(counting()).number == 1
    for one in opened:
        one.close()


def test_the_first_connections_of_a_file_wait_for_one_another(tmp_path: Path) -> None:
    """Where one of them makes it write-ahead SQLite calls the file locked at once, whatever the time-out."""
    opened: list[Store] = []

    def open_one(url: str, together: threading.Barrier) -> None:
        together.wait(60)
        opened.append(Store.open(url))

    for turn in range(60):
        given = (f"sqlite:///{tmp_path / str(turn)}.db", threading.Barrier(6))
        threads = [threading.Thread(target=open_one, args=given) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for one in opened:
        one.close()
    assert len(opened) == 360


def test_threads_that_come_and_go_leave_no_connection(store: Store) -> None:
    """A server's threads end when they are idle, and the database has only so many connections for all."""
    store.create(counting())
    for _ in range(10):
        together = threading.Barrier(12)

        def look(together: threading.Barrier = together) -> None:
            with store.database.snapshot() as do:
                together.wait(60)
                assert do.read("SELECT COUNT(*) FROM jobs") == [(1,)]

        threads = [threading.Thread(target=look) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 1 <= store.database.connections <= 8
    store.close()
    assert store.database.connections == 0


def test_one_that_is_in_use_when_the_store_is_closed_is_closed_after(store: Store) -> None:
    """Whoever asks then is answered, and nothing is left open."""
    with store.database.snapshot() as do:
        store.close()
        assert do.read("SELECT COUNT(*) FROM jobs") == [(0,)]
    assert store.database.connections == 0


def test_a_store_of_the_version_before_is_brought_to_this_one(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is in it: jobs that wait for a card are in their line as if they had been asked for today."""
    every = database.read_migrations()
    columns = "id, number, name, request, digest, state, place, created"
    with monkeypatch.context() as before:
        before.setattr(database, "read_migrations", lambda: every[:1])
        old = Store.open(store_url)
        with old.database.transaction() as do:
            for number, gpus in ((1, 0), (2, 1), (3, 0), (4, 2)):
                asked = Request(name=f'"gpus":{gpus},', script="s", gpus=gpus).to_json()
                told = json.dumps(asked, sort_keys=True, separators=(",", ":"))
                values = (f"{number:012}", number, "n", told, "", "queued", number, 0.0)
                do.write(f"INSERT INTO jobs ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
        old.close()
    store = Store.open(store_url)
    assert [job.number for job in Holding(store).heads()] == [1, 2]
    store.ask_cancel(f"{2:012}")
    assert [job.number for job in Holding(store).heads()] == [1, 4]
    store.close()


def test_a_newer_schema_is_refused(store: Store, store_url: str) -> None:
    """An older version does not write into what it does not know."""
    with store.database.transaction() as do:
        do.write("INSERT INTO schema_version (version) VALUES (?)", (99,))
    with pytest.raises(UsageError, match="schema 99"):
        Store.open(store_url)


def test_what_is_no_store_is_told(tmp_path: Path) -> None:
    """A URL of another kind, a file that is none, a folder; a password is never shown."""
    with pytest.raises(UsageError, match=r"mysql://ann:\*\*\*@host"):
        Store.open("mysql://ann:secret@host/jobs")
    with pytest.raises(DatabaseUnreachable, match="cannot open"):
        Store.open(str(tmp_path))
    (tmp_path / "text").write_text("no database at all, but long enough to be looked at " * 40)
    with pytest.raises(DatabaseUnreachable, match="not a database"):
        Store.open(str(tmp_path / "text"))


def test_a_harmed_store_is_told_before_it_is_served(tmp_path: Path) -> None:
    """Read whole once, when a server starts; those who only ask do not wait for that."""
    place = tmp_path / "jobs.db"
    store = Store.open(str(place))
    for number in range(200):
        store.create(counting(name=f"job {number}"))
    store.close()
    Store.open(str(place), checked=True).close()
    data = bytearray(place.read_bytes())
    for at in range(8192, len(data) - 4096, 4096):
        data[at : at + 200] = bytes(200)
    place.write_bytes(data)
    with pytest.raises(DatabaseUnreachable, match=r"jobs\.db is harmed: .*; put back a copy"):
        Store.open(str(place), checked=True)


@pytest.mark.service
def test_a_server_that_was_away_is_asked_again(postgres_server: PostgresServer, postgres_url: str) -> None:
    """A connection that it ended is made anew; while it is away that is said, and nothing is half done."""
    store = Store.open(postgres_url)
    store.create(counting())
    postgres_server.stop()
    try:
        with pytest.raises(DatabaseUnreachable, match="no connection to the store"):
            store.create(counting(), key="again")
        with pytest.raises(DatabaseUnreachable):
            store.events()
    finally:
        postgres_server.start()
    assert store.create(counting(), key="again").number == 3
    end = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND datname IS NOT NULL"
    )
    postgres_server.run(end)
    assert [one.id for one in store.events().items] == [2, 4]
    postgres_server.run(end)
    assert store.create(counting(), key="again").number == 3
    postgres_server.run(end)
    assert len(store.jobs().items) == 2
    store.close()


_HALF = """
import os, signal, sys
from stoker.jobs.store import Store
store = Store.open(sys.argv[1])
with store.database.transaction() as do:
    do.write("UPDATE jobs SET name = 'half'")
    store.note(do, "x", "half", {})
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_killed_inside_a_write_leaves_nothing_of_it(store: Store, store_url: str) -> None:
    """The next writer is not held up, and finds what was there before."""
    job = store.create(counting())
    done = subprocess.run([sys.executable, "-c", _HALF, store_url], env={**os.environ}, timeout=60)
    assert done.returncode == -signal.SIGKILL
    other = store.create(counting(name="next"))
    assert store.job(job.id).name == "count"
    assert [event.kind for event in store.events().items] == ["state", "state"]
    assert other.number == store.job(job.id).number + 2


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=80))
def test_any_text_comes_back_as_it_was(store: Store, text: str) -> None:
    """In names and in lines."""
    job = store.create(Request(name=text, script="s"))
    token = start(store, job.id)
    Holding(store).report(job.id, token, Report(lines=[(0.0, text)], log_from=0, log_to=1))
    assert store.job(job.id).name == text
    assert store.lines(job.id).items[0].text == text
