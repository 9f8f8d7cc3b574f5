"""A search as files: a folder for it, in it one for each trial. What is there is not tried again.

.stoker/tune/<id>/search.json           what is searched for: command, budget, kinds
                  trials/<n>/trial.json what came of a trial, its command and settings, written last: a folder
                                        without it was cut off
                             check.json what the probe of its changes showed, where they were looked at
                             record/    the run's record
                             stdout.txt, stderr.txt
                  .lock                 locked by the process that searches; its death unlocks it
"""

import json
import os
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stoker.errors import NotPermitted, UsageError
from stoker.tune.stretches import Rates
from stoker.tune.trial import Trial
from stoker.watch.record import write_whole

if sys.platform != "win32":
    import fcntl

_LOCK = ".lock"


class Ledger:
    """One search's folder. Trials that were held before are found again by their settings, in order.

    `held`: how many were held now; `last`: the number of the last trial, of now or of before.
    It is this process's until it is closed: UsageError where another has it.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        self._command = list((about or {}).get("command", ()))
        self.close = _take(self, folder)
        self._before = dict(enumerate(self._read()))
        self._made = len(self._before)
        self.held = 0
        self.last = -1
        self._host: str | None = None

    @classmethod
    def begin(cls, folder: Path, about: Mapping[str, Any]) -> "Ledger":
        """A new one; it must not be there."""
        folder.mkdir(parents=True)
        made = cls(folder, about)
        write_whole(folder / "search.json", {"schema": 1, **about})
        return made

    @classmethod
    def resume(cls, folder: Path, about: Mapping[str, Any]) -> "Ledger":
        """One that was cut off, of the same command."""
        try:
            told = json.loads((folder / "search.json").read_text())
        except (OSError, ValueError):
            told = None
        if not isinstance(told, dict):
            raise UsageError(f"{folder} is no search: name a folder under .stoker/tune")
        if told.get("command") != about["command"]:
            raise UsageError(
                f"{folder} is a search of {' '.join(map(str, told.get('command') or ['nothing']))}, not of "
                f"{' '.join(about['command'])}: resume it with its own command"
            )
        had, has = told.get("ranks", 1), about.get("ranks", 1)
        if had != has:
            raise UsageError(
                f"{folder} is a search with {had} ranks, not {has}: resume it with --nproc {had}"
            )
        for name, what in (("script", "the script"), ("torch", "torch")):
            if name in told and name in about and told[name] != about[name]:
                raise UsageError(
                    f"{what} is another than when {folder} was begun, and what was measured is of that one: "
                    "begin a new search, without --resume"
                )
        return cls(folder, about)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def hold(self, settings: Mapping[str, Any], how: Callable[[Path], Trial], *, after: int = -1) -> Trial:
        """The next trial of these settings: from before, if there is one; else held now.

        It is a later one than that of number `after`: what ran before a change shows nothing of a machine
        that has changed meanwhile. Once a trial was held now, those of another machine are not found again:
        there is nothing to compare them with.
        """
        for number, trial in self._before.items():
            if number > after and dict(trial.settings) == dict(settings) and self._is_comparable(trial):
                self.last = number
                return self._before.pop(number)
        folder = self._at(self._made)
        shutil.rmtree(folder, ignore_errors=True)
        trial = how(folder)
        write_whole(folder / "trial.json", {"command": self._command, **trial.to_json()})
        self._host = trial.host
        self.last = self._made
        self._made += 1
        self.held += 1
        return trial

    @property
    def before(self) -> list[Trial]:
        """Those of the search that is gone on with, which were not asked for again yet."""
        return list(self._before.values())

    def keep_check(self, number: int, told: Mapping[str, Any]) -> None:
        """What the changes of that trial mean, into its folder."""
        write_whole(self._at(number) / "check.json", told)

    def _at(self, number: int) -> Path:
        return self.folder / "trials" / f"{number:03d}"

    def _is_comparable(self, trial: Trial) -> bool:
        """Whether it ran on the machine of those that were held now; where that is not known it did."""
        return None in (self._host, trial.host) or trial.host == self._host

    def _read(self) -> Iterator[Trial]:
        """Those that are whole, up to the first that is not: the search tries that one again."""
        for number in range(10_000):
            path = self._at(number) / "trial.json"
            try:
                yield _trial(json.loads(path.read_text()))
            except (OSError, ValueError, KeyError, TypeError):  # not there, or harmed
                return


def is_taken(folder: Path) -> bool:
    """Whether a process searches in the folder now, on this machine or, on shared storage, on another."""
    if sys.platform == "win32":
        return False
    try:
        lock = (folder / _LOCK).open("r+")
    except FileNotFoundError:
        return False
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _take(ledger: Ledger, folder: Path) -> Callable[[], object]:
    """Lock a search's folder; what unlocks it, which the end of the ledger or of this process does as well.

    Trials do not inherit the lock: a search that was killed can be resumed while they still die.
    """
    if sys.platform == "win32":
        return lambda: None
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise UsageError(
            f"another process searches in {folder}: wait for it, or end it, and resume the search then; "
            "without --resume a new search begins beside it"
        ) from None
    except OSError as error:
        os.close(lock)
        raise NotPermitted(
            f"cannot lock {folder / _LOCK}: {error.strerror or error}; have searches written to a disk with "
            "locks, with STOKER_RUNS=DIR/runs"
        ) from error
    return weakref.finalize(ledger, os.close, lock)


def _trial(told: Mapping[str, Any]) -> Trial:
    found = None
    if told["rates"]:
        names = ("unit", "stretch_steps", "size", "disturbed")
        found = Rates(each=tuple(told["rates"]), **{name: told[name] for name in names})
    return Trial(
        settings=told["settings"],
        outcome=told["outcome"],
        reason=told["reason"],
        rates=found,
        first=told["first"],
        seconds=told["seconds"],
        vram=told["vram"],
        told=tuple(told["told"]),
        record=None if told["record"] is None else Path(told["record"]),
        host=told.get("host"),
        vram_share=told.get("vram_share"),
    )
