"""The write shield: the user's files are as they were, whatever the script does to them."""

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import sysconfig
import textwrap
import threading
from pathlib import Path

import pytest
from scratch_kit import HERE, available, can_overlay, digest, plan

import stoker
from stoker.scratch import Limits, run
from stoker.scratch.values import MECHANISMS, Mechanism

needs_overlay = pytest.mark.skipif(not can_overlay(), reason="no overlay here")


@pytest.fixture(params=MECHANISMS)
def mechanism(request: pytest.FixtureRequest) -> Mechanism:
    """Each shield; skipped where the machine has it not."""
    name: Mechanism = request.param
    if not available(name):
        pytest.skip(f"no {name} here")
    return name


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's folder: script, checkpoints, a database, an array, links, a hidden folder."""
    folder = tmp_path / "project"
    (folder / "checkpoints/old").mkdir(parents=True)
    (folder / "checkpoints/best.pt").write_bytes(b"the best model of last week")
    (folder / "checkpoints/old/first.pt").write_bytes(b"the first")
    (folder / "metrics.txt").write_text("epoch 1\n")
    (folder / "features.npy").write_bytes(b"not really")
    (folder / ".hidden").mkdir()
    (folder / "outside").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/data.bin").write_bytes(b"on another disk")
    with sqlite3.connect(folder / "runs.db") as base:
        base.execute("create table runs (loss real)")
        base.execute("insert into runs values (0.5)")
    base.close()
    return folder


def script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(text))
    return path


SAVES = {
    "torch.save": """
        import torch
        torch.save({"w": torch.ones(3)}, "checkpoints/best.pt")
        assert torch.load("checkpoints/best.pt")["w"].sum() == 3
        torch.save({}, "checkpoints/new.pt")
        """,
    "open": """
        with open("metrics.txt", "a") as file: file.write("epoch 2\\n")
        assert open("metrics.txt").read() == "epoch 1\\nepoch 2\\n"
        with open("metrics.txt", "r+") as file: file.write("EPOCH")
        open("new.txt", "w").write("new")
        assert open("new.txt").read() == "new"
        open("outside/data.bin", "wb").write(b"over a link")
        """,
    "np.save": """
        import numpy as np
        np.save("features.npy", np.ones(4))
        assert np.load("features.npy").sum() == 4
        np.savez("more.npz", a=np.ones(2))
        """,
    "rmtree": """
        import os, shutil
        shutil.rmtree("checkpoints")
        assert not os.path.exists("checkpoints/best.pt")
        os.makedirs("checkpoints/old")
        assert os.listdir("checkpoints") == ["old"] and os.listdir("checkpoints/old") == []
        """,
    "sqlite": """
        import sqlite3
        with sqlite3.connect("runs.db") as base:
            base.execute("insert into runs values (0.1)")
            base.execute("create table more (x)")
        assert base.execute("select count(*) from runs").fetchone() == (2,)
        """,
    "pathlib": """
        import os
        from pathlib import Path
        Path("metrics.txt").unlink()
        assert not Path("metrics.txt").exists()
        Path("checkpoints/best.pt").rename("checkpoints/moved.pt")
        assert Path("checkpoints/moved.pt").read_bytes().startswith(b"the best")
        assert sorted(p.name for p in Path("checkpoints").iterdir()) == ["moved.pt", "old"]
        assert sorted(p.name for p in Path("checkpoints").glob("*.pt")) == ["moved.pt"]
        Path("a/b/c").mkdir(parents=True)
        Path("a/b/c/d.txt").write_text("deep")
        os.replace("a/b/c/d.txt", "features.npy")
        assert Path("features.npy").read_text() == "deep"
        os.truncate("runs.db", 0)
        os.chmod("train.py", 0o600)
        """,
}


@pytest.mark.parametrize("saver", SAVES)
def test_what_a_script_saves_does_not_last(
    project: Path, mechanism: Mechanism, saver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its saves work and are seen by itself; afterwards every byte is as before."""
    monkeypatch.chdir(project)
    path = script(project, SAVES[saver])
    before = digest(project.parent)
    result = run(plan(path, mechanisms=(mechanism,)))
    assert result.outcome == "done", result
    assert digest(project.parent) == before
    assert result.shield is not None
    assert result.shield.kind == ("partial" if mechanism == "patches" else "full")


def test_what_a_hook_starts_is_not_the_scripts(project: Path, mechanism: Mechanism) -> None:
    """A hook may start a program behind every shield; a partial one refuses them to the script alone."""
    path = script(project, "import subprocess; subprocess.run(['true'])")
    result = run(plan(path, hook="scratch_hooks:start_program", mechanisms=(mechanism,)))
    assert [one.body["said"] for one in result.messages if one.kind == "program"] == ["ours"]
    assert ("starts no program" in result.reason) == (mechanism == "patches")


PROGRAMS = """
import subprocess
for line in ("echo over > metrics.txt", "rm -rf checkpoints", "echo new > new.txt", "mv runs.db gone.db"):
    subprocess.run(line, shell=True)
subprocess.run(["rm", "-rf", "."])
"""


def test_what_a_program_does_does_not_last(
    project: Path, mechanism: Mechanism, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Absorbed by the overlay, refused by Landlock, not started behind patches alone."""
    monkeypatch.chdir(project)
    path = script(project, PROGRAMS)
    before = digest(project.parent)
    result = run(plan(path, mechanisms=(mechanism,)))
    if mechanism == "overlay":
        assert (result.outcome, result.stderr_tail) == (
            "done",
            "rm: refusing to remove '.' or '..' directory: skipping '.'\n",
        )
    elif mechanism == "landlock":
        assert "Permission denied" in result.stderr_tail or "cannot" in result.stderr_tail
    else:
        assert "starts no program" in result.reason
    assert digest(project.parent) == before


def test_a_script_that_crashes_or_is_stopped_midway_leaves_files_alone(
    project: Path, mechanism: Mechanism, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two writes, by a signal and by the clock."""
    monkeypatch.chdir(project)
    for end in ("os.kill(os.getpid(), 11)", "time.sleep(600)"):
        path = script(
            project,
            f"""
            import os, shutil, time
            open("metrics.txt", "w").write("half")
            shutil.rmtree("checkpoints")
            {end}
            """,
        )
        before = digest(project.parent)
        result = run(plan(path, mechanisms=(mechanism,), limits=Limits(seconds=3)))
        assert result.outcome in ("crashed", "timed-out"), result
        assert digest(project.parent) == before


@needs_overlay
def test_paths_anywhere_can_be_written_and_nothing_lasts(project: Path) -> None:
    """A folder at the root, home, /var and /tmp: the script goes on, the machine stays as it is."""
    places = [
        "/stoker-probe/checkpoints",
        f"{Path.home()}/stoker-probe",
        "/var/tmp/stoker-probe",
        "/tmp/stoker-probe-x",
    ]
    path = script(
        project,
        f"""
        import os
        for place in {places}:
            os.makedirs(place)
            open(place + "/file", "w").write("x")
            assert open(place + "/file").read() == "x"
        """,
    )
    result = run(plan(path))
    assert result.outcome == "done", result
    assert not [place for place in places if Path(place).exists()]
    assert not Path("/stoker-probe").exists()


@needs_overlay
def test_folders_can_be_renamed_and_large_files_changed_in_mode(project: Path) -> None:
    """What a plain overlay refuses: renaming a folder that was there before."""
    path = script(
        project,
        """
        import os
        os.chdir(os.path.dirname(__file__))
        os.rename("checkpoints", "renamed")
        assert open("renamed/old/first.pt").read() == "the first"
        os.chmod("features.npy", 0o600)
        assert os.stat("features.npy").st_mode & 0o777 == 0o600
        """,
    )
    before = digest(project)
    result = run(plan(path))
    if os.geteuid() == 0:
        assert result.outcome == "done", result
    assert digest(project) == before


@needs_overlay
def test_writable_folders_last_and_direct_ones_are_read_only(project: Path, tmp_path: Path) -> None:
    """The record's folder is written for real; data named as direct is read past the overlay."""
    record, data = project / ".stoker/runs", project / "checkpoints"
    path = script(
        project,
        f"""
        import os
        open("{record}/run.json", "w").write("kept")
        assert open("{data}/best.pt").read().startswith("the best")
        lines = [line.split() for line in open("/proc/self/mounts")]
        assert "overlay" not in [line[2] for line in lines if line[1] == "{data}"]
        try: open("{data}/best.pt", "w")
        except OSError as error: print(error.strerror)
        """,
    )
    result = run(plan(path, writable=(record,), direct=(data,)))
    assert (result.outcome, result.stdout_tail) == ("done", "Read-only file system\n"), result
    assert (record / "run.json").read_text() == "kept"


@needs_overlay
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_mounts_below_the_tree_are_shielded_too(project: Path) -> None:
    """A nested writable mount, a read-only one, a file mounted on a file; and a mount hidden by another."""
    inner = """
    set -e
    mkdir nested readonly; echo file > mounted.txt; echo source > source.txt
    mount -t tmpfs tmpfs nested; mkdir nested/deep; echo first > nested/deep/file
    mount -t tmpfs tmpfs nested/deep; echo kept > nested/deep/file
    mount -t tmpfs tmpfs readonly; echo fixed > readonly/file; mount -o remount,ro readonly
    mount --bind source.txt mounted.txt
    {python} - <<'END'
import sys
sys.path.insert(0, {here!r})
from pathlib import Path
from scratch_kit import digest, plan
from stoker.scratch import run
before = digest(Path("."))
result = run(plan(Path("train.py")))
print(result.outcome, result.stdout_tail, result.stderr_tail, result.shield)
assert digest(Path(".")) == before
END
    """
    script(
        project,
        """
        import os
        for name in ("nested/deep/file", "nested/deep/new", "source.txt"):
            open(name, "w").write("changed")
        for name in ("readonly/file", "mounted.txt"):
            assert open(name).read() in ("fixed\\n", "source\\n"), open(name).read()
            try: open(name, "w").write("changed")
            except OSError as error: print(error.errno, end=" ")
        """,
    )
    code = textwrap.dedent(inner).format(python=sys.executable, here=str(HERE))
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", code], cwd=project, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.startswith("done 30 30"), (done.stdout, done.stderr)


@needs_overlay
def test_shared_memory_is_private_with_the_machine_s_room(project: Path) -> None:
    """What others put into /dev/shm can be read; what the script makes there is not seen outside."""
    others = Path(f"/dev/shm/stoker-test-{os.getpid()}")
    others.write_text("a dataset held there")
    path = script(
        project,
        f"""
        import os
        from multiprocessing import shared_memory
        assert open("{others}").read() == "a dataset held there"
        open("{others}", "w").write("changed")
        held = shared_memory.SharedMemory(create=True, size=1 << 20)
        held.buf[0] = 7
        found = os.statvfs("/dev/shm")
        print(held.name, found.f_bavail * found.f_frsize, flush=True)
        os._exit(0)
        """,
    )
    found = os.statvfs("/dev/shm")
    try:
        result = run(plan(path))
        assert result.outcome == "done", result
        assert others.read_text() == "a dataset held there"
        assert not [entry.name for entry in Path("/dev/shm").iterdir() if entry.name in result.stdout_tail]
        # A page more or less is in use by what was just written.
        assert abs(int(result.stdout_tail.split()[1]) - found.f_bavail * found.f_frsize) < 64 << 20
    finally:
        others.unlink()


@needs_overlay
def test_servers_of_the_machine_are_reached_through_their_sockets(project: Path, tmp_path: Path) -> None:
    """A database's socket file lies in a folder that is overlaid."""
    place = str(tmp_path / "s")
    path = script(
        project,
        f"import socket\nlink = socket.socket(socket.AF_UNIX)\nlink.connect({place!r})\nprint(link.recv(5))",
    )
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place)
        server.listen()

        def answer() -> None:
            link, _ = server.accept()
            with link:
                link.send(b"hello")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        result = run(plan(path))
        assert (result.outcome, result.stdout_tail) == ("done", "b'hello'\n"), result
        thread.join(10)


@needs_overlay
def test_offline_has_loopback_and_nothing_else(project: Path) -> None:
    """The interfaces are lo alone, and it works."""
    path = script(
        project,
        """
        import socket
        print([name for _, name in socket.if_nameindex()])
        server = socket.create_server(("127.0.0.1", 0))
        socket.create_connection(server.getsockname(), timeout=5)
        try: socket.create_connection(("192.0.2.1", 80), timeout=5)
        except OSError as error: print(error.strerror)
        """,
    )
    result = run(plan(path, offline=True))
    assert (result.outcome, result.stdout_tail) == ("done", "['lo']\nNetwork is unreachable\n"), result


@needs_overlay
def test_the_machine_s_settings_cannot_be_written(project: Path) -> None:
    """/sys is read-only for the script, also for root."""
    path = script(project, "open('/sys/kernel/profiling', 'w')")
    result = run(plan(path))
    assert result.outcome == "failed"
    assert "Read-only file system" in result.reason or "Permission denied" in result.reason


WITHOUT_RIGHTS = """
import sys
sys.path.insert(0, {here!r})
from pathlib import Path
from scratch_kit import digest
from stoker.scratch import Plan, run
before = digest(Path("."))
result = run(Plan(command=("train.py",), mechanisms=("overlay",)))
assert digest(Path(".")) == before
print(result.outcome, result.reason, result.shield, result.stdout_tail, result.stderr_tail)
"""


@pytest.mark.skipif(shutil.which("setpriv") is None or os.geteuid() != 0, reason="no setpriv, or not root")
def test_a_user_without_rights_has_a_full_shield(project: Path) -> None:
    """By a user namespace: overlay, private processes, the same user, nothing lasts."""
    path = script(
        project,
        """
        import os, shutil, subprocess
        assert not int(open("/proc/self/status").read().split("CapBnd:")[1].split()[0], 16) == 0
        shutil.rmtree("checkpoints")
        os.makedirs("checkpoints")
        open("metrics.txt", "a").write("more")
        subprocess.run("echo over > runs.db; rm features.npy", shell=True)
        open("/tmp/stoker-probe-y", "w").write("x")
        open("/dev/shm/stoker-probe-y", "w").write("x")
        print(os.getuid(), os.getpid(), sorted(os.listdir(".")))
        """,
    )
    code = WITHOUT_RIGHTS.format(here=str(HERE))
    # Root with one capability is a user like any other, who happens to own this interpreter. That one is
    # what the kernel asks of number 0, and of no other user, to keep its number in the namespace.
    done = subprocess.run(
        ["setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all", sys.executable, "-c", code],
        cwd=path.parent, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    if "unshare" in done.stdout:
        pytest.skip(f"no user namespaces here: {done.stdout}")
    assert done.stdout.startswith("done the script ended"), (done.stdout, done.stderr)
    assert "kind='full', by='overlay'" in done.stdout
    assert "0 2 ['.hidden', 'checkpoints', 'metrics.txt', 'outside', 'runs.db', 'train.py']" in done.stdout
    assert not Path("/tmp/stoker-probe-y").exists()
    assert not Path("/dev/shm/stoker-probe-y").exists()


def other_user_s_python() -> tuple[str, str] | None:
    """An interpreter that every user may start, and the path on which it finds what this one has."""
    site = sysconfig.get_path("purelib")
    source = str(Path(stoker.__file__).parents[1])
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            tried = subprocess.run(
                [python, "-c", "import sys, torch, psutil; print(sys.version_info[:2])"],
                env={"PYTHONPATH": site}, user=OTHER_USER, group=OTHER_USER, extra_groups=[], cwd="/",
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
        except OSError:
            continue
        if tried.stdout.strip() == str(sys.version_info[:2]):
            return python, f"{source}:{site}"
    return None


OTHER_USER = 54321


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_writes_below_folders_that_are_root_s(project: Path) -> None:
    """A folder of theirs in root's /var/tmp: the overlay there needs root's number, which they lack."""
    found = other_user_s_python()
    if found is None:
        pytest.skip("no interpreter that other users may start")
    python, search = found
    home = Path(f"/var/tmp/stoker-test-{os.getpid()}")
    shutil.copytree(project, home, symlinks=True)
    script(
        home,
        """
        import os
        os.remove("metrics.txt")
        os.makedirs("a/b")
        open("a/b/c", "w").write("x")
        open("/tmp/stoker-probe-z", "w").write("x")
        """,
    )
    for path in (home, *home.rglob("*")):
        os.chown(path, OTHER_USER, OTHER_USER, follow_symlinks=False)
    code = WITHOUT_RIGHTS.format(here=str(HERE))
    try:
        done = subprocess.run(
            [python, "-c", code], env={"PYTHONPATH": search, "HOME": str(home)},
            user=OTHER_USER, group=OTHER_USER, extra_groups=[], cwd=home,
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        if "unshare" in done.stdout:
            pytest.skip(f"no user namespaces here: {done.stdout}")
        assert done.stdout.startswith("done the script ended"), (done.stdout, done.stderr)
        assert not Path("/tmp/stoker-probe-z").exists()
    finally:
        shutil.rmtree(home)


def test_spawned_and_forked_workers_are_behind_the_shield(
    project: Path, mechanism: Mechanism, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that writes into the tree changes nothing; behind patches alone only forked ones."""
    monkeypatch.chdir(project)
    ways = ["fork"] if mechanism == "patches" else ["fork", "spawn"]
    path = script(
        project,
        f"""
        import multiprocessing
        def write(way):
            try: open("metrics.txt", "w").write(way)
            except OSError: pass
        if __name__ == "__main__":
            for way in {ways}:
                worker = multiprocessing.get_context(way).Process(target=write, args=(way,))
                worker.start(); worker.join(); assert worker.exitcode == 0
        """,
    )
    before, result = digest(project), run(plan(path, mechanisms=(mechanism,)))
    assert (result.outcome, digest(project)) == ("done", before), result
