"""A folder as a store of objects: the same calls, answered by the file system alone.

Not obstore's LocalStore: it leaves out, without a word, every file whose name ends in `#` and digits.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import RawIOBase
from pathlib import Path

from stoker.errors import NoSuchObject, NotPermitted, SourceChanged, StoreError, UsageError
from stoker.feed.sources.listing import Entry, Reading
from stoker.feed.whole_file import PART, whole_file

_CHUNK = 1 << 20


class FolderClient:
    """The files under a folder. Links are followed, each folder once on its way down."""

    def __init__(self, root: Path) -> None:
        self._root = root
        if not root.is_dir():
            raise UsageError(f"no such folder: {root}; give the folder that the files lie in")

    def entries(self, prefix: str) -> Iterator[Entry]:
        """Every file below a folder, folders in sorted order; parts of unfinished files are none."""
        start = self._path(prefix) if prefix else self._root
        if start.is_dir():
            yield from self._walk(start, f"{prefix}/" if prefix else "", frozenset())

    def folders(self) -> tuple[list[str], list[Entry]]:
        """The folders in the root, and the files in it."""
        found, files = self._scan(self._root, "")
        return [name for name, _ in found], files

    def open(self, key: str) -> Reading:
        """Begin to read a file; one that changes meanwhile is noticed at its end."""
        try:
            file = self._path(key).open("rb", buffering=0)
        except OSError as error:
            raise self._explain(error, key) from error
        before = _entry(key, os.fstat(file.fileno()))

        def chunks() -> Iterator[bytes]:
            with file:
                got = 0
                while chunk := self._chunk(file, key):
                    got += len(chunk)
                    yield chunk
                after = _entry(key, os.fstat(file.fileno()))
            if after != before or got != before.size:
                raise SourceChanged(
                    f"{self._root / key} changed while it was read ({before.size} bytes, then {after.size}); "
                    "read it again when nobody writes to it"
                )

        return Reading(entry=before, chunks=chunks(), close=file.close)

    def get(self, key: str) -> memoryview:
        """All of a file."""
        try:
            return memoryview(self._path(key).read_bytes())
        except OSError as error:
            raise self._explain(error, key) from error

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """These parts of a file."""
        try:
            with self._path(key).open("rb", buffering=0) as file:
                return [self._part(file.fileno(), start, stop) for start, stop in ranges]
        except OSError as error:
            raise self._explain(error, key) from error

    def put(self, key: str, data: bytes) -> None:
        """Write a file."""
        try:
            with whole_file(self._path(key)) as out:
                out.write(data)
        except OSError as error:
            raise self._explain(error, key) from error

    def _part(self, descriptor: int, start: int, stop: int) -> bytes:
        os.lseek(descriptor, start, os.SEEK_SET)
        parts: list[bytes] = []
        while start < stop and (part := os.read(descriptor, stop - start)):
            parts.append(part)
            start += len(part)
        return b"".join(parts)

    def _chunk(self, file: RawIOBase, key: str) -> bytes:
        try:
            return file.read(_CHUNK) or b""
        except OSError as error:
            raise self._explain(error, key) from error

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if "" in parts or "." in parts or ".." in parts or "\0" in key or Path(key).is_absolute():
            raise UsageError(f"{key!r} is no key in {self._root}: no empty part, no . or .. and no NUL")
        return self._root / key

    def _walk(self, folder: Path, prefix: str, above: frozenset[tuple[int, int]]) -> Iterator[Entry]:
        try:
            status = folder.stat()
            here = (status.st_dev, status.st_ino)
            if here in above:  # a link back up: what lies there has been listed
                return
            folders, files = self._scan(folder, prefix)
        except (FileNotFoundError, NoSuchObject):  # removed since it was seen: nothing lies in it
            return
        except OSError as error:
            raise self._explain(error, prefix) from error
        yield from files
        for name, path in folders:
            yield from self._walk(Path(path), f"{prefix}{name}/", above | {here})

    def _scan(self, folder: Path, prefix: str) -> tuple[list[tuple[str, str]], list[Entry]]:
        folders: list[tuple[str, str]] = []
        files: list[Entry] = []
        try:
            with os.scandir(folder) as found:
                for one in found:
                    if one.name.startswith(PART):
                        continue
                    if one.is_dir():
                        folders.append((one.name, one.path))
                    elif one.is_file():
                        with suppress(FileNotFoundError):  # removed since it was seen
                            files.append(_entry(prefix + one.name, one.stat()))
                    elif one.is_symlink():  # leads nowhere: told by whoever reads it, and not left out
                        files.append(Entry(key=prefix + one.name, size=0, modified_ns=0))
        except OSError as error:
            raise self._explain(error, prefix) from error
        return sorted(folders), sorted(files, key=lambda entry: entry.key)

    def _explain(self, error: OSError, key: str) -> Exception:
        path = self._root / key
        if isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError)):
            what = "a link that leads nowhere" if path.is_symlink() else "removed, or never there"
            return NoSuchObject(f"no such file: {path}; it is {what}: put it back, or leave it out")
        if isinstance(error, PermissionError):
            return NotPermitted(f"{path} may not be reached by this user: {error.strerror}; check its rights")
        return StoreError(f"{path}: {error.strerror}; check the disk or mount that it lies on")


def _entry(key: str, status: os.stat_result) -> Entry:
    return Entry(key=key, size=status.st_size, modified_ns=status.st_mtime_ns)
