"""What is asked for: what no card has, scripts by their listed names, keys, lines of the queue."""

import stat
import sys
from pathlib import Path

import pytest

from stoker.errors import JobRefused
from stoker.jobs.job import Request
from stoker.jobs.places import Places
from stoker.jobs.request import Policy, read
from stoker.jobs.store import Store
from stoker.jobs.store.holding import Holding

from .kit import SCRIPTS
from .servers import running


def test_memory_that_no_card_has_is_not_waited_for() -> None:
    """Such a job would hold up all that need a card; on a cluster it is the cluster's to say."""
    asked = {"script": "count.py", "gpus": 1, "vram_bytes": 2**49}
    policy = Policy(places=Places(scripts=(SCRIPTS,)), cards=1, most_gpus=1, most_vram_bytes=80 << 30)
    with pytest.raises(JobRefused, match=f"vram_bytes: it is {2**49}, .* {80 << 30} bytes"):
        read(asked, policy)
    assert read({**asked, "vram_bytes": 80 << 30}, policy).request.vram_bytes == 80 << 30
    elsewhere = Policy(places=Places(scripts=(SCRIPTS,)), cards=1)
    assert read(asked, elsewhere).request.vram_bytes == 2**49


def script(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    return path


def test_a_listed_name_is_the_script_that_is_listed_by_it(tmp_path: Path) -> None:
    """Also where another allowed folder has a script that could be called so."""
    inner, own = script(tmp_path / "A" / "b" / "t.py"), script(tmp_path / "b" / "t.py")
    places = Places(scripts=(tmp_path / "A", tmp_path / "b"))
    assert places.list_scripts() == ["A/b/t.py", "b/t.py"]
    assert [places.find_script(name) for name in places.list_scripts()] == [inner, own]
    assert places.find_script("t.py") == own


def test_a_place_is_that_in_its_line(store: Store) -> None:
    """Who needs no card is next, however many wait for one before it."""
    cards = [store.create(Request(name="card", workload="sar", gpus=1)) for _ in range(2)]
    plain = [store.create(Request(name="plain", workload="sar")) for _ in range(2)]
    assert [store.position(job.id) for job in (*cards, *plain)] == [1, 2, 1, 2]
    assert {job.position for job in Holding(store).heads()} == {1}
    assert store.job(plain[0].id).waits_for is None


def test_a_key_is_of_the_body_that_was_sent(tmp_path: Path) -> None:
    """A server that was started again with other settings gives the job made first, and no conflict."""
    key, body = {"Idempotency-Key": "monday-1"}, {"workload": "heimdall"}
    by_script = {"script": "count.py", "arguments": ["1", "0", "1"]}
    with running(tmp_path / "jobs") as server:
        first = server.post("/jobs", body, **key)
        other = server.post("/jobs", by_script, **{"Idempotency-Key": "script"})
        assert (first.status, other.status) == (201, 201)
    with running(tmp_path / "jobs", database="env:RADIO", scripts=()) as server:
        again = server.post("/jobs", body, **key)
        assert (again.status, again.json["id"]) == (201, first.json["id"])
        assert server.post("/jobs", {"workload": "sar"}, **key).status == 409
        same = server.post("/jobs", dict(reversed(by_script.items())), **{"Idempotency-Key": "script"})
        assert (same.status, same.json["id"]) == (201, other.json["id"]), "though it is not allowed any more"


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
def test_the_jobs_files_are_their_owners_alone(tmp_path: Path) -> None:
    """Settings with passwords are in the store and in plans; also where the folder was open before."""
    made, before = tmp_path / "made", tmp_path / "before"
    (before / "runs").mkdir(parents=True)
    before.chmod(0o755)
    for root in (made, before):
        with running(root):
            assert stat.S_IMODE(root.stat().st_mode) == 0o700
            assert stat.S_IMODE((root / "jobs.db").stat().st_mode) == 0o600
            assert stat.S_IMODE((root / "runs").stat().st_mode) == 0o700


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
def test_a_folder_that_has_other_things_too_stays_as_it_is(tmp_path: Path) -> None:
    """It may be a project's, or everybody's: only what jobs put there is closed."""
    root = tmp_path / "project"
    script(root / "train.py")
    root.chmod(0o755)
    with running(root):
        assert stat.S_IMODE(root.stat().st_mode) == 0o755
        assert stat.S_IMODE((root / "jobs.db").stat().st_mode) == 0o600
        assert stat.S_IMODE((root / "runs").stat().st_mode) == 0o700


def test_health_says_nothing_of_where_the_store_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs no token: what is wrong in detail is for who started the server."""
    from stoker.errors import DatabaseUnreachable

    with running(tmp_path / "jobs") as server:

        def refuse(store: Store) -> int:
            raise DatabaseUnreachable("no connection to the store postgresql://ann@db.inside/jobs")

        monkeypatch.setattr(Store, "last_id", refuse)
        told = [server.ask("GET", "/health") for _ in range(3)][-1]
        monkeypatch.undo()
    assert (told.status, told.json["told"]) == (503, ["the store does not answer: see the server's log"])
    assert b"db.inside" not in told.raw
    assert capsys.readouterr().err.count("db.inside") == 1
