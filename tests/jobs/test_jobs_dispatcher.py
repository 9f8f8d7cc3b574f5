"""From the queue to the engines, pass by pass: who is next, who is told what, what is tidied."""

from pathlib import Path

import pytest

from stoker.jobs.dispatcher import Dispatcher
from stoker.jobs.engines.engine import Place, Running
from stoker.jobs.engines.inprocess import InProcessEngine
from stoker.jobs.folders import JobFolder
from stoker.jobs.job import Job, Request
from stoker.jobs.settings import Settings
from stoker.jobs.states import State
from stoker.jobs.store import Store
from stoker.jobs.store.holding import Holding


def test_a_card_job_that_waits_does_not_hold_up_others(tmp_path: Path) -> None:
    """Those that need no card go past it; those that need one stay behind it."""
    store = Store.open(str(tmp_path / "jobs.db"))
    ran: list[str] = []
    engine = InProcessEngine(store, lambda task: ran.append(task.job.name), slots=9)
    place = engine.find_place
    engine.find_place = lambda job, running: (  # type: ignore[method-assign]
        "waits for a GPU: none is free" if job.name == "large" else place(job, running)
    )
    large = store.create(Request(name="large", workload="sar", gpus=2))
    small = store.create(Request(name="small", workload="sar", gpus=1))
    plain = store.create(Request(name="plain", workload="sar"))
    Dispatcher(Settings(root=tmp_path), store, engine).look()
    engine.wait()
    assert ran == ["plain"]
    assert store.job(plain.id).state is State.DONE
    assert store.job(large.id).waits_for == "waits for a GPU: none is free"
    assert store.job(small.id).waits_for == "waits for those before it in the queue"
    store.close()


class Full(InProcessEngine):
    """An engine without a place for cards; and of late, for anything."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, lambda task: None, slots=9)
        self.why: str | None = None

    def find_place(self, job: Job, running: list[Running]) -> Place | str:
        """None for who needs a card."""
        if job.request.gpus:
            return "waits for a GPU: none is free"
        return self.why or super().find_place(job, running)


def test_however_many_wait_for_a_card_the_others_go_past(store: Store, tmp_path: Path) -> None:
    """The first that needs none is found behind a hundred that do; of those only the first is told why."""
    many = [store.create(Request(name="card", workload="sar", gpus=1)) for _ in range(120)]
    plain = store.create(Request(name="plain", workload="sar"))
    engine = Full(store)
    Dispatcher(Settings(root=tmp_path), store, engine).look()
    engine.wait()
    assert store.job(plain.id).state is State.DONE
    told = [event.job for event in store.events(limit=10_000).items if event.kind == "waits"]
    assert told == [many[0].id]
    assert store.job(many[0].id).waits_for == "waits for a GPU: none is free"


def test_a_reason_that_changes_with_every_look_is_told_now_and_then(store: Store, tmp_path: Path) -> None:
    """How much memory is free changes all the time: each telling is a write, and news to every page."""
    now = [0.0]
    engine = Full(store)
    dispatcher = Dispatcher(Settings(root=tmp_path), store, engine, clock=lambda: now[0])
    job = store.create(Request(name="large", workload="sar"))
    for look in range(41):
        now[0] = look * 0.25
        engine.why = f"waits for memory: {look} are free"
        dispatcher.look()
    told = [event.body["for"] for event in store.events(job.id).items if event.kind == "waits"]
    assert told == [f"waits for memory: {look} are free" for look in (0, 20, 40)]
    engine.why = None
    dispatcher.look()
    engine.wait()
    assert store.job(job.id).state is State.DONE


def test_a_job_that_is_gone_between_the_look_and_the_claim_holds_nobody_up(
    store: Store, tmp_path: Path
) -> None:
    """Cancelled and deleted in that moment: nothing is started for it, and the next one is."""
    engine = Full(store)
    gone, following = (store.create(Request(name=name, workload="sar")) for name in ("gone", "following"))

    def find_place(job: Job, running: list[Running]) -> Place | str:
        if job.id == gone.id:
            store.ask_cancel(gone.id)
            store.delete(gone.id)
        return Place()

    engine.find_place = find_place  # type: ignore[method-assign]
    Dispatcher(Settings(root=tmp_path), store, engine).look()
    engine.wait()
    assert store.job(following.id).state is State.DONE
    assert Holding(store).claim(gone.id, engine="test") is None


def test_a_folder_that_cannot_be_removed_is_tried_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that still writes there, a file server that is slow to let go: said once; others go on."""
    jobs = [store.create(Request(name=name, workload="sar")) for name in "ab"]
    folders = [JobFolder(root=tmp_path, id=job.id) for job in jobs]
    for job, folder in zip(jobs, folders, strict=True):
        folder.training.mkdir(parents=True)
        store.ask_cancel(job.id)
        store.delete(job.id)
    dispatcher = Dispatcher(Settings(root=tmp_path), store, InProcessEngine(store, lambda task: None))
    remove = JobFolder.remove

    def refuse(folder: JobFolder) -> None:
        if folder == folders[0]:
            raise OSError(39, "Directory not empty")
        remove(folder)

    with monkeypatch.context() as busy:
        busy.setattr(JobFolder, "remove", refuse)
        for _ in range(3):
            dispatcher.look()
    assert [folder.path.exists() for folder in folders] == [True, False]
    assert capsys.readouterr().err.count("cannot remove the files") == 1
    dispatcher.look()
    assert not folders[0].path.exists()


def test_what_was_written_is_brought_to_its_place(tmp_path: Path) -> None:
    """By the dispatcher, once a second: the log of writes does not grow until a request has to do it."""
    store = Store.open(f"sqlite:///{tmp_path / 'jobs.db'}")
    now = [0.0]
    engine = InProcessEngine(store, lambda task: None)
    dispatcher = Dispatcher(Settings(root=tmp_path), store, engine, clock=lambda: now[0])
    for _ in range(50):
        store.create(Request(name="n", workload="sar", gpus=1))

    engine.find_place = lambda job, running: "not now"  # type: ignore[method-assign]
    size = (tmp_path / "jobs.db").stat().st_size
    dispatcher.look()
    assert (tmp_path / "jobs.db").stat().st_size == size
    now[0] = 1.0
    dispatcher.look()
    assert (tmp_path / "jobs.db").stat().st_size > size
    store.close()
