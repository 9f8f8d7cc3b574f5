"""A process by its number and its birth, so that another with the same number is never taken for it."""

import os
import signal
import socket
import time
from dataclasses import dataclass

import psutil

# A killed process dies when the kernel next runs it; one that waits for a device, when that answers.
_DEATH_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One process on one machine, and the cards that were given to it."""

    host: str
    pid: int
    born: float
    gpus: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.host}/{self.pid}/{self.born:.2f}/{','.join(self.gpus)}"

    @classmethod
    def parse(cls, text: str) -> "Identity":
        """What `str` told."""
        host, pid, born, gpus = text.rsplit("/", 3)
        return cls(host=host, pid=int(pid), born=float(born), gpus=tuple(gpus.split(",")) if gpus else ())

    @classmethod
    def of(cls, pid: int, gpus: tuple[str, ...] = ()) -> "Identity":
        """A process that is there now; psutil.NoSuchProcess."""
        return cls(host=socket.gethostname(), pid=pid, born=psutil.Process(pid).create_time(), gpus=gpus)

    @property
    def is_here(self) -> bool:
        """Whether it is of this machine."""
        return self.host == socket.gethostname()

    def lives(self) -> bool:
        """Whether it is still there; one that nobody waited for yet is not."""
        try:
            process = psutil.Process(self.pid)
            # As many digits as are told: the kernel counts in hundredths.
            return abs(process.create_time() - self.born) < 0.02 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def ask_to_end(self) -> None:
        """Send SIGTERM; nothing happens where it is gone."""
        if self.lives():
            try:
                os.kill(self.pid, signal.SIGTERM)
            except ProcessLookupError:
                pass  # it ended meanwhile

    def kill_session(self) -> None:
        """Kill it and all that it started in its session, whether it lives or not; they are dead then."""
        killed = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.pid and process.create_time() >= self.born - 0.02:
                    process.kill()
                    killed.append(process)
            except (psutil.NoSuchProcess, ProcessLookupError, PermissionError):
                pass  # it ended meanwhile, or is not ours and so not its
        deadline = time.monotonic() + _DEATH_S
        while any(_is_alive(process) for process in killed) and time.monotonic() < deadline:
            time.sleep(0.01)


def _is_alive(process: psutil.Process) -> bool:
    """Whether it may still write; one that is only waited for by its parent may not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
