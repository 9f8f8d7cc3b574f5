"""200 trials that run out of memory, hang, crash, fail or fill /dev/shm: the search ends, with the truth."""

import json
import os
import random
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from test_search import STARVED

from stoker.doctor.verdict import reach
from stoker.scratch import Guards
from stoker.tune.ledger import Ledger
from stoker.tune.meaning import Probe, take
from stoker.tune.search import Search
from stoker.tune.trial import Trial, hold
from stoker.tune.tuner import Tuner

WORKERS, AHEAD = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), (1, 2, 4, 8, 16)
MODES = ("memory", "hang", "signal", "shm", "fail")
SAYS = {"memory": "stopped", "hang": "hung", "signal": "crashed", "shm": "stopped", "fail": "failed"}
SCRIPT = """
    import json, os, sys, time, torch
    from torch.utils.data import DataLoader, Dataset

    class Numbers(Dataset):
        def __len__(self):
            return 4000
        def __getitem__(self, at):
            time.sleep(0.0005)
            return torch.full((4,), at / 4000)

    def main():
        modes = json.loads(sys.argv[1])
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = DataLoader(Numbers(), batch_size=8, shuffle=True, num_workers=1)
        hoard = []
        for number, batch in enumerate(loader):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            mode = modes[f"{loader.num_workers} {loader.prefetch_factor}"] if number > 25 else "run"
            if mode == "memory":
                hoard.append(torch.ones(16 << 20))
            elif mode == "hang":
                time.sleep(1e6)
            elif mode == "signal":
                os.kill(os.getpid(), 11)
            elif mode == "fail":
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
            elif mode == "shm":
                with open(f"/dev/shm/campaign-{number}", "wb") as file:
                    file.write(bytes(32 << 20))

    main()
"""


def key(num_workers: int = 1, prefetch_factor: int = 2) -> str:
    """By what a loader has, how a trial goes wrong; the script as it is has this."""
    return f"{num_workers} {prefetch_factor}"


# In the environment of every process that the campaign starts, and of those that these start.
TOKEN = "STOKER_CAMPAIGN"
SHM, CGROUPS = Path("/dev/shm"), Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What may be left behind on a machine, and was there before: files in memory, segments, control groups.

    How much memory is free is no measure of it: other work takes some and gives it back. What no process
    holds, no file in memory, no segment and no control group has, is free.
    """

    shm: frozenset[str]
    segments: frozenset[str]
    groups: frozenset[str]

    @classmethod
    def read(cls) -> "Machine":
        """As it is now; what a living process holds is in use, and not left."""
        held = _held_in_memory()
        return cls(
            shm=frozenset(path.name for path in SHM.iterdir() if str(path) not in held),
            segments=frozenset(_segments()),
            groups=frozenset(str(path) for path in CGROUPS.glob("**/") if _is_empty(path)),
        )

    def since(self, before: "Machine") -> list[str]:
        """What is there now and was not before."""
        return [
            *(f"{SHM}/{name}" for name in sorted(self.shm - before.shm)),
            *(f"segment {name}" for name in sorted(self.segments - before.segments)),
            *(f"control group {name}" for name in sorted(self.groups - before.groups)),
        ]


def left_behind(temporary: Path) -> list[str]:
    """Processes, shared memory and folders of ours."""
    mark = f"{TOKEN}={os.environ[TOKEN]}".encode()
    ours = [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if mark in _bytes(path)]
    return [
        *(f"process {pid}" for pid in ours if int(pid) != os.getpid()),
        *(str(path) for path in SHM.glob("campaign-*")),
        *(str(path) for path in temporary.iterdir()),
    ]


def _bytes(path: Path) -> bytes:
    """Of a process that may be gone, or another user's."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _held_in_memory() -> set[str]:
    """The files in shared memory that a living process has mapped or open."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        maps = _bytes(process / "maps").decode(errors="replace").splitlines()
        found |= {line.split(maxsplit=5)[5] for line in maps if f" {SHM}/" in line}
        with suppress(OSError):
            found |= {_link(one) for one in (process / "fd").iterdir()}
    return found


def _link(path: Path) -> str:
    """Where it leads; nowhere, where it was closed meanwhile."""
    with suppress(OSError):
        return str(path.readlink())
    return ""


def _segments() -> list[str]:
    """System V's, that no process is attached to."""
    rows = [line.split() for line in _bytes(Path("/proc/sysvipc/shm")).decode().splitlines()[1:]]
    return [row[1] for row in rows if row[6] == "0"]


def _is_empty(group: Path) -> bool:
    return (group / "cgroup.procs").exists() and not _bytes(group / "cgroup.procs").strip()


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_hundred_trials_that_go_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every search returns only what ran, says how each other trial ended, and leaves nothing behind."""
    draw = random.Random(5)
    temporary = Path(tempfile.mkdtemp(prefix="t-"))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    path = tmp_path / "wrong_turns.py"
    path.write_text(textwrap.dedent(SCRIPT))
    monkeypatch.setenv(TOKEN, tmp_path.name + str(os.getpid()))
    before, held_here = Machine.read(), psutil.Process().memory_info().rss
    wrong: Counter[str] = Counter()
    number = 0
    while wrong.total() < int(os.environ.get("STOKER_WRONG_TRIALS", "200")):
        number += 1
        modes = {key(w, ahead): draw.choice((*MODES, "run")) for w in WORKERS for ahead in AHEAD}
        modes[key()] = "run"
        command = [str(path), json.dumps(modes)]

        def held(
            settings: Mapping[str, Any], folder: Path, left: float, command: list[str] = command
        ) -> Trial:
            guards = Guards(ram_bytes=2 << 30, shm_headroom_bytes=_shm_free() - (1 << 30))
            return hold(command, settings, folder=folder, seconds=0.2, idle=4.0, guards=guards)

        def probed(
            settings: Mapping[str, Any], seed: int, dropout: bool, command: list[str] = command
        ) -> Probe:
            return take(command, settings, seed=seed, steps=8, dropout=dropout)

        found = Tuner(
            search=Search(verdict=reach(STARVED), run=STARVED, kinds=frozenset({"same"}), finds="workers"),
            ledger=Ledger.begin(tmp_path / f"search{number}", {"command": command}),
            hold=held,
            probe=probed,
            deadline=time.monotonic() + 120,
            ceiling=None,
            tell=lambda text: None,
        ).find()
        for one in found.tried:
            mode = modes[key(**one.settings)]
            if mode in SAYS:
                wrong[mode] += 1
                assert one.outcome in ("broken", "guarded"), (mode, one)
                assert one.reason.split(":")[0] == SAYS[mode], (mode, one)
        assert modes[key(**found.settings)] == "run", found
        assert left_behind(temporary) == []
        print(f"{wrong.total()} trials went wrong in {number} searches: {dict(wrong)}", flush=True)
    assert set(wrong) == set(MODES) or wrong.total() < len(MODES)
    assert psutil.Process().children(recursive=True) == []
    assert psutil.Process().memory_info().rss < held_here + (200 << 20)
    assert Machine.read().since(before) == []
    temporary.rmdir()


def _shm_free() -> int:
    return psutil.disk_usage("/dev/shm").free


def test_what_is_left_behind_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process, a file in shared memory that none holds, a folder: each is named, and gone it is not."""
    monkeypatch.setenv(TOKEN, "found")
    before = Machine.read()
    assert left_behind(tmp_path) == []
    (tmp_path / "folder").mkdir()
    orphan = SHM / f"orphan-{os.getpid()}"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        while not left_behind(tmp_path)[1:]:  # it is this one, until it has its own environment
            assert process.poll() is None
        assert left_behind(tmp_path) == [f"process {process.pid}", str(tmp_path / "folder")]
        orphan.write_bytes(b"left")
        try:
            assert str(orphan) in Machine.read().since(before)
            with orphan.open():
                assert str(orphan) not in Machine.read().since(before)
        finally:
            orphan.unlink()
    assert str(orphan) not in Machine.read().since(before)
    assert left_behind(tmp_path) == [str(tmp_path / "folder")]
