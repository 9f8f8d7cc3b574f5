"""The files that a dataset reads: which they are, how much they hold, and how they leave the page cache.

Files are found where they show: open in this process, mapped by it, opened while samples were read, and named
by the dataset's own attributes. What a library opens and closes by itself, under a name that the dataset does
not hold, is not found.
"""

# Paths are the kernel's own words, and a set may have a million of them.
# ruff: noqa: PTH100, PTH110, PTH120, PTH115, PTH116, PTH118, PTH208

import ctypes
import mmap
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

# Of a long list of paths so many are looked at, and their mean stands for all.
_SAMPLED = 256
# Entries of folders that are counted; a larger one is not.
_MOST_ENTRIES = 20_000
_DEPTH = 4
_MOST_LOOKED_AT = 5_000
_LONGEST_PATH = 1_024
# Bytes that may be put out of the page cache for an experiment: the user's next run has to read them again.
_MOST_EVICTED = 256 << 20
# What may stay in it for a pass to count as cold.
_MOST_LEFT = 0.1
# Nobody keeps a dataset there; locale tables and certificates are read from there.
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/usr/", "/lib", "/etc/", f"{sys.prefix}/", f"{sys.base_prefix}/lib/")
_CODE = (".py", ".pyc", ".so")


class OpenedFiles:
    """Paths that this process opens for reading by Python's `open` or `os.open`, while it listens."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.listening = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.listening or event != "open":
            return
        path, _, flags = args
        if isinstance(path, (str, bytes, os.PathLike)) and not flags & (os.O_WRONLY | os.O_RDWR):
            self.paths.add(os.fsdecode(path))


def regular(paths: set[str]) -> dict[tuple[int, int], tuple[str, int]]:
    """Path and size of those that are files with data, each file once."""
    found = {}
    for path in paths:
        if path.endswith(_CODE) or path.startswith(_SYSTEM):
            continue
        try:
            told = os.stat(path)
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(told.st_mode) and told.st_size:
            found[told.st_dev, told.st_ino] = (path, told.st_size)
    return found


def open_here() -> set[str]:
    """Files that this process holds open for reading alone, or has mapped."""
    found = set()
    for name in _entries("/proc/self/fd"):
        try:
            info = Path(f"/proc/self/fdinfo/{name}").read_text().split()
            if int(info[info.index("flags:") + 1], 8) & os.O_ACCMODE == os.O_RDONLY:
                found.add(os.readlink(f"/proc/self/fd/{name}"))
        except (OSError, ValueError):  # closed meanwhile
            continue
    return found | {path for _, _, path in _maps()}


def held_by(dataset: Any, opened: set[str]) -> int | None:
    """Bytes in the files that a dataset names or has open; None where none is found, or too many.

    Folders count only where no file is found: there may be more in them than the dataset reads.
    """
    named: dict[str, float] = {}
    _walk(dataset, _DEPTH, 1.0, named, set())
    # Where some stand for all, those opened beside them are among them.
    counted = {os.path.dirname(os.path.abspath(path)) for path, weight in named.items() if weight > 1}
    others = {path for path in opened if os.path.dirname(os.path.abspath(path)) not in counted}
    files = regular(others | set(named))
    if files:
        return round(sum(size * named.get(path, 1.0) for path, size in files.values()))
    return _size_of_folders({path for path in named if Path(path).is_dir()})


def evict(paths: set[str]) -> str | None:
    """Put files out of the page cache; None where that is shown to have worked, else why it has not."""
    files = list(regular(paths).values())
    total = sum(size for _, size in files)
    if not files:
        return "no file was seen to be read"
    if total > _MOST_EVICTED:
        return f"the files hold {total / 1e6:,.0f} MB: more than an experiment may put out of the page cache"
    if not hasattr(os, "posix_fadvise"):
        return "this platform has no way to put a file out of the page cache"
    _let_go_of_maps({path for path, _ in files})
    for path, _ in files:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
    left = [resident(path, size) for path, size in files]
    if any(share is None for share in left):
        return "whether pages are in memory cannot be told here"
    still = sum((share or 0.0) * size for share, (_, size) in zip(left, files, strict=True)) / total
    return f"{still:.0%} of the files stayed in the page cache" if still > _MOST_LEFT else None


def resident(path: str, size: int) -> float | None:
    """The share of a file that is in the page cache; None where the kernel does not say."""
    handle = os.open(path, os.O_RDONLY)
    try:
        # A private map: ctypes takes the address of none that is read-only.
        with mmap.mmap(handle, size, access=mmap.ACCESS_COPY) as mapped:
            pages = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE
            told = (ctypes.c_ubyte * pages)()
            begin = ctypes.c_char.from_buffer(mapped)
            failed = _libc().mincore(ctypes.byref(begin), ctypes.c_size_t(size), told)
            del begin
            return None if failed else sum(page & 1 for page in told) / pages
    finally:
        os.close(handle)


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # no such counters on this platform
        return []


def _walk(value: Any, depth: int, weight: float, named: dict[str, float], seen: set[int]) -> None:
    """Paths that exist, among what a value holds, each with how many it stands for."""
    if len(seen) > _MOST_LOOKED_AT:
        return
    seen.add(id(value))
    if isinstance(value, (str, os.PathLike)):
        path = os.fsdecode(value)
        if 0 < len(path) < _LONGEST_PATH and "\0" not in path and os.path.exists(path):
            named[path] = max(weight, named.get(path, 0.0))
        return
    if not depth:
        return
    if getattr(getattr(value, "dtype", None), "kind", None) in ("U", "O") and hasattr(value, "tolist"):
        value = value.ravel()  # an array of paths
    elif isinstance(value, Mapping):
        value = list(value.values())
    elif hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType)) and not callable(value):
        value = list(vars(value).values())
        for inner in value:
            if id(inner) not in seen:
                _walk(inner, depth - 1, weight, named, seen)
        return
    elif not isinstance(value, (list, tuple)):
        return
    every = max(1, len(value) // _SAMPLED)
    for inner in value[::every]:
        _walk(inner, depth - 1, weight * every, named, seen)


def _size_of_folders(folders: set[str]) -> int | None:
    total = entries = 0
    for folder in folders:
        for inside, _, names in os.walk(folder):
            entries += len(names)
            if entries > _MOST_ENTRIES:
                return None
            total += sum(size for _, size in regular({os.path.join(inside, one) for one in names}).values())
    return total or None


def _maps() -> Iterator[tuple[int, int, str]]:
    """(begin, end, path) of files that are mapped shared and never written to."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        words = line.split(maxsplit=5)
        if len(words) == 6 and words[1] == "r--s" and words[5].startswith("/"):
            begin, end = (int(part, 16) for part in words[0].split("-"))
            yield begin, end, words[5]


def _let_go_of_maps(paths: set[str]) -> None:
    """Unmap the pages (not the maps) of these files in this process: mapped pages are not evicted."""
    real = {os.path.realpath(path) for path in paths}
    for begin, end, path in _maps():
        if os.path.realpath(path) in real:
            _libc().madvise(
                ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), ctypes.c_int(mmap.MADV_DONTNEED)
            )
