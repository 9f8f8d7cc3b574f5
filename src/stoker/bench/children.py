"""Child processes that measure: started alone, told on, ended with everything they started."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from stoker.errors import BenchFailed

_TAIL = 2000
_GRACE_S = 10.0


def say(text: str) -> None:
    """Tell how far a benchmark has come."""
    sys.stderr.write(f"stoker bench: {text}\n")
    sys.stderr.flush()


def run_child(
    command: Sequence[str | Path],
    *,
    what: str,
    log: Path,
    timeout: float,
    env: Mapping[str, str] | None = None,
    told: bool = False,
) -> float:
    """Run a command to its end and return the seconds it took.

    Its output goes to `log`; with `told`, its stderr is passed on as it comes.
    """
    say(what)
    began = time.monotonic()
    with log.open("wb") as output:
        child = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if told else output,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            start_new_session=True,
        )
        try:
            code = child.wait(timeout)
        except subprocess.TimeoutExpired:
            raise BenchFailed(f"{what}: no end after {timeout:.0f} s{_tail(log)}") from None
        finally:
            _end(child)
    if code:
        raise BenchFailed(f"{what}: the child ended with code {code}{_tail(log)}")
    return time.monotonic() - began


class StayingChild:
    """A child that measures whenever it is told to, and sleeps in between: so many can take turns.

    It is told by a line of JSON on its stdin and answers with one on its stdout; the first line that it
    writes says that it is ready. What else it says goes to `log`.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        what: str,
        log: Path,
        patience_s: float,
        env: Mapping[str, str] | None = None,
    ) -> None:
        say(what)
        self._what, self._log, self._patience = what, log, patience_s
        with log.open("wb") as output:
            self._child = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        try:
            self.ready = self._answer()
        except BaseException:
            self.close()
            raise

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Have it measure once."""
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone: told below, with what it said
            self._child.stdin.write(json.dumps(question).encode() + b"\n")
            self._child.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        # Nothing of an earlier answer can be waiting in the buffer: one question, one line.
        there, _, _ = select.select([self._child.stdout], [], [], self._patience)
        if not there:
            raise BenchFailed(f"{self._what}: no answer after {self._patience:.0f} s{_tail(self._log)}")
        line = self._child.stdout.readline()
        if not line:
            code = self._child.wait()
            raise BenchFailed(f"{self._what}: the child ended with code {code}{_tail(self._log)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def pause(self) -> None:
        """Stop it and whatever it has started, wherever they are, so that others have the cores."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._child.poll() is None:  # waited for, its number may be somebody else's by now
            os.killpg(self._child.pid, number)

    def close(self) -> None:
        """End it: it is asked to, by the end of its stdin, and killed where it does not."""
        if hasattr(signal, "SIGCONT"):
            self.resume()
        pipes = (self._child.stdin, self._child.stdout)
        assert pipes[0] is not None and pipes[1] is not None
        with contextlib.suppress(BrokenPipeError):
            pipes[0].close()
        # Killed at once, workers and libraries would leave their shared memory behind.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_GRACE_S)
        _end(self._child)
        pipes[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child's session, and what it started in sessions of its own."""
    if child.poll() is not None:  # waited for: its number may be somebody else's by now
        return
    below: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        below = psutil.Process(child.pid).children(recursive=True)
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL) if hasattr(os, "killpg") else child.kill()
    child.wait()
    for process in below:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _tail(log: Path) -> str:
    text = log.read_text(errors="replace").strip()[-_TAIL:]
    return f"; it said:\n{text}" if text else ""


def free_port() -> int:
    """A TCP port that nobody holds now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
