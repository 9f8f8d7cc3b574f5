"""How far a training is, by the files it writes: the trainer's journal, the observer's record. Reads only.

progress = Reading(folder, attempt=1)
points, made = progress.read(pid)      # new points of curves, and how far it is

A script may write what it likes into its folder: what is no number, or one that no store holds, is left out;
what cannot be read is said on stderr, and read where it can be later.
"""

import json
import math
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker.jobs.folders import JobFolder
from stoker.jobs.store.holding import Number, Progress
from stoker.jobs.tail import Tail
from stoker.watch.phases import PHASES

# Phases are told of so many last steps.
_STEPS = 100
# Said elsewhere, or no curve.
_NO_CURVE = frozenset({"t", "kind", "step", "eta_seconds", "epoch"})
_LONGEST_NAME = 200


class Reading:
    """The files of one attempt, read on."""

    def __init__(self, folder: JobFolder, attempt: int, *, workload: bool = False) -> None:
        self._run = folder.record(attempt) / "run.json"
        record = folder.record(attempt) / "rank0"
        self._begun = folder.training / "begun.json"
        # A script that goes on may begin its journal anew; what is told twice is stored once.
        self._path = folder.training / "metrics.jsonl"
        self._journal = Tail(self._path, restarts=True, most_lines=-1)
        self._steps = Tail(record / "steps.jsonl", most_lines=-1)
        self._resources = Tail(record / "resources.jsonl", most_lines=-1)
        self._last: deque[dict[str, Any]] = deque(maxlen=_STEPS)
        self._first: dict[str, Any] | None = None
        self._samples = 0
        self._made = 0
        self._told: dict[str, Any] = {}
        self._peak = 0
        self._memory: dict[str, Any] | None = None
        self._gpu: dict[str, Any] | None = None
        # The machine's cards by the record's facts, which come after its first lines; None until then.
        self._cards: list[dict[str, Any]] | None = None
        self.first_step: int | None = None
        self._all: int | None = None
        self._is_workload = workload
        # What the journal had when a script was started: told again, and no step of this attempt's.
        self._past: Tail | None = None
        self._past_end = 0
        # Steps seen once the journal's last line had been read and nothing came with it; None until then.
        self._seen: int | None = None
        # What was said of files that cannot be read.
        self._troubles: set[str] = set()

    def begin(self, *, workload: bool) -> None:
        """Before the training is started: what an earlier attempt's trainer said of its beginning is void.

        By the trainer's pid alone it could be taken for this one's, as pids come again.
        """
        self._is_workload = workload
        if workload:
            self._begun.unlink(missing_ok=True)
            return
        before = -1
        while before != self._journal.position:  # to its end: from there on the lines are this attempt's
            before = self._journal.position
            for _ in self._objects(self._journal):
                pass
        if self._journal.position:
            self._past, self._past_end = Tail(self._path, most_lines=-1), self._journal.position

    def read(self, pid: int | None) -> tuple[list[Number], Progress | None]:
        """New points, and how far it is; None where nothing is new. `pid` is the training's."""
        # A resume rewrites the journal without what came after its step: it is read from then on.
        points: list[Number] = []
        told = self._told
        if self._find_beginning(pid):
            points = self._read_past()
            if self._past is None:  # else an old value would take the place of a new one
                points += [point for line in self._objects(self._journal) for point in self._hear(line)]
        before = self._made
        for step in self._objects(self._steps):
            self._first = self._first or step
            self._samples += step.get("samples") or 0 if self._made else 0
            self._made += 1
            self._last.append(step)
        # The record may be written a moment after the journal: what comes with a line is not counted on top.
        self._seen = None if told is not self._told else self._made if self._seen is None else self._seen
        changed = self._read_resources()
        if not points and before == self._made and not changed:
            return points, None
        return points, Progress(
            step=self._step(),
            steps=self._all,
            rate=_number(self._told.get("samples_per_second")) or self._rate(),
            eta_s=self._eta(),
            phases=self._phases(),
            gpu=self._gpu,
            memory=self._memory,
        )

    @property
    def has_steps(self) -> bool:
        """Whether a step was observed."""
        return self._made > 0

    def _find_beginning(self, pid: int | None) -> bool:
        """Whether the journal may be read: this attempt's trainer has begun it, or it is a script's own."""
        if self._all is not None:
            return True
        try:
            told = json.loads(self._begun.read_text())
        except FileNotFoundError:
            return not self._is_workload
        except (OSError, ValueError, RecursionError):  # a script's own of that name
            return True
        if not isinstance(told, dict) or not {"pid", "step", "steps"} <= set(told):
            return True
        if pid is not None and told["pid"] != pid:  # an earlier attempt's
            return False
        self._all, self.first_step = _whole(told["steps"]), _whole(told["step"]) or None
        return True

    def _read_past(self) -> list[Number]:
        """More of what the journal had before, in its order."""
        if self._past is None:
            return []
        before = self._past.position
        lines = self._objects(self._past)
        points = [point for line in lines for point in self._hear(line, is_past=True)]
        if self._past.position in (before, self._past_end) or self._past.position > self._past_end:
            self._past = None
        return points

    def _hear(self, line: dict[str, Any], *, is_past: bool = False) -> Iterator[Number]:
        """The points of a line of the journal."""
        kind, step, t = line.get("kind"), _whole(line.get("step")), _number(line.get("t"))
        if step is None or t is None:
            return
        if kind == "train" and not is_past:
            self._told = line
        if kind in ("train", "valid", "epoch"):
            for name, told in line.items():
                value = None if name in _NO_CURVE else _number(told)
                if value is not None:
                    yield Number(name=f"{kind}/{_name(name)}", step=step, value=value, t=t)

    def _step(self) -> int | None:
        """By the record, which has each one, from where a trainer said that it goes on.

        A script that goes on says so in its journal alone: it is where that is, and what was seen since. One
        whose journal counts epochs has made more steps than that.
        """
        told = _whole(self._told.get("step"))
        if told is None or (self._is_workload and self._made):
            return (self.first_step or 0) + self._made if self._made else self.first_step
        since = 0 if self._seen is None else self._made - self._seen
        return max(told + since, (self.first_step or 0) + self._made)

    def _rate(self) -> float | None:
        """Samples a second since the first step, as the trainer counts; for a script without a journal."""
        if self._first is None or self._made < 2 or not self._samples:
            return None
        seconds = self._last[-1]["t"] - self._first["t"]
        return self._samples / seconds if seconds > 0 else None

    def _eta(self) -> float | None:
        """Seconds to the end at the sustained rate of this process."""
        step = self._step()
        if self._all is None or step is None or self._first is None or self._made < 2:
            return _number(self._told.get("eta_seconds"))
        seconds: float = self._last[-1]["t"] - self._first["t"]
        return max(0, self._all - step) * seconds / (self._made - 1)

    def _phases(self) -> dict[str, float] | None:
        sums = {name: sum(step.get(name) or 0.0 for step in self._last) for name in PHASES}
        whole = sum(sums.values())
        return {name: value / whole for name, value in sums.items()} if whole else None

    def _read_resources(self) -> bool:
        line = None
        for found in self._objects(self._resources):
            line = found
            held = _memory_of(found)
            self._peak = max(self._peak, held or 0)
        if line is None:
            return False
        held = _memory_of(line)
        self._memory = {
            "rss_bytes": held,
            "peak_bytes": self._peak or None,
            "device_peak_bytes": _whole(self._told.get("peak_bytes")),
        }
        if line.get("gpus") and self._cards is None:
            try:
                self._cards = _cards_of(self._run)
            except OSError as error:
                self._tell(error)
        self._gpu = _card_of(line.get("gpus") or [], self._cards)
        return True

    def _objects(self, tail: Tail) -> Iterator[dict[str, Any]]:
        """Lines of JSON; what a script wrote there that is none is no line. One file fails by itself."""
        try:
            lines = tail.read()
        except OSError as error:  # a folder of that name, one that may not be read, no file to be had
            self._tell(error)
            return
        for line in lines:
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):  # the latter of what is nested by the thousand
                continue
            if isinstance(found, dict):
                yield found

    def _tell(self, error: OSError) -> None:
        """Once of each: it is looked at twice a second."""
        if (told := str(error)) not in self._troubles:
            self._troubles.add(told)
            sys.stderr.write(f"stoker: cannot be read now: {told}; what it has is told once it can be\n")


def _memory_of(line: dict[str, Any]) -> int | None:
    """Of the process and its workers."""
    own = line.get("rss_bytes")
    if own is None:
        return None
    return int(own) + sum(int(one.get("rss_bytes") or 0) for one in line.get("processes") or ())


def _cards_of(run: Path) -> list[dict[str, Any]] | None:
    try:
        facts = json.loads(run.read_text()).get("facts") or {}
    except FileNotFoundError:
        return None
    found: list[dict[str, Any]] | None = facts.get("gpus")
    return found


def _card_of(read: list[dict[str, Any]], cards: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    """The first card that the training sees: those are read too that it was not given."""
    seen = [one for one in cards or () if one.get("visible") is not False]
    if not seen:
        return None
    now = next((one for one in read if one.get("index") == seen[0]["index"]), {})
    changing = ("used_bytes", "utilisation_percent", "power_w")
    return {
        **{name: seen[0].get(name) for name in ("index", "name", "total_bytes")},
        **{name: now.get(name) for name in changing},
    }


def _number(value: Any) -> float | None:
    """A number that is one: finite, and no truth value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number beyond all floats
        return None


def _whole(value: Any) -> int | None:
    """A whole number of 0 or more, as a store holds it."""
    return value if type(value) is int and 0 <= value < 1 << 63 else None


def _name(text: str) -> str:
    """A curve's name as every store can hold it.

    >>> _name("loss\\0"), _name("\\ud800")
    ('loss\ufffd', '?')
    """
    return text[:_LONGEST_NAME].encode(errors="replace").decode().replace("\0", "\ufffd")
