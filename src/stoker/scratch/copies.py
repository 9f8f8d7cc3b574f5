"""What Python writes goes to a copy: the functions of `os`, `io`, `shutil`, `sqlite3` and `torch.save`.

For where the kernel gives us no private root. A script that saves a checkpoint and looks for it
afterwards finds it; the user's own file is as it was.
"""

# Pathlib asks the functions that are replaced here.
# ruff: noqa: PTH120

import builtins
import functools
import io
import os
import shutil
import sqlite3
import urllib.parse
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from stoker.scratch.copy_store import CopyStore

_READS = ("stat", "lstat", "access", "readlink")
_CHANGES = ("truncate", "chmod", "chown", "utime", "setxattr", "removexattr", "mkfifo", "mknod")


def install(store: CopyStore) -> None:
    """Replace the functions, for this process and those it forks."""
    own_open, own_os_open = io.open, os.open

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        return own_open(_target(store, file, mode), mode, *args, **kwargs)

    def os_opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None:
            return own_os_open(path, flags, mode, dir_fd=dir_fd)
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            return own_os_open(store.to_write(path, keep=not flags & os.O_TRUNC), flags, mode)
        return own_os_open(store.to_read(path), flags, mode)

    builtins.open = io.open = opened
    os.open = os_opened
    for name in _READS:
        _redirect(os, name, store.to_read)
    for name in _CHANGES:
        _redirect(os, name, functools.partial(store.to_write, keep=True))
    _replace(store, os, "mkdir", lambda own, path, *args, **kwargs: store.make_folder(path))
    for name in ("remove", "unlink", "rmdir"):
        _replace(store, os, name, lambda own, path, **kwargs: store.remove(path))
    _replace(store, shutil, "rmtree", lambda own, path, *args, **kwargs: store.remove(path, whole=True))
    for name in ("rename", "replace"):
        _replace(store, os, name, lambda own, source, target, **kwargs: store.move(source, target), paths=2)
    for name in ("symlink", "link"):
        _link(store, name)
    _replace(store, os, "listdir", lambda own, path=".": store.names(path))
    _replace(store, os, "scandir", lambda own, path=".": _Entries(store, own, os.fspath(path)))
    _keep_databases(store)


def change_torch(store: CopyStore, torch: ModuleType) -> None:
    """`torch.save` opens a path by itself, in C++."""
    own = torch.save

    @functools.wraps(own)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        return own(obj, store.to_write(f, keep=False), *args, **kwargs)

    torch.save = save  # type: ignore[attr-defined]


def _target(store: CopyStore, file: Any, mode: str) -> Any:
    if set(mode) & set("wax+"):
        if "x" in mode and os.path.lexists(store.to_read(file)):
            return store.to_read(file)
        return store.to_write(file, keep="w" not in mode)
    return store.to_read(file)


def _redirect(module: ModuleType, name: str, where: Callable[[Any], Any]) -> None:
    own = getattr(module, name, None)
    if own is None:
        return

    @functools.wraps(own)
    def redirected(path: Any, *args: Any, **kwargs: Any) -> Any:
        return own(path if kwargs.get("dir_fd") is not None else where(path), *args, **kwargs)

    setattr(module, name, redirected)


def _replace(
    store: CopyStore, module: ModuleType, name: str, act: Callable[..., Any], *, paths: int = 1
) -> None:
    own = getattr(module, name)

    @functools.wraps(own)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        by_descriptor = any(kwargs.get(word) is not None for word in ("dir_fd", "src_dir_fd", "dst_dir_fd"))
        named = [*args[:paths], *(kwargs[word] for word in ("path", "src", "dst") if word in kwargs)] or ["."]
        if by_descriptor or not any(store.covers(path) for path in named):
            return own(*args, **kwargs)
        return act(own, *named[:paths])

    setattr(module, name, replaced)


def _link(store: CopyStore, name: str) -> None:
    own = getattr(os, name)

    @functools.wraps(own)
    def linked(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        # A hard link to an original would let it be written through the link.
        seen = store.to_write(source, keep=True) if name == "link" else source
        return own(seen, store.to_write(target, keep=False), *args, **kwargs)

    setattr(os, name, linked)


class _Entries:
    """What os.scandir gives: an iterator that is also a context."""

    def __init__(self, store: CopyStore, own: Callable[..., Any], path: str) -> None:
        wanted = set(store.entries(store.full(path)))
        folders = {os.path.dirname(entry) for entry in wanted}
        found = [entry for folder in folders for entry in own(folder) if entry.path in wanted]
        self._iterator: Iterator[os.DirEntry[str]] = iter(found)

    def __iter__(self) -> Iterator[os.DirEntry[str]]:
        return self._iterator

    def __next__(self) -> os.DirEntry[str]:
        return next(self._iterator)

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is open."""


def _keep_databases(store: CopyStore) -> None:
    own = sqlite3.connect

    @functools.wraps(own)
    def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(database, str) and (database in ("", ":memory:") or kwargs.get("uri")):
            database = _uri(store, database) if database.startswith("file:") else database
        else:
            database = store.to_write(database, keep=True)
        return own(database, *args, **kwargs)

    sqlite3.connect = sqlite3.dbapi2.connect = connect


def _uri(store: CopyStore, uri: str) -> str:
    parts = urllib.parse.urlsplit(uri)
    path = urllib.parse.unquote(parts.path)
    if not path or ":memory:" in path or "mode=memory" in parts.query:
        return uri
    copy = store.to_write(path, keep=True)
    return f"file:{urllib.parse.quote(copy)}{'?' + parts.query if parts.query else ''}"
