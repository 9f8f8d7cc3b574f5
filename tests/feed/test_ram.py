"""Samples in memory that processes share: real ones, which come, go and are killed."""

import fcntl
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feed.numbered import Numbered, assert_same
from stoker.errors import NoRoom, UsageError
from stoker.feed.layout import Layout
from stoker.feed.tiers import ram
from stoker.feed.tiers.pack import Content
from stoker.feed.tiers.ram import MAGIC, Places, SharedRows, sweep

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory is Linux's here")
WAIT_S = 60.0
SPAWN = multiprocessing.get_context("spawn")
needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may do it")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where there is one; empty again when the test is over."""
    made = Path(tempfile.mkdtemp(dir="/dev/shm")) if Path("/dev/shm").is_dir() else tmp_path
    yield made
    left = list(made.iterdir())
    shutil.rmtree(made)
    assert left == []


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory with room for a megabyte."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def content_of(source: Numbered, transform: str = "") -> Content:
    layout = Layout.of(source.read(np.arange(1)))
    return Content(fingerprint=source.fingerprint(), transform=transform, samples=len(source), layout=layout)


def open_filled(source: Numbered, folder: Path) -> SharedRows:
    rows = SharedRows(content_of(source), folder=folder)
    everything = np.arange(len(source))
    rows.put(everything, source.read(everything))
    return rows


def abandon(rows: SharedRows, name: str | None = None) -> Path:
    """Close the rows, and leave a file as if the process had been killed."""
    assert rows.path is not None
    path = rows.path if name is None else rows.path.with_name(name)
    aside = rows.path.with_name("aside")
    shutil.copyfile(rows.path, aside)
    rows.close()
    return aside.rename(path)


def path_of(rows: SharedRows) -> Path:
    assert rows.path is not None
    return rows.path


def test_two_open_the_same_rows(folder: Path) -> None:
    """What one puts the other gets; who closes last removes the file."""
    source = Numbered(10)
    one, two = (SharedRows(content_of(source), folder=folder) for _ in range(2))
    one.put(np.arange(10), source.read(np.arange(10)))
    assert two.complete
    assert_same(two.get(torch.arange(10)), source.read(np.arange(10)))
    one.close()
    assert path_of(two).exists()
    assert_same(two.get(torch.arange(3)), source.read(np.arange(3)))
    two.close()
    two.close()
    with pytest.raises(UsageError, match="let go of"):
        two.get(torch.arange(3))


def test_it_is_gone_with_who_refers_to_it(folder: Path) -> None:
    """Without close, too."""
    rows = SharedRows(content_of(Numbered(3)), folder=folder)
    path = path_of(rows)
    del rows
    assert not path.exists()


def test_two_contents_at_once(folder: Path) -> None:
    """Another source, transform or number of samples has a file of its own."""
    kinds = [Numbered(4), Numbered(4, version="b"), Numbered(5), Numbered(4, numbers=7)]
    opened = [open_filled(source, folder) for source in kinds]
    opened.append(SharedRows(content_of(kinds[0], "halved"), folder=folder))
    assert len({rows.path for rows in opened}) == 5
    assert not opened[4].held(np.arange(4)).any()
    for source, rows in zip(kinds, opened, strict=False):
        everything = np.arange(len(source))
        assert_same(rows.get(torch.from_numpy(everything)), source.read(everything))
    for rows in opened:
        rows.close()


def test_leaves_without_numbers(folder: Path) -> None:
    """Take no memory, and come back."""
    batch = [torch.arange(3), torch.zeros(3, 0)]
    content = Content(fingerprint="", transform="", samples=3, layout=Layout.of(batch))
    rows = SharedRows(content, folder=folder)
    rows.put(np.arange(3), batch)
    assert [list(leaf.shape) for leaf in rows.get(torch.arange(2))] == [[2], [2, 0]]
    rows.close()


def test_who_keeps_all_batches_changes_nothing(folder: Path) -> None:
    """Batches written into never change what comes later, and outlive the rows."""
    source = Numbered(8)
    rows = open_filled(source, folder)
    kept = []
    for _ in range(3):
        batch = rows.get(torch.arange(8))
        assert_same(batch, source.read(np.arange(8)))
        batch["values"].fill_(-1)
        kept.append(batch)
    rows.close()
    assert all((batch["values"] == -1).all() for batch in kept)


def test_only_its_owner_may_read_it(folder: Path) -> None:
    """Whatever the umask is; and no page of it is left to be allocated later."""
    before = os.umask(0)
    try:
        rows = SharedRows(content_of(Numbered(50)), folder=folder)
    finally:
        os.umask(before)
    found = path_of(rows).stat()
    assert found.st_mode & 0o777 == 0o600
    assert found.st_blocks * 512 >= found.st_size
    assert all(begin % 4096 == 0 for begin in Places.of(content_of(Numbered(50))).leaves)
    rows.close()


def test_it_cannot_be_pickled(folder: Path) -> None:
    """A worker is told to open it for itself."""
    rows = SharedRows(content_of(Numbered(3)), folder=folder)
    with pytest.raises(UsageError, match="open them there"):
        pickle.dumps(rows)
    rows.close()


# --- several processes ----------------------------------------------------------------------------


def work(folder: Path, number: int, barrier: Any) -> None:
    """Put samples in an order of its own until all are there, getting some in between; then check all."""
    source = Numbered(120)
    barrier.wait(WAIT_S)
    rows = SharedRows(content_of(source), folder=folder)
    order = np.random.default_rng(number).permutation(120)
    for batch in np.array_split(order, 24):
        missing = batch[~rows.held(batch)]
        rows.put(missing, source.read(missing))
        there = np.flatnonzero(rows.held(np.arange(120)))
        assert_same(rows.get(torch.from_numpy(there)), source.read(there))
    assert rows.complete
    barrier.wait(WAIT_S)
    rows.close()


def test_processes_put_and_get_at_once(folder: Path) -> None:
    """All of them end with all samples, bit by bit, and nothing is left of the file."""
    barrier = SPAWN.Barrier(3)
    children = [SPAWN.Process(target=work, args=(folder, number, barrier)) for number in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(WAIT_S)
    assert [child.exitcode for child in children] == [0, 0, 0]


# Rows of a megabyte: most of a child's time goes into copying, and there a kill is to fall.
KILLED = Numbered(96, numbers=1 << 18)


def put_until_killed(folder: Path, seed: int, tell: Connection) -> None:
    rows = SharedRows(content_of(KILLED), folder=folder)
    tell.send("opened")
    order = np.random.default_rng(seed).permutation(np.flatnonzero(~rows.held(np.arange(96))))
    for batch in [(part, KILLED.read(part)) for part in np.array_split(order, 16)]:
        rows.put(*batch)
        tell.send("put")
    tell.recv()  # stays until it is killed


def test_what_is_flagged_is_whole_after_a_kill(folder: Path) -> None:
    """Killed while they put, processes leave a file that the next goes on with; every row in it is right."""
    chance, everything = random.Random(0), np.arange(96)
    before: SharedRows | None = None
    known, inside = 0, 0
    for seed in range(3):
        hear, tell = SPAWN.Pipe()
        child = SPAWN.Process(target=put_until_killed, args=(folder, seed, tell))
        child.start()
        assert hear.recv() == "opened"
        if before is not None:
            before.close()  # so that the child is the only one to have it open
        for _ in range(chance.randint(1, 3)):
            assert hear.recv() == "put"
        time.sleep(chance.uniform(0, 0.002))
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join(WAIT_S)
        assert child.exitcode == -signal.SIGKILL
        hear.close()
        tell.close()
        before = SharedRows(content_of(KILLED), folder=folder)
        there = np.flatnonzero(before.held(everything))
        assert len(there) > known
        known = len(there)
        assert_same(before.get(torch.from_numpy(there)), KILLED.read(there))
        absent = np.flatnonzero(~before.held(everything))
        inside += bool(before.get(torch.from_numpy(absent))["values"].any())
    assert inside, "no kill fell into a put: the test shows nothing"
    assert before is not None
    absent = np.flatnonzero(~before.held(everything))
    before.put(absent, KILLED.read(absent))
    assert before.complete
    assert_same(before.get(torch.from_numpy(everything)), KILLED.read(everything))
    before.close()


FORKS = """
import os, sys
from pathlib import Path
import numpy as np, torch
from feed.numbered import Numbered
from feed.test_ram import open_filled
source = Numbered(200, numbers=50_000)
rows = open_filled(source, Path(sys.argv[1]))
expected = rows.get(torch.arange(200))  # by several threads, which no forked child has
child = os.fork()
if child == 0:
    got = rows.get(torch.arange(200))
    # by numpy: torch's own threads, too, are not there in a forked child, and it would wait for them for ever
    same = all(np.array_equal(got[name].numpy(), expected[name].numpy()) for name in got)
    rows.close()
    os._exit(0 if same else 1)
assert os.waitpid(child, 0)[1] == 0
assert rows.path.exists(), "a child removed what is its parent's"
rows.get(torch.arange(3))
print("still there")
"""


def test_a_forked_child_removes_nothing(folder: Path) -> None:
    """It reads, and closes; the file goes when its parent ends, which here does not even close it."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, str(folder)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert (done.stdout, done.stderr) == ("still there\n", "")


# --- what was left, and what is in the way --------------------------------------------------------


def test_what_a_killed_run_left_is_used(folder: Path) -> None:
    """The next start of the same finds its samples."""
    source = Numbered(10)
    abandon(open_filled(source, folder))
    rows = SharedRows(content_of(source), folder=folder)
    assert rows.complete
    assert_same(rows.get(torch.arange(10)), source.read(np.arange(10)))
    rows.close()


def overwrite(offset: int, data: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    return change


@pytest.mark.parametrize(
    "change",
    [
        overwrite(0, b"something else"),
        overwrite(len(MAGIC), b"}"),
        lambda path: os.truncate(path, 5000),
        lambda path: os.truncate(path, 0),
        lambda path: os.truncate(path, path.stat().st_size + 1),
    ],
    ids=["magic", "content", "short", "empty", "long"],
)
def test_a_file_that_is_not_ours_is_made_anew(folder: Path, change: Callable[[Path], None]) -> None:
    """A wrong header or size: nothing in it is believed."""
    source = Numbered(10)
    change(abandon(open_filled(source, folder)))
    rows = SharedRows(content_of(source), folder=folder)
    assert not rows.held(np.arange(10)).any()
    rows.put(np.arange(10), source.read(np.arange(10)))
    assert_same(rows.get(torch.arange(10)), source.read(np.arange(10)))
    rows.close()


def test_what_another_version_left_is_removed(folder: Path) -> None:
    """At once, unless somebody has it open; another content of this version stays for its next start."""
    prefix = f"stoker-ram-{os.geteuid()}-"
    older = abandon(open_filled(Numbered(4), folder), f"{prefix}older")
    in_use = abandon(open_filled(Numbered(4), folder), f"{prefix}in-use")
    same = abandon(open_filled(Numbered(4, version="b"), folder))
    for path in (older, in_use):
        overwrite(0, b"stoker rows, format 0\n")(path)
    with in_use.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        rows = SharedRows(content_of(Numbered(4)), folder=folder)
        assert [path.exists() for path in (older, in_use, same)] == [False, True, True]
    left = sum(path.stat().st_blocks * 512 for path in (in_use, same))
    assert sweep(folder) == left
    assert list(folder.iterdir()) == [rows.path]
    rows.close()


@needs_root
def test_what_does_not_fit_is_told(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is used, never by a signal later; nothing is left behind. Alone, other memory is taken."""
    source = Numbered(100)
    with pytest.raises(NoRoom, match=r"2\d{6} bytes at .* has 1048576 bytes free"):
        SharedRows(content_of(source), folder=tiny)
    assert list(tiny.iterdir()) == []
    rows = SharedRows(content_of(source), folder=tiny, alone=True)
    assert "not shared: no memory to share" in rows.why
    rows.put(np.arange(100), source.read(np.arange(100)))
    assert_same(rows.get(torch.arange(100)), source.read(np.arange(100)))
    rows.close()
    monkeypatch.setattr(ram, "_free", lambda folder: 1 << 40)  # somebody takes the room meanwhile
    with pytest.raises(NoRoom, match="No space left"):
        SharedRows(content_of(source), folder=tiny)
    assert list(tiny.iterdir()) == []


@needs_root
def test_room_is_made_of_what_nobody_has_open(tiny: Path) -> None:
    """What a killed run left goes when there is no room beside it; what is in use stays."""
    held = open_filled(Numbered(10), tiny)
    left = abandon(open_filled(Numbered(15, version="b"), tiny))
    assert left.exists()
    rows = open_filled(Numbered(35, version="c"), tiny)
    assert not left.exists()
    assert_same(held.get(torch.arange(10)), Numbered(10).read(np.arange(10)))
    rows.close()
    held.close()


def test_what_one_run_left_is_removed_by_the_next(folder: Path) -> None:
    """Rows that are not reusable, once nobody has them open; whoever has them is left alone."""
    weak = [content_of(Numbered(4, version=version)) for version in ("b", "c")]
    killed = SharedRows(weak[0], folder=folder, reusable=False)
    shared = [SharedRows(weak[1], folder=folder, reusable=False) for _ in range(2)]
    shared[0].put(np.arange(4), Numbered(4, version="c").read(np.arange(4)))
    left = abandon(killed)
    rows = SharedRows(content_of(Numbered(4)), folder=folder)
    assert not left.exists()
    assert path_of(shared[1]).exists()
    assert_same(shared[1].get(torch.arange(4)), Numbered(4, version="c").read(np.arange(4)))
    for one in (rows, *shared):
        one.close()


def test_what_is_not_reusable_is_not_gone_on_with(folder: Path) -> None:
    """Rows that a killed run left under the same name are not believed: it is made anew."""
    source = Numbered(10)
    rows = SharedRows(content_of(source), folder=folder, reusable=False)
    rows.put(np.arange(10), source.read(np.arange(10)))
    abandon(rows)
    rows = SharedRows(content_of(source), folder=folder, reusable=False)
    assert not rows.held(np.arange(10)).any()
    rows.close()


@pytest.mark.parametrize("left", [10_000, 50])
def test_a_header_is_whole_or_there_is_no_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """The system takes 7 bytes at a time, to the end or not: nobody finds a file that never gets whole."""
    plain, room = os.pwritev, [left]

    def pwritev(file: int, parts: list[memoryview], offset: int) -> int:
        done = plain(file, [parts[0][: min(7, room[0])]], offset)
        room[0] -= done
        return done

    monkeypatch.setattr(os, "pwritev", pwritev)
    content = content_of(Numbered(3))
    if left == 50:
        with pytest.raises(NoRoom, match="nothing could be written"):
            SharedRows(content, folder=folder, patience_s=0)
    else:
        SharedRows(content, folder=folder, patience_s=0).close()


def test_there_is_no_such_folder(tmp_path: Path) -> None:
    """The same as no room."""
    with pytest.raises(NoRoom, match="No such file or directory"):
        SharedRows(content_of(Numbered(3)), folder=tmp_path / "none")
    rows = SharedRows(content_of(Numbered(3)), folder=tmp_path / "none", alone=True)
    assert (rows.path, rows.complete) == (None, False)
    rows.close()


def test_what_is_no_file_is_left_alone(folder: Path) -> None:
    """A link or a folder of that name is neither followed nor removed."""
    content = content_of(Numbered(3))
    path = folder / Places.of(content).name
    path.symlink_to(folder / "elsewhere")
    with pytest.raises(NoRoom, match="symbolic links"):
        SharedRows(content, folder=folder)
    path.unlink()
    path.mkdir()
    with pytest.raises(NoRoom, match="directory"):
        SharedRows(content, folder=folder)
    path.rmdir()


@needs_root
def test_somebody_elses_file_is_not_believed(folder: Path) -> None:
    """Anyone can put a file of that name into a folder that all may write to."""
    path = abandon(open_filled(Numbered(3), folder))
    os.chown(path, 12345, 12345)
    with pytest.raises(NoRoom, match="but of 12345"):
        SharedRows(content_of(Numbered(3)), folder=folder)
    path.unlink()


def test_patience_ends(folder: Path) -> None:
    """A process that is stopped while it makes the file does not stop the others for ever."""
    content = content_of(Numbered(3))
    path = folder / Places.of(content).name
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(NoRoom, match="another process makes"):
            SharedRows(content, folder=folder, patience_s=0.05)
    path.unlink()
