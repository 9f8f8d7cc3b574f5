"""Child processes that measure: started alone, told on, ended with everything they started."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from stoker.errors import BenchFailed

_TAIL = 2000


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
