"""The caller's side of a scratch run: start it, hear it, end it, have its result.

with scratch.start(plan) as running:
    for message in running:
        print(message.kind, message.body)
print(running.result().outcome)
"""

import contextlib
import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from stoker.errors import ScratchFailed
from stoker.scratch import plan_file
from stoker.scratch.values import Message, Plan, Result, Shield, is_posix
from stoker.watch.script import find_script

_PREFIX = "stoker-scratch-"
_LOCK = "lock"
_SUPERVISOR = Path(__file__).with_name("supervisor.py")
# Ending takes milliseconds; a process that hangs in the kernel is given 10 s by the supervisor.
_END_WITHIN_S = 30.0
_YOUNG_S = 3600.0


def run(plan: Plan, on_message: Callable[[Message], None] | None = None) -> Result:
    """Run a plan to its end. What the script does is in the result; only wrong use raises."""
    with start(plan) as running:
        for message in running:
            if on_message is not None:
                on_message(message)
        return running.result()


def start(plan: Plan) -> "Running":
    """Start a plan's run; the script may not have begun when this returns."""
    if not is_posix():
        raise ScratchFailed(f"a scratch run needs Linux or macOS; this is {sys.platform}")
    if plan.command[0] != "-m":
        find_script(plan.command[0], [])  # raises at once where there is none
    _sweep()
    work = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        return Running(plan, work)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


class Running:
    """A scratch run under way. Leaving the context ends it."""

    def __init__(self, plan: Plan, work: Path) -> None:
        self._work = work
        self._messages: list[Message] = []
        self._result: Result | None = None
        self._began = time.monotonic()
        (work / "root").mkdir()
        plan_file.save(plan, work)
        for folder in plan.writable:
            folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(work / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._complaint = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the run)
        self._process = subprocess.Popen(
            [sys.executable, str(_SUPERVISOR), str(work), str(lock)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaint,
            # The supervisor holds the lock as long as it lives: its folder is in use.
            pass_fds=(lock,),
            # Ctrl-C in the caller's terminal is for the caller, who then ends the run.
            start_new_session=True,
        )
        os.close(lock)

    def __enter__(self) -> "Running":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self.result()

    def __iter__(self) -> Iterator[Message]:
        """The messages as they come, until the run has ended."""
        assert self._process.stdout is not None
        while self._result is None:
            line = self._process.stdout.readline()
            if not line:
                self._result = self._lost()
                break
            words = json.loads(line)
            if words["kind"] == "result":
                self._result = self._made(words["body"])
                break
            message = Message(kind=words["kind"], body=words["body"], at=words["at"], rank=words["rank"])
            self._messages.append(message)
            yield message
        self._close()

    @property
    def pid(self) -> int:
        """The supervisor's number; every process of the run is below it."""
        return self._process.pid

    def end(self) -> None:
        """Ask for the end, now. Nothing of the script runs after it."""
        if self._result is not None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(b"end\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended already

    def result(self) -> Result:
        """Wait for the end and say what came of the run."""
        for _ in self:
            pass
        assert self._result is not None
        return self._result

    def _close(self) -> None:
        if self._process.stdin is None or self._process.stdin.closed:
            return
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # "end" was still on its way to a supervisor that had ended
        self._process.wait(timeout=_END_WITHIN_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._complaint.close()
        shutil.rmtree(self._work, ignore_errors=True)

    def _made(self, body: dict[str, Any]) -> Result:
        shield = None if body["shield"] is None else Shield(**body["shield"])
        left = tuple(body["left"])
        return Result(**{**body, "shield": shield, "left": left, "messages": tuple(self._messages)})

    def _lost(self) -> Result:
        """The supervisor is gone without a word; with it, by the kernel's doing, the whole run."""
        code = self._process.wait(timeout=_END_WITHIN_S)
        self._complaint.seek(0)
        told = self._complaint.read().decode(errors="replace").strip()
        if code >= 0:
            raise ScratchFailed(
                f"the supervisor of the scratch run ended with code {code}: {told or 'no word'}"
            )
        steps = [message.body["step"] for message in self._messages if message.kind == "progress"]
        return Result(
            outcome="crashed",
            reason=f"its supervisor was killed by signal {-code}",
            signal=-code,
            seconds=time.monotonic() - self._began,
            steps=steps[-1] if steps else None,
            messages=tuple(self._messages),
        )


def _sweep() -> None:
    """Remove the folders of runs whose caller and supervisor were both killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue  # others may put anything there, links too
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            # Being made at this moment, or by one that was killed just then; or gone meanwhile.
            with contextlib.suppress(FileNotFoundError):
                if time.time() - folder.lstat().st_mtime > _YOUNG_S:
                    shutil.rmtree(folder, ignore_errors=True)
            continue
        except OSError:
            continue  # no lock of ours
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass  # in use
        finally:
            os.close(lock)
