"""On a node: commands as child processes, and what they print kept until it was heard.

Whoever asks may be cut off and ask again, so that an answer can be lost: a command has a number and is
started once, and printed bytes are given out again until it is said that they have arrived. A node that is
cut off for good does not know that its work was given to another; so commands that nobody asked after for a
minute are killed. (Ray gives up a node that does not answer after about as long. Left to Ray, a command on
a host that was cut off ran on for 138 s.)
"""

import contextlib
import fcntl
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import psutil

from stoker import __version__
from stoker.cluster.nodes import Heard, Look, Order

# Printed and not heard yet: a command that prints more waits until it is.
_MOST_BYTES = 1 << 20
_CHUNK = 1 << 16
# As a shell tells of a command that cannot be started.
_NOT_STARTED = 127
_DEATH_S = 10.0
# They are asked after several times a second.
UNHEARD_S = 60.0
# In place of a digest.
FOLDER = "folder"


class Charge:
    """What a cluster runs on one of its nodes."""

    def __init__(self, unheard_s: float = UNHEARD_S) -> None:
        self._number = 0
        self._children: list[_Child] = []
        self._unheard_s = unheard_s
        self._asked = time.monotonic()
        # Children are bound to the thread that starts them: that is Ray's, and this one only ends them.
        self._lock = threading.Lock()
        threading.Thread(target=self._end_unheard, name="stoker-unheard", daemon=True).start()

    def look(self, address: str, files: Sequence[str]) -> Look:
        """What is true here, seen from a node whose address is this."""
        return Look(
            version=__version__,
            host=socket.gethostname(),
            interface=_interface_of(address),
            port=_free_port(address),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            digests={path: digest_of(Path(path)) for path in files},
        )

    def put(self, path: str, text: str | None) -> str:
        """Write a small file to a folder that is there, or remove one; what is wrong, or nothing."""
        place = Path(path)
        try:
            if text is None:
                place.unlink(missing_ok=True)
            else:
                place.write_text(text)
        except OSError as error:
            return f"{path}: {error.strerror or error}"
        return ""

    def start(self, number: int, orders: Sequence[Order]) -> None:
        """Start these commands, unless they were under this number; earlier ones are killed."""
        self._asked = time.monotonic()
        if number <= self._number:
            return
        self.stop()
        self._number = number
        with self._lock:
            self._children = [_Child(order) for order in orders]

    def hear(self, number: int, seen: Sequence[tuple[int, int]]) -> list[Heard]:
        """What each of these commands printed after the bytes that were `seen`; none where not started."""
        self._asked = time.monotonic()
        if number != self._number:
            return []
        return [child.hear(*after) for child, after in zip(self._children, seen, strict=True)]

    def signal(self, number: int) -> None:
        """Send all commands a signal."""
        for child in self._children:
            child.signal(number)

    def stop(self) -> None:
        """Kill what runs."""
        with self._lock:
            for child in self._children:
                child.end()
            self._children = []

    def _end_unheard(self) -> None:
        while True:
            time.sleep(self._unheard_s / 10)
            if time.monotonic() - self._asked > self._unheard_s:
                with self._lock:
                    for child in self._children:
                        child.kill()


class _Child:
    """One command."""

    def __init__(self, order: Order) -> None:
        over = {**os.environ, **order.env}
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stoker.cluster.tether", str(os.getpid()), *order.words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=order.cwd,
                env={name: value for name, value in over.items() if value is not None},
                start_new_session=True,
            )
        except OSError as error:
            told = f"stoker: {error.filename or sys.executable}: {error.strerror or error}\n"
            self._out, self._err = _Stream(None), _Stream(None, told.encode())
        else:
            self._out, self._err = _Stream(self._process.stdout), _Stream(self._process.stderr)

    def hear(self, out: int, err: int) -> Heard:
        # Asked first: all that an ended process printed is in its pipes.
        code = _NOT_STARTED if self._process is None else self._process.poll()
        printed, out_dry = self._out.read(out)
        complained, err_dry = self._err.read(err)
        return Heard(out=printed, err=complained, code=code if out_dry and err_dry else None)

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """All of its session; what it printed can still be heard."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=_DEATH_S)

    def end(self) -> None:
        self.kill()
        self._out.close()
        self._err.close()


class _Stream:
    """A pipe's bytes, kept until they are said to have arrived."""

    def __init__(self, file: IO[bytes] | None, text: bytes = b"") -> None:
        self._file = file
        self._kept = bytearray(text)
        self._from = 0
        if file is not None:
            os.set_blocking(file.fileno(), False)
            # What fits into the pipe is printed without waiting, also while nobody can ask. A user who has
            # many of them gets no larger ones.
            with contextlib.suppress(PermissionError):
                if hasattr(fcntl, "F_SETPIPE_SZ"):
                    fcntl.fcntl(file, fcntl.F_SETPIPE_SZ, _MOST_BYTES)

    def read(self, seen: int) -> tuple[bytes, bool]:
        """What came after so many bytes, and whether there is nothing more now."""
        del self._kept[: seen - self._from]
        self._from = seen
        while self._file is not None and len(self._kept) < _MOST_BYTES:
            try:
                chunk = os.read(self._file.fileno(), _CHUNK)
            except BlockingIOError:
                return bytes(self._kept), True
            if not chunk:
                self.close()
            self._kept += chunk
        return bytes(self._kept), self._file is None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def digest_of(path: Path) -> str | None:
    """The SHA-256 of a file, or that it is a folder; None where there is none that can be read."""
    try:
        if path.is_dir():
            return FOLDER
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _interface_of(address: str) -> str | None:
    """Which network interface has an address: gloo takes that of the host's name, which may be loopback."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            return name
    return None


def _free_port(address: str) -> int | None:
    """A port that can be listened on; None where the address is not this machine's own, as behind a NAT."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.create_server((address, 0), family=family) as taken:
            return int(taken.getsockname()[1])
    except OSError:
        return None
