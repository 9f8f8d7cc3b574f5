"""A run's record on disk: written so that a killed run leaves it readable, and read back as values.

    <root>/<run id>/run.json             schema, command, versions, facts, settings (rank 0 writes it)
    <root>/<run id>/rank<k>/rank.json    this rank: process, device, loaders, outcome, overhead
                            steps.jsonl, batches.jsonl, resources.jsonl   a line each, only appended
                            meetings.jsonl   the same, of several ranks

The `.json` files are replaced whole. A `.jsonl` file's last line may be cut off when the run was
killed; a reader leaves such a line out and says so. `docs/record.md` describes every field.
"""

import contextlib
import errno
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stoker.errors import NotPermitted, RecordBroken, RecordNotFound, RecordSchemaUnknown, StokerError
from stoker.watch.phases import Batch, Meeting, Step
from stoker.watch.soundness import FIELDS, fault_in, fault_in_counters, fault_in_rank, fault_in_run, is_number

SCHEMA = 1
VALUE = TypeVar("VALUE", Step, Batch, Meeting)


def default_root() -> Path:
    """Where runs are kept: `$STOKER_RUNS`, else `.stoker/runs` in the working folder."""
    return Path(os.environ.get("STOKER_RUNS", ".stoker/runs"))


def new_name() -> str:
    """A name by the time, which no other has that was begun in the same second."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"


# A disk that is full, or may not be written to: no fault of the code that meets it.
_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)


@contextlib.contextmanager
def writing(what: str, folder: Path) -> Iterator[None]:
    """What a disk refuses in the block is told: NotPermitted, with what was to be written where."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StokerError) or error.errno not in _REFUSED:
            raise
        raise NotPermitted(
            f"{what} cannot be written under {folder}: {error.strerror} ({error.filename or folder}); make "
            "room there, run from a folder you may write to, or say where with --runs DIR"
        ) from error


def write_whole(path: Path, value: Mapping[str, Any]) -> None:
    """Put a JSON file there whole or not at all."""
    # A draft of this thread's own: the recorder and the training thread may both have news of a run.
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    draft.write_text(json.dumps(value, indent=1, default=str) + "\n")
    draft.replace(path)


class Writer:
    """One rank's part of a record: makes its folder, and describes the run and the rank."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder
        self.rank_folder = folder / f"rank{rank}"
        self.failure: str | None = None
        try:
            self.rank_folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NotPermitted(
                f"cannot write the run's record under {folder}: {error.strerror}; "
                "run from a folder you may write to, or say where with --runs DIR"
            ) from error

    def describe_run(self, value: Mapping[str, Any]) -> None:
        """Write `run.json`."""
        self._describe(self.folder / "run.json", {"schema": SCHEMA, **value})

    def describe_rank(self, value: Mapping[str, Any]) -> None:
        """Write `rank.json`."""
        self._describe(self.rank_folder / "rank.json", {"schema": SCHEMA, **value})

    def _describe(self, path: Path, value: Mapping[str, Any]) -> None:
        try:
            write_whole(path, value)
        except OSError as error:
            self.failure = f"the record stops here: {error.strerror} ({path})"


class LineWriter:
    """Appends a rank's lines. They are buffered until `flush`, whole lines at a time."""

    def __init__(self, rank_folder: Path) -> None:
        self._folder = rank_folder
        self._files = {name: self._open(name) for name in ("steps", "batches", "resources")}
        self._lines: dict[str, list[str]] = {name: [] for name in self._files}
        self.failure: str | None = None

    def add(self, name: str, line: str) -> None:
        """One more line of JSON for that file."""
        self._lines.setdefault(name, []).append(line)

    def flush(self) -> None:
        """Append what has gathered. A full disk stops the record, never the run."""
        for name, lines in self._lines.items():
            if not lines or self.failure is not None:
                continue
            data = ("\n".join(lines) + "\n").encode()
            lines.clear()
            try:
                if name not in self._files:  # one that not every run has
                    self._files[name] = self._open(name)
                while data:
                    data = data[os.write(self._files[name], data) :]
            except OSError as error:
                self.failure = f"the record stops here: {error.strerror} ({self._folder})"

    def close(self) -> None:
        """Flush and let go of the files."""
        self.flush()
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files = {}

    def _open(self, name: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        return os.open(self._folder / f"{name}.jsonl", flags, 0o644)


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """One rank's lines. Iterating reads the file again, a line at a time."""

    rank: int
    folder: Path
    about: Mapping[str, Any]

    def steps(self) -> Iterator[Step]:
        """The steps, in order."""
        yield from self._values(Step, "steps")

    def batches(self) -> Iterator[Batch]:
        """The batches as their loaders made them."""
        yield from self._values(Batch, "batches")

    def meetings(self) -> Iterator[Meeting]:
        """The collectives of all ranks, as this one met them; none of a process that trains by itself."""
        yield from self._values(Meeting, "meetings", timed=False)

    def resources(self) -> Iterator[Mapping[str, Any]]:
        """The counters, about one line a second."""
        for number, line in self._lines("resources"):
            if (fault := fault_in_counters(line)) is not None:
                raise _broken_line(self.folder / "resources.jsonl", number, fault)
            yield line

    def _values(self, kind: type[VALUE], name: str, *, timed: bool = True) -> Iterator[VALUE]:
        fields = FIELDS[kind]
        for number, line in self._lines(name, timed=timed):
            if "part" in line:  # as the doctor's own records once had meetings
                continue
            path = self.folder / f"{name}.jsonl"
            if (fault := fault_in(kind, line)) is not None:
                raise _broken_line(path, number, fault)
            try:
                value = kind(**{key: told for key, told in line.items() if key in fields})
            except TypeError as error:
                raise _broken_line(path, number, f"is no {kind.__name__.lower()} ({error})") from error
            yield value

    def _lines(self, name: str, *, timed: bool = True) -> Iterator[tuple[int, dict[str, Any]]]:
        path = self.folder / f"{name}.jsonl"
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.endswith(b"\n"):
                        return  # the run was killed while it wrote this
                    try:
                        told = json.loads(line)
                    except ValueError as error:
                        raise _broken_line(path, number, f"is not JSON ({error})") from error
                    if not isinstance(told, dict) or (timed and not is_number(told.get("t"))):
                        raise _broken_line(path, number, "is no line of a record")
                    yield number, told
        except FileNotFoundError:
            return
        except PermissionError as error:
            raise NotPermitted(f"{path} may not be read: ask its owner, or read it as that user") from error


def _broken_line(path: Path, number: int, what: str) -> RecordBroken:
    return RecordBroken(
        f"{path}, line {number} {what}: the file was changed or damaged; delete that line to read the rest"
    )


@dataclass(frozen=True, kw_only=True)
class Record:
    """A run's record, read back.

    >>> record = Record.open("latest")                                        # doctest: +SKIP
    >>> sum(step.wait or 0 for step in record.ranks[0].steps())               # doctest: +SKIP
    """

    folder: Path
    about: Mapping[str, Any]
    ranks: Mapping[int, RankRecord]

    @property
    def id(self) -> str:
        """The run's id: its folder's name."""
        return self.folder.name

    @property
    def outcome(self) -> str:
        """How rank 0 ended: done, failed, interrupted; `unknown` if it was killed or still runs."""
        first = self.ranks.get(0)
        return str(first.about.get("outcome") or "unknown") if first is not None else "unknown"

    def require_ranks(self) -> None:
        """RecordBroken where no rank has a part in it."""
        if not self.ranks:
            raise RecordBroken(
                f"{self.folder} has no rank's part yet: the run has not begun to record, or it was removed; "
                "run again"
            )

    @classmethod
    def open(cls, where: str | Path, root: Path | None = None) -> "Record":
        """Open a record by its folder, its run id, or "latest"."""
        folder = _find(where, root or default_root())
        about = _read_json(folder / "run.json")
        if about.get("schema") != SCHEMA:
            raise RecordSchemaUnknown(
                f"{folder} has schema {about.get('schema')!r}; this Stoker reads schema {SCHEMA}: "
                "read it with the version that wrote it"
            )
        _require_sound(folder / "run.json", fault_in_run(about))
        ranks = {}
        for path in sorted(folder.glob("rank*/rank.json")):
            number = path.parent.name.removeprefix("rank")
            if number.isdigit():
                told = _read_json(path)
                _require_sound(path, fault_in_rank(told))
                ranks[int(number)] = RankRecord(rank=int(number), folder=path.parent, about=told)
        return cls(folder=folder, about=about, ranks=dict(sorted(ranks.items())))


def _find(where: str | Path, root: Path) -> Path:
    asked = Path(where)
    if (asked / "run.json").exists():
        return asked.resolve()
    if (root / asked / "run.json").exists():
        return (root / asked).resolve()
    known = _newest(root)
    if str(where) == "latest" and known:
        return known[0].resolve()
    raise RecordNotFound(f"no record at {where} nor in {told_of(root)}; give a folder or a run id")


def told_of(root: Path) -> str:
    """Where records are looked for, and the newest of them, in words."""
    return f"{root} (newest there: {', '.join(folder.name for folder in _newest(root)[:3]) or 'none'})"


def _newest(root: Path) -> list[Path]:
    """The folders of all records there, the newest first."""
    known = sorted(root.glob("*/run.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    return [path.parent for path in known]


def _require_sound(path: Path, fault: str | None) -> None:
    if fault is not None:
        raise RecordBroken(f"{path} {fault}: the file was changed or damaged; mend that, or run again")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except PermissionError as error:
        raise NotPermitted(f"{path} may not be read: ask its owner, or read it as that user") from error
    except (OSError, ValueError) as error:
        raise RecordBroken(f"{path} cannot be read ({error}): the record is damaged; run again") from error
    if not isinstance(value, dict):
        raise RecordBroken(
            f"{path} holds {type(value).__name__}, not an object: the record is damaged; run again"
        )
    return value
