"""On the path of a service's processes in the kill campaign: has the server killed while one of them writes.

The campaign leaves a file `armed`: whose write, where in it, and the server's group of processes. The first
process of that kind to be inside a write takes the file away (`aimed-NUMBER-KIND`) and kills the group at
that place, itself included:

- `statement`: between two statements of a transaction that has begun, before its COMMIT;
- `commit`: at some moment while COMMIT runs, by a clock that goes beside it;
- `file`: in a file that is written and does not have its name yet.

A write that ended before its time puts the file back, unless there is another by now, and the next write
takes it: none is counted that was not inside.
"""

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_KINDS = {"serve": "server", "stoker.jobs.dispatcher": "dispatcher", "stoker.jobs.runner": "runner"}


class Aim:
    """What the campaign asked for, taken by this process; it strikes, or is put back."""

    def __init__(self, told: dict[str, Any], armed: Path, taken: Path) -> None:
        self._told, self._armed, self._taken = told, armed, taken
        self.place, self.statement = told["place"], told["statement"]
        self._gate = threading.Lock()
        self._is_left = False

    def strike(self) -> None:
        """Kill the server's group, and this process where it is another."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._told["group"], signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    def strike_within(self, seconds: float) -> None:
        """At some moment of these, unless the write is left before."""
        delay = random.uniform(0, seconds)

        def wait() -> None:
            time.sleep(delay)
            with self._gate:
                if not self._is_left:
                    self.strike()

        threading.Thread(target=wait, daemon=True).start()

    def leave(self) -> None:
        """The write has ended, and this process lives: for the next one."""
        with self._gate:
            self._is_left = True
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            os.link(self._taken, self._armed)
        self._taken.unlink(missing_ok=True)


def find_aim(kind: str, folder: Path, *places: str) -> Aim | None:
    """What is armed, where it is for such a process and such a place; nobody else has it then."""
    armed = folder / "armed"
    try:
        told = json.loads(armed.read_text())
    except (FileNotFoundError, ValueError):
        return None
    if told["kind"] not in (kind, "any") or told["place"] not in places:
        return None
    taken = folder / f"aimed-{told['number']}-{kind}"
    try:
        armed.rename(taken)
    except FileNotFoundError:  # another was quicker
        return None
    return Aim(told, armed, taken)


def count_statements(do: Any, aim: Aim) -> None:
    """Strike after so many statements of a transaction."""
    made = 0

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            nonlocal made
            found = method(*given)
            made += 1
            if made >= aim.statement:
                aim.strike()
            return found

        return call

    if aim.statement == 0:
        aim.strike()
    for name in ("read", "write", "write_many"):
        setattr(do, name, counted(getattr(do, name)))


def arm(kind: str, folder: Path) -> None:
    """Wrap what writes."""
    from stoker.feed import whole_file as files
    from stoker.jobs.store.database import Database

    plain, plain_file = Database.transaction, files.whole_file
    took = 0.001

    @contextlib.contextmanager
    def deadly(self: Database) -> Iterator[Any]:
        nonlocal took
        aim = None
        try:
            with plain(self) as do:
                aim = find_aim(kind, folder, "statement", "commit")
                if aim is not None and aim.place == "statement":
                    count_statements(do, aim)
                yield do
                if aim is not None and aim.place == "statement":  # it had fewer
                    aim.strike()
                elif aim is not None:
                    aim.strike_within(took)
                began = time.perf_counter()
            took = time.perf_counter() - began
        finally:
            if aim is not None:
                aim.leave()

    @contextlib.contextmanager
    def deadly_file(path: Path, **given: Any) -> Iterator[Any]:
        with plain_file(path, **given) as file:
            yield file
            aim = find_aim(kind, folder, "file")
            if aim is not None:
                aim.strike()

    Database.transaction = deadly  # type: ignore[method-assign]
    files.whole_file = deadly_file


for _word in sys.orig_argv:
    if _word in _KINDS and "STOKER_DEADLY" in os.environ:
        arm(_KINDS[_word], Path(os.environ["STOKER_DEADLY"]))
        break
