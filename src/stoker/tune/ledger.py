"""A search as files: a folder for it, in it one for each trial. What is there is not tried again.

.stoker/tune/<id>/search.json           what is searched for: command, budget, kinds
                  trials/<n>/trial.json what came of a trial, written last: a folder without it was cut off
                             record/    the run's record
                             stdout.txt, stderr.txt
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stoker.errors import UsageError
from stoker.tune.stretches import Rates
from stoker.tune.trial import Trial
from stoker.watch.record import write_whole


class Ledger:
    """One search's folder. Trials that were held before are found again, in order; `held`: those of now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._before = list(self._read())
        self._made = len(self._before)
        self.held = 0

    @classmethod
    def begin(cls, folder: Path, about: Mapping[str, Any]) -> "Ledger":
        """A new one; it must not be there."""
        folder.mkdir(parents=True)
        write_whole(folder / "search.json", {"schema": 1, **about})
        return cls(folder)

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
        return cls(folder)

    def hold(self, settings: Mapping[str, Any], how: Callable[[Path], Trial]) -> Trial:
        """The next trial: from before, if it was of these settings; else held now."""
        if self._before and dict(self._before[0].settings) == dict(settings):
            return self._before.pop(0)
        self._made -= len(self._before)  # where the search goes another way than before, those are no more
        self._before = []
        folder = self.folder / "trials" / f"{self._made:03d}"
        shutil.rmtree(folder, ignore_errors=True)
        trial = how(folder)
        write_whole(folder / "trial.json", trial.to_json())
        self._made += 1
        self.held += 1
        return trial

    def _read(self) -> Iterator[Trial]:
        """Those that are whole, up to the first that is not: the search tries that one again."""
        for number in range(10_000):
            path = self.folder / "trials" / f"{number:03d}" / "trial.json"
            try:
                yield _trial(json.loads(path.read_text()))
            except (OSError, ValueError, KeyError, TypeError):  # not there, or harmed
                return


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
    )
