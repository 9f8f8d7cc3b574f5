"""A process by its number and its birth, so that another with the same number is never taken for it.

On Linux a birth is the kernel's own count of ticks since the boot, and which boot that was: the time of day
that others tell of it moves when the clock is set.
"""

import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

# A killed process dies when the kernel next runs it; one that waits for a device, when that answers.
_DEATH_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One process on one machine, and the cards that were given to it."""

    host: str
    pid: int
    # In ticks since the boot that is named; where none is, as off Linux, in seconds since 1970.
    born: float
    boot: str = ""
    gpus: tuple[str, ...] = ()

    def __str__(self) -> str:
        born = f"{self.boot}:{self.born:.0f}" if self.boot else f"{self.born:.2f}"
        return f"{self.host}/{self.pid}/{born}/{','.join(self.gpus)}"

    @classmethod
    def parse(cls, text: str) -> "Identity":
        """What `str` told."""
        host, pid, birth, gpus = text.rsplit("/", 3)
        boot, _, born = birth.rpartition(":")
        cards = tuple(gpus.split(",")) if gpus else ()
        return cls(host=host, pid=int(pid), born=float(born), boot=boot, gpus=cards)

    @classmethod
    def of(cls, pid: int, gpus: tuple[str, ...] = ()) -> "Identity":
        """A process that is there now; psutil.NoSuchProcess."""
        boot = _read_boot()
        return cls(host=socket.gethostname(), pid=pid, born=_read_birth(pid, boot), boot=boot, gpus=gpus)

    @property
    def is_here(self) -> bool:
        """Whether it is of this machine."""
        return self.host == socket.gethostname()

    def lives(self) -> bool:
        """Whether it is still there; one that nobody waited for yet is not."""
        try:
            return self._is_of_this_boot and self._is_born_with(self.pid) and not _is_zombie(self.pid)
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
        deadline = time.monotonic() + _DEATH_S
        # Again until none is left: one of them may have started another before it died.
        while (found := self._session()) and time.monotonic() < deadline:
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass  # it ended meanwhile
            time.sleep(0.01)

    def _session(self) -> list[int]:
        """Those of its session that may still write; one that is only waited for by its parent may not."""
        found = []
        for pid in psutil.pids() if self._is_of_this_boot else ():
            try:
                if os.getsid(pid) == self.pid and self._is_not_older(pid) and not _is_zombie(pid):
                    found.append(pid)
            except (psutil.Error, ProcessLookupError, PermissionError):
                pass  # it ended meanwhile, or is not ours and so not its
        return found

    @property
    def _is_of_this_boot(self) -> bool:
        return not self.boot or self.boot == _read_boot()

    def _is_born_with(self, pid: int) -> bool:
        return abs(_read_birth(pid, self.boot) - self.born) <= self._slack

    def _is_not_older(self, pid: int) -> bool:
        return _read_birth(pid, self.boot) >= self.born - self._slack

    @property
    def _slack(self) -> float:
        """Ticks are exact; of seconds as many digits are told as the kernel counts: hundredths."""
        return 0.0 if self.boot else 0.02


def _read_boot() -> str:
    """This start of the machine, by a name that no other has; empty where the system gives it none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _read_birth(pid: int, boot: str) -> float:
    """When a process began: in ticks where a boot is named, else in seconds; psutil.NoSuchProcess."""
    if not boot:
        # A new one each time: psutil keeps what it read before.
        return psutil.Process(pid).create_time()
    try:
        # The name may have brackets and spaces in it: fields are counted behind its end.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise psutil.NoSuchProcess(pid) from error
    return int(fields[19])


def _is_zombie(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
