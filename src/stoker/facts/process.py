"""Processes: whose they are, how old, what they run, and whether their parent still lives.

A process may end between two questions; whatever is then unknown is `None`.
"""

import os
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from stoker.facts.secrets import hide_secrets, printable
from stoker.facts.values import StrayKind

# Programs that adopt the children of the dead. PID 1 may be any program in a container, so it is
# judged by name as well: a shell or an interpreter there can be the true parent.
_REAPERS = {
    "init", "systemd", "launchd", "tini", "docker-init", "dumb-init", "catatonit", "s6-svscan", "runit",
    "upstart",
}  # fmt: skip
_SHELLS = {"sh", "bash", "dash", "zsh", "fish", "ash", "busybox"}
_GONE = (psutil.NoSuchProcess, psutil.AccessDenied)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One process as it was found."""

    pid: int
    name: str | None
    user: str | None
    age_s: float | None
    arguments: tuple[str, ...] | None
    parent: int | None
    zombie: bool

    @property
    def command(self) -> str | None:
        """Return the command line as a shell would take it, secrets hidden, or the bare name of the program.

        It is shown to others than who typed it, and kept in records.
        """
        if self.arguments:
            return printable(shlex.join(hide_secrets(self.arguments)))
        return None if self.name is None else printable(self.name)

    @property
    def is_python(self) -> bool:
        """Say whether it is a Python program; torch renames its processes to `pt_…`."""
        first = Path(self.arguments[0]).name if self.arguments else ""
        return any(word.startswith(("python", "pt_main_thread", "pt_data", "torchrun"))
                   for word in (self.name or "", first))  # fmt: skip


def see(pid: int) -> Seen | None:
    """Look at one process; `None` when there is no such process here."""
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None
    return _look(process)


def see_all() -> list[Seen]:
    """Look at every process that this user may see."""
    return [seen for process in psutil.process_iter() if (seen := _look(process)) is not None]


def _look(process: psutil.Process) -> Seen | None:
    try:
        with process.oneshot():
            zombie = process.status() == psutil.STATUS_ZOMBIE
            name, parent, born = process.name(), process.ppid(), process.create_time()
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        return Seen(
            pid=process.pid, name=None, user=None, age_s=None, arguments=None, parent=None, zombie=False
        )
    try:
        user: str | None = process.username()
    except _GONE:
        user = None
    try:
        arguments: tuple[str, ...] | None = tuple(process.cmdline()) or None
    except _GONE:  # a zombie has none, and other users' may be hidden
        arguments = None
    return Seen(
        pid=process.pid,
        name=name,
        user=user,
        age_s=max(0.0, time.time() - born),
        arguments=arguments,
        parent=parent,
        zombie=zombie,
    )


def parent_lives(seen: Seen) -> bool | None:
    """Say whether the process that started this one is still there.

    On Linux and macOS an orphan is adopted by PID 1 or by a reaper; on Windows the id of the dead
    parent stays, and may by now belong to a younger process.
    """
    if seen.parent is None:
        return None
    parent = see(seen.parent)
    if parent is None:
        return False
    if sys.platform == "win32":
        if parent.age_s is None or seen.age_s is None:
            return None
        return parent.age_s >= seen.age_s
    name = (parent.name or "").lower()
    if name in _REAPERS:
        return False
    if parent.pid != 1:
        return True
    if name in _SHELLS:
        return None
    return parent.is_python or "jupyter" in (parent.command or "")


def role_of(seen: Seen) -> StrayKind:
    """Tell a data-loading worker and a distributed rank from any other process."""
    words = seen.arguments or ()
    if (seen.name or "").startswith("pt_data") or any(
        "multiprocessing-fork" in word or "multiprocessing.spawn" in word for word in words
    ):
        return "worker"
    try:
        variables = psutil.Process(seen.pid).environ()
    except (*_GONE, OSError):
        return "process"
    return "rank" if "LOCAL_RANK" in variables or "TORCHELASTIC_RUN_ID" in variables else "process"


def family() -> frozenset[int]:
    """Return this process, its ancestors and its descendants; under torchrun, all ranks of the node."""
    own = psutil.Process()
    members = {own.pid}
    try:
        # PID 1 and its like are everybody's ancestors, and so nobody's family.
        ancestors = [one for one in own.parents() if one.pid > 1]
        members.update(one.pid for one in ancestors)
        root = ancestors[0] if ancestors and "TORCHELASTIC_RUN_ID" in os.environ else own
        members.update(one.pid for one in root.children(recursive=True))
    except _GONE:
        pass  # an ancestor ended while we looked: what was found stands
    return frozenset(members)


def opens_gpu(pid: int, proc: Path = Path("/proc")) -> bool | None:
    """Say whether a process has an NVIDIA device open; `None` where that may not be seen.

    A driver outside this container's PID namespace may name a number that here belongs to another
    process. That one has no GPU open.
    """
    try:
        links = list((proc / str(pid) / "fd").iterdir())
    except OSError:
        return None
    seen_any = False
    for link in links:
        try:
            target = str(link.readlink())
        except OSError:  # closed since, or not ours to see
            continue
        seen_any = True
        if target.startswith(("/dev/nvidia", "/dev/dxg")):
            return True
    return False if seen_any else None
