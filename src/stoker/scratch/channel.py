"""JSON lines from the script's process to the supervisor, over a FIFO in a folder of ours.

A FIFO and not an inherited pipe: a script that closes every descriptor (daemons do) loses the pipe for
good, while the FIFO is opened again by its path. What it replaces as stdout or stderr does not matter.
"""

import fcntl
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "channel"


class Sender:
    """The script's end. Only the process that made it sends; a forked worker's calls do nothing.

    Of several ranks each has its own; a line is written under a lock, since only short ones are whole
    by themselves.
    """

    def __init__(self, folder: Path, *, rank: int = 0) -> None:
        self.rank = rank
        self.folder = folder
        self._path = folder / NAME
        self._pid = os.getpid()
        # Taken from the user's threads as well as the training thread.
        self._lock = threading.Lock()
        self._number, self._identity = self._open()

    def send(self, kind: str, body: Mapping[str, Any]) -> None:
        """Send one message; returns when the supervisor can have it."""
        if os.getpid() != self._pid:
            return
        line = json.dumps({"kind": kind, "body": dict(body), "rank": self.rank}).encode() + b"\n"
        with self._lock:
            if not self._is_ours():
                self._number, self._identity = self._open()
            fcntl.flock(self._number, fcntl.LOCK_EX)
            try:
                view = memoryview(line)
                while view:
                    view = view[os.write(self._number, view) :]
            finally:
                fcntl.flock(self._number, fcntl.LOCK_UN)

    def close(self) -> None:
        """Send no more, and hold no lock: this process is about to stop."""
        self._lock.acquire()

    def _open(self) -> tuple[int, tuple[int, int]]:
        number = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        found = os.fstat(number)
        return number, (found.st_dev, found.st_ino)

    def _is_ours(self) -> bool:
        """Whether the descriptor is still the FIFO: closed ones are given out again, to other files."""
        try:
            found = os.fstat(self._number)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity


class Receiver:
    """The supervisor's end. Holds the FIFO open for writing too, so it never reads end-of-file."""

    def __init__(self, folder: Path) -> None:
        path = folder / NAME
        os.mkfifo(path, 0o600)
        self.number = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._rest = b""

    def receive(self) -> list[dict[str, Any]]:
        """The messages that have come in whole since the last call."""
        chunks = [self._rest]
        while True:
            try:
                chunks.append(os.read(self.number, 1 << 16))
            except BlockingIOError:
                break
        *lines, self._rest = b"".join(chunks).split(b"\n")
        return [json.loads(line) for line in lines]
