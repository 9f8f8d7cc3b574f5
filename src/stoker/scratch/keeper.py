"""The process that holds a run: in namespaces of its own where it can, it starts the script and waits.

With a process namespace it is two: the keeper outside, and inside it the first process of the namespace. When
that one ends, however it ends, the kernel kills all others in it, also those that left the session or
fork as fast as they are killed. Each dies with its parent, so a killed supervisor leaves nothing.
Without one, the keeper adopts what the script leaves behind and ends it when the supervisor dies.
"""

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from stoker.scratch import kernel, landlock, namespaces, private_root, tree
from stoker.scratch.values import Mechanism

_BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
# Once a rank has failed, for the others to fail too and say why: with gloo they lose it at once, and one that
# ran out of memory may have closed its connections before it ends itself.
_OTHERS_WITHIN_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One way to hold the run. The first that works is taken."""

    by: Mechanism
    processes: bool
    """Whether in a process namespace."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """What the keeper is to hold."""

    work: Path
    envs: tuple[Mapping[str, str], ...]
    """One for each process of the script."""
    offline: bool
    room_bytes: int
    writable: tuple[str, ...]
    direct: tuple[str, ...]
    lock: int
    """The supervisor's lock on the folder, for it alone to hold."""
    stdin: int
    stdout: int
    stderr: int


def attempts(mechanisms: tuple[Mechanism, ...]) -> list[Attempt]:
    """The ways to try, best first."""
    if sys.platform != "linux":
        return [Attempt(by="patches", processes=False)] if "patches" in mechanisms else []
    made = []
    for by in mechanisms:
        made.append(Attempt(by=by, processes=True))
        # A container that hides parts of /proc lets nobody mount another one, which new processes need.
        made.append(Attempt(by=by, processes=False))
    return [attempt for attempt in made if attempt.by == "overlay" or not attempt.processes]


def start(attempt: Attempt, held: Held, status: int) -> int:
    """Start a keeper; it writes lines to `status`: refused or ready, then how the script ended."""
    supervisor = os.getpid()
    pid = os.fork()
    if not pid:
        _keep(attempt, held, _Status(status), supervisor)
    return pid


class _Status:
    def __init__(self, number: int) -> None:
        self._number = number

    def tell(self, **words: Any) -> None:
        os.write(self._number, json.dumps(words).encode() + b"\n")


def _keep(attempt: Attempt, held: Held, status: _Status, supervisor: int) -> NoReturn:
    """The keeper's life. It never returns into the supervisor's code."""
    try:
        os.close(held.lock)
        if sys.platform == "linux":
            if attempt.processes:
                kernel.die_with_parent()
            else:
                _end_all_with_parent()
            if os.getppid() != supervisor:
                os._exit(1)
            namespaces.enter(
                mounts=attempt.by == "overlay", processes=attempt.processes, offline=held.offline
            )
        elif held.offline:
            raise OSError("a network is cut off on Linux alone")
        if attempt.by == "landlock":
            landlock.check()
        if attempt.processes:
            _become_first()
        notes = _enter_root(attempt, held)
        status.tell(ready=notes)
        _run_script(held, status)
    except OSError as error:
        status.tell(refused=str(error))
    finally:
        # Whatever happened: this is a copy of the supervisor, and must not go on as one.
        os._exit(0)


def _end_all_with_parent() -> None:
    """Without a process namespace nothing ends with us by itself: when the supervisor dies, we end it."""

    def end_all(*_: object) -> None:
        tree.end_all()
        os._exit(1)

    signal.signal(signal.SIGTERM, end_all)
    kernel.adopt_orphans()
    kernel.die_with_parent(signal.SIGTERM)


def _become_first() -> None:
    """Go on as the first process of the new namespace; the one outside waits for it and ends with it."""
    go_read, go_write = os.pipe()
    first = os.fork()
    if first:
        os.write(go_write, b"g")
        os.waitpid(first, 0)
        os._exit(0)
    os.close(go_write)
    kernel.die_with_parent()
    # Nothing here means that the parent was gone before its death could be our signal.
    if not os.read(go_read, 1):
        os._exit(1)
    os.close(go_read)


def _enter_root(attempt: Attempt, held: Held) -> list[str]:
    if attempt.by != "overlay":
        return []
    wanted = private_root.Wanted(
        base=str(held.work / "root"),
        room_bytes=held.room_bytes,
        writable=(str(held.work), *held.writable),
        direct=held.direct,
        fresh_proc=attempt.processes,
    )
    return private_root.enter(wanted)


def _run_script(held: Held, status: _Status) -> None:
    """Start the script, take away the dead until it is among them, and tell how it died.

    Of several ranks each is told of; the first that fails is the end of all, a moment later.
    """
    living: dict[int, int] = {}
    for rank, env in enumerate(held.envs):
        script = os.fork()
        if not script:
            try:
                _become_script(held, env)
            finally:
                os._exit(127)
        living[script] = rank
    failed_at: float | None = None
    while living and (failed_at is None or time.monotonic() - failed_at < _OTHERS_WITHIN_S):
        pid, ended = os.waitpid(-1, 0 if failed_at is None else os.WNOHANG)
        if not pid:
            time.sleep(0.01)
        elif pid in living:
            status.tell(exit=ended, rank=living.pop(pid))
            if ended and failed_at is None:
                failed_at = time.monotonic()


def _become_script(held: Held, env: Mapping[str, str]) -> NoReturn:
    os.setsid()
    if sys.platform == "linux":
        kernel.die_with_parent()
        # Should memory run out all the same, the kernel takes the script and nobody else.
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    for number, standard in ((held.stdin, 0), (held.stdout, 1), (held.stderr, 2)):
        os.dup2(number, standard)
    os.execve(sys.executable, [sys.executable, str(_BOOTSTRAP), str(held.work)], dict(env))
