"""The manifest of a staged folder: which files are whole, with size, time, tag and digest of each.

    .stoker-stage.jsonl   a line of JSON each, only appended: {"source": …}, then {"key", "size", …}

A line is written after its file has its name, so a killed run can leave a file without its line (checked or
copied again next time) but no line without its file. A line that a kill cut off is left out. Several
processes may append: a line is one write.

Machines that share a folder cannot: NFS has no appending. Each part of a staging that is shared out writes to
`.stoker-stage-<token>.jsonl`, locked while it does. They count as the manifest does, and the next run that
stages a whole set folds them into it.
"""

import json
import os
import secrets
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stoker.errors import NotPermitted, UsageError
from stoker.facts.secrets import hide_password
from stoker.feed.sources.listing import Entry
from stoker.feed.whole_file import whole_file

if sys.platform != "win32":
    import fcntl

NAME = ".stoker-stage.jsonl"
OF_PART = ".stoker-stage-"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A whole file: what the source said of it, and the digest (`md5:…` or `blake2b:…`) of its bytes."""

    key: str
    size: int
    modified_ns: int
    etag: str | None
    digest: str

    @classmethod
    def of(cls, entry: Entry, digest: str) -> "Line":
        """A file that was copied from this object."""
        return cls(
            key=entry.key, size=entry.size, modified_ns=entry.modified_ns, etag=entry.etag, digest=digest
        )

    def tells(self, entry: Entry) -> bool:
        """Whether the object is still what was copied."""
        return (self.size, self.modified_ns, self.etag) == (entry.size, entry.modified_ns, entry.etag)


class Manifest:
    """A folder's manifest, opened when first written to or asked; of a `part`, in a file of its own."""

    def __init__(self, folder: Path, source: str, *, part: bool = False) -> None:
        self._file: int | None = None
        self.path = folder / NAME
        self._own = folder / f"{OF_PART}{secrets.token_hex(8)}.jsonl" if part else self.path
        self._source = hide_password(source)
        self._lock = threading.Lock()

    def require_source(self) -> None:
        """UsageError where the folder was staged from somewhere else."""
        for value in self._values():
            if "source" not in value:
                continue
            staged = hide_password(str(value["source"]))  # once written as it was
            if staged != self._source:
                raise UsageError(
                    f"{self.path.parent} holds what was staged from {staged}, not {self._source}: "
                    f"give another folder, or remove {self.path} to have every file copied again"
                )

    def lines(self) -> dict[str, Line]:
        """The newest line for each key."""
        found: dict[str, Line] = {}
        for value in self._values():
            key = value.get("key")
            if not isinstance(key, str):
                continue  # the source, or a line that was harmed
            if value.get("removed"):
                found.pop(key, None)
            else:
                try:
                    found[key] = Line(**value)
                except TypeError:
                    continue  # another version's words: the file is looked at anew
        return found

    def add(self, line: Line) -> None:
        """One more file is whole."""
        self._append(asdict(line))

    def remove(self, key: str) -> None:
        """A file is no longer there."""
        self._append({"key": key, "removed": True})

    def fold(self) -> None:
        """The newest line for each key alone, sorted, in one file; with those of parts that are over."""
        self.close()
        over = list(self._parts_over())
        try:
            lines = self.lines()
            with whole_file(self.path) as out:
                out.write(_encode({"schema": SCHEMA, "source": self._source}))
                for key in sorted(lines):
                    out.write(_encode(asdict(lines[key])))
            for path, _ in over:
                path.unlink(missing_ok=True)
        finally:
            for _, lock in over:
                os.close(lock)

    @property
    def has_parts(self) -> bool:
        """Whether parts of a staging have left lines that are not folded in."""
        return any(self._parts())

    def _parts(self) -> Iterator[Path]:
        return self.path.parent.glob(f"{OF_PART}*.jsonl")

    def _parts_over(self) -> Iterator[tuple[Path, int]]:
        """Files of parts that nobody writes to any more, held by a lock each."""
        if sys.platform == "win32":
            return
        for path in sorted(self._parts()):
            try:
                file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # its part is at work, here or on another machine
                os.close(file)
            else:
                yield path, file

    def close(self) -> None:
        """Let go of the file; the next line opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __del__(self) -> None:
        self.close()

    def _append(self, value: dict[str, Any]) -> None:
        with self._lock:
            if self._file is None:
                self._file = self._open()
            os.write(self._file, _encode(value))

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        file = os.open(self._own, flags, 0o644)
        if self._own != self.path and sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file).st_size
        if size == 0:
            os.write(file, _encode({"schema": SCHEMA, "source": self._source}))
        else:
            os.lseek(file, size - 1, os.SEEK_SET)
            if os.read(file, 1) != b"\n":  # cut off by a kill: what comes next must not become part of it
                os.write(file, b"\n")
        return file

    def _values(self) -> Iterator[dict[str, Any]]:
        yield from self._values_of(self.path)
        for part in sorted(self._parts()):
            yield from self._values_of(part)

    def _values_of(self, path: Path) -> Iterator[dict[str, Any]]:
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return
        except OSError as error:
            raise NotPermitted(
                f"{path} cannot be read: {error.strerror}; check its rights, or give another folder"
            ) from error
        with file:
            for line in file:
                try:
                    value = json.loads(line)
                except ValueError:
                    continue  # cut off by a kill
                if isinstance(value, dict):
                    yield value


def _encode(value: dict[str, Any]) -> bytes:
    # Escaped, because keys may hold bytes that are no UTF-8.
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
