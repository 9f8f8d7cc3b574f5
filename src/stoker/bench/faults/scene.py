"""Where a trial is held: a folder of its own, chance from a seed, and the processes that it starts.

Every process carries the scene's mark in its environment, and hands it on: what still runs when a trial is
over is found by it, in whatever session it is and whoever its parent is.
"""

import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from stoker.bench.faults.judge import Ended, Speaks
from stoker.bench.faults.services import Services
from stoker.feed.whole_file import PART

SCRIPTS = Path(__file__).parent / "scripts"
_SOURCE = Path(__file__).parents[3]
_MARK = "STOKER_FAULTS_MARK"
# A hang is nothing that has not ended after so long, on a machine that others use too.
PATIENCE_S = 240.0
# The process that writes a record looks every two seconds whether the one it writes for is there still.
_GRACE_S = 10.0
_LOOK_S = 0.005
# Processes that track what others made, or start them.
_NOT_AT_WORK = ("resource_tracker", "torch.distributed.run")
_SHM = Path("/dev/shm")
_TAIL_BYTES = 1 << 16
# Names in the folder for temporary files, and in shared memory, that are ours or made on our behalf.
_OURS = ("stoker", PART, "torch_", "psm_", "sem.")


class Fell(Exception):
    """Something of Stoker's that was to be there ended: a trial that cannot go on is judged by that."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended.said)
        self.ended = ended


class Child:
    """A process of a scene. What it says goes to files: a pipe that nobody reads would hold it up."""

    def __init__(
        self,
        words: Sequence[str | Path],
        *,
        folder: Path,
        cwd: Path,
        env: Mapping[str, str],
        patience_s: float,
    ) -> None:
        self._out, self._err = folder / "stdout.txt", folder / "stderr.txt"
        self._patience = patience_s
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [os.fspath(word) for word in words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=cwd,
                env=dict(env),
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def said(self) -> str:
        """The end of what it wrote to stderr."""
        return _tail(self._err)

    @property
    def told(self) -> str:
        """The end of what it wrote to stdout."""
        return _tail(self._out)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def kill(self) -> bool:
        """SIGKILL for it alone; whether that was its end."""
        if not self.is_over:
            os.kill(self.pid, signal.SIGKILL)
        return self._process.wait() == -signal.SIGKILL

    def kill_all(self) -> bool:
        """SIGKILL for its whole process group."""
        if not self.is_over:
            os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait() == -signal.SIGKILL

    def send(self, number: signal.Signals) -> None:
        """A signal for it alone."""
        if not self.is_over:
            os.kill(self.pid, number)

    def below(self, word: str) -> list[psutil.Process]:
        """The processes that it started, at any depth, with this word in their command; no launchers."""
        found = []
        try:
            for one in psutil.Process(self.pid).children(recursive=True):
                line = " ".join(one.cmdline())
                if word in line and not any(other in line for other in _NOT_AT_WORK):
                    found.append(one)
        except psutil.Error:
            return []  # it ended meanwhile
        return found

    def wait(self) -> int | None:
        """Its exit code; None where it did not end in time, and is killed."""
        try:
            return self._process.wait(self._patience)
        except subprocess.TimeoutExpired:
            self.kill_all()
            return None

    def ended(self, *, speaks: Speaks = "verb", own: str = "", names: str = "") -> Ended:
        """Its end, awaited, to be judged."""
        code = self.wait()
        return Ended(code=code, said=self.said, speaks=speaks, own=own, names=names)

    def merely_ended(self) -> Ended:
        """That it came to an end at all: how is not Stoker's to say."""
        return Ended(code=None if self.wait() is None else 0, said="")


class Scene:
    """One trial's place. Leaving it ends what still runs, and removes the folder."""

    def __init__(self, folder: Path, seed: str, services: Services) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.services = services
        self.patience_s = PATIENCE_S
        self._mark = secrets.token_hex(8)
        self._started = 0
        self.tmp = folder / "t"
        self.tmp.mkdir(parents=True)
        self._shm_before = _names(_SHM)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._marked():
            _kill(process)
        for name in self._shm_left():
            (_SHM / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- processes --------------------------------------------------------------------------------

    def start(
        self,
        *words: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> Child:
        """Start a command; `prefix` comes before it (a control group, a namespace)."""
        folder = self.folder / f"child-{self._started}"
        folder.mkdir()
        self._started += 1
        return Child(
            [*prefix, *words],
            folder=folder,
            cwd=cwd or self.folder,
            env={**self.environment(), **(env or {})},
            patience_s=self.patience_s,
        )

    def stoker(
        self,
        *words: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> Child:
        """Start a verb of Stoker's, as a user does."""
        return self.start(sys.executable, "-m", "stoker", *words, cwd=cwd, env=env, prefix=prefix)

    def environment(self) -> dict[str, str]:
        """What every process of the scene gets: few threads, temporary files here, the mark."""
        path = os.pathsep.join([str(_SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])])
        own = {"PYTHONPATH": path, "TMPDIR": str(self.tmp), "OMP_NUM_THREADS": "1", _MARK: self._mark}
        return {**os.environ, **own, "PYTHONUNBUFFERED": "1"}

    def marked(self, word: str) -> list[psutil.Process]:
        """Living processes of this scene, with this word in their command."""
        found = []
        for process in self._marked():
            try:
                if word in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue  # it ended meanwhile
        return found

    def kill_one(self, processes: Sequence[psutil.Process]) -> bool:
        """SIGKILL for one of these, by chance; False where there is none any more."""
        if not processes:
            return False
        try:
            self.random.choice(processes).kill()
        except psutil.NoSuchProcess:
            return False
        return True

    # --- moments ----------------------------------------------------------------------------------

    def until(self, is_there: Callable[[], bool], *children: Child, every_s: float = _LOOK_S) -> bool:
        """Wait until something is there; False where a child ended, or patience did, before it."""
        deadline = time.monotonic() + self.patience_s
        while not is_there():
            if any(child.is_over for child in children) or time.monotonic() > deadline:
                return is_there()
            time.sleep(every_s)
        return True

    def pause(self, most_s: float) -> None:
        """Let some time pass, up to so much: the moment itself is drawn."""
        time.sleep(self.random.uniform(0, most_s))

    # --- what is left -----------------------------------------------------------------------------

    def left(self) -> tuple[str, ...]:
        """Processes, temporary files and shared memory that a trial left; those that go need a moment."""
        deadline = time.monotonic() + _GRACE_S
        while (running := self._marked()) and time.monotonic() < deadline:
            time.sleep(0.05)
        found = [f"process {one.pid} ({_told(one)})" for one in running]
        found += [f"/dev/shm/{name}" for name in self._shm_left()]
        found += [f"temporary {name}" for name in sorted(_names(self.tmp)) if name.startswith(_OURS)]
        return tuple(found)

    def _shm_left(self) -> list[str]:
        return sorted(name for name in _names(_SHM) - self._shm_before if name.startswith(_OURS))

    def _marked(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue  # gone, or not ours to look into
        return found


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
        process.wait(_GRACE_S)
    except psutil.Error:
        pass  # it ended meanwhile, or stands in the kernel: then the trial has told of it


def _told(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[-120:]
    except psutil.Error:
        return "gone since"


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return file.read().decode(errors="replace")
