"""A copy of what a script changes, where no overlay can be: which path is read, and which is written.

Files that are written are copied here first, files that are removed are remembered as gone.
"""

# Pathlib asks the functions that are replaced here.
# ruff: noqa: PTH100, PTH112, PTH113, PTH114, PTH118, PTH119, PTH120

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from typing import Any

# As they are before anything is replaced.
_lstat, _listdir, _makedirs, _unlink = os.lstat, os.listdir, os.makedirs, os.unlink
_rmtree = shutil.rmtree


class CopyStore:
    """Maps the paths of a script to the originals or to their copies."""

    def __init__(self, folder: str, free: tuple[str, ...]) -> None:
        self._folder = folder
        self._free = (folder, *free)
        """Folders that may be written as they are."""
        self._gone: set[str] = set()
        self._resolving = threading.local()

    def covers(self, path: Any) -> bool:
        """Whether this is a path (and not a descriptor) that must not be written as it is."""
        if not isinstance(path, str | bytes | os.PathLike) or getattr(self._resolving, "now", False):
            return False
        full = self.full(path)
        return not any(full == folder or full.startswith(f"{folder}/") for folder in self._free)

    def to_read(self, path: Any) -> Any:
        """Where the script's version of this path is."""
        if not self.covers(path):
            return path
        full = self.full(path)
        copy = self._folder + full
        return copy if _there(copy) or self._is_gone(full) else path

    def to_write(self, path: Any, *, keep: bool) -> Any:
        """Where this path is to be written; with `keep`, what it holds is there already."""
        if not self.covers(path):
            return path
        full = self.full(path)
        copy = self._folder + full
        self._need_folder(full)
        if keep and not _there(copy) and not self._is_gone(full) and os.path.isfile(full):
            shutil.copy2(full, copy)
        return copy

    def make_folder(self, path: Any) -> None:
        """As os.mkdir."""
        full = self.full(path)
        if _there(self.to_read(full)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), full)
        self._need_folder(full)
        _makedirs(self._folder + full)

    def remove(self, path: Any, *, whole: bool = False) -> None:
        """As os.remove and os.rmdir; with `whole`, as rmtree."""
        full = self.full(path)
        seen = self.to_read(full)
        found = _lstat(seen)
        copy = self._folder + full
        if os.path.isdir(seen) and not os.path.islink(seen):
            if not whole and self.names(full):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), full)
            if _there(copy):
                _rmtree(copy)
        elif _there(copy):
            _unlink(copy)
        del found
        self._gone.add(full)

    def move(self, source: Any, target: Any) -> None:
        """As os.replace, of a file or a folder."""
        seen = self.to_read(source)
        _lstat(seen)
        copy = self.to_write(target, keep=False)
        if os.path.isdir(seen):
            shutil.copytree(self.full(source), copy, dirs_exist_ok=True)
        else:
            shutil.copy2(seen, copy)
        if self.covers(source):
            self.remove(source, whole=True)
        else:
            _rmtree(seen) if os.path.isdir(seen) else _unlink(seen)

    def names(self, path: Any) -> list[str]:
        """As os.listdir."""
        full = self.full(path)
        return sorted({os.path.basename(entry) for entry in self.entries(full)})

    def entries(self, full: str) -> Iterator[str]:
        """The paths behind a folder's entries, copies in place of originals."""
        copy = self._folder + full
        copied = set(_listdir(copy)) if os.path.isdir(copy) else None
        if copied is None or (not self._is_gone(full) and os.path.isdir(full)):
            for name in _listdir(full) if not self._is_gone(full) else _listdir(copy):
                if name not in (copied or ()) and not self._is_gone(f"{full.rstrip('/')}/{name}"):
                    yield f"{full.rstrip('/')}/{name}"
        for name in copied or ():
            yield f"{copy}/{name}"

    def _need_folder(self, full: str) -> None:
        parent = os.path.dirname(full)
        if not os.path.isdir(self.to_read(parent)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), full)
        _makedirs(self._folder + parent, exist_ok=True)

    def _is_gone(self, full: str) -> bool:
        while full not in ("", "/"):
            if full in self._gone:
                return True
            full = os.path.dirname(full)
        return False

    def full(self, path: Any) -> str:
        """The path without symbolic links, but for its last part."""
        # Links are followed by functions that are replaced themselves: on their way they must not ask us.
        self._resolving.now = True
        try:
            whole = os.path.abspath(os.fsdecode(path))
            return os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole))
        finally:
            self._resolving.now = False


def _there(path: str) -> bool:
    try:
        _lstat(path)
    except OSError:
        return False
    return True
