"""The folder that caches lie in: each found or made whole, all of them together under a cap.

A cache takes up what it will hold when it is full, from the day it is made: so the cap cannot be passed by
two that grow at once. Room is made by removing whole caches that nobody has open, the longest unused first.
What still does not fit is kept in part: the first rows of the source, the same ones for every process.
"""

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.feed.tiers.locks import alone, locked, share
from stoker.feed.tiers.pack import (
    HEADER,
    IN_USE,
    ROWS,
    SUMS,
    TABLE_BYTES,
    Content,
    bytes_of,
    create,
    read_header,
    sizes_of,
    write_header,
)

LOCK = "stoker-caches.lock"
_CACHE = re.compile(r"[0-9a-f]{32}")
_MAKING, _GOING = ".stoker-making-", ".stoker-going-"
# Held to find, make and remove caches, large ones too.
_PATIENCE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Found:
    """A cache ready to be opened; `in_use` is the descriptor that keeps it from being removed."""

    folder: Path
    kept: int
    in_use: int
    writable: bool
    why: str


@dataclass(frozen=True, kw_only=True)
class Other:
    """Another cache in the folder."""

    folder: Path
    bytes: int
    written: int
    used_ns: int


def find(root: Path, content: Content, *, cap_bytes: int, reserve_bytes: int) -> Found:
    """The cache of this content, made if it is not there; OSError if it cannot be."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / LOCK, patience_s=_PATIENCE_S) as mine:
            if not mine:
                raise TimeoutError(f"another process has held {root / LOCK} for {_PATIENCE_S:.0f} s")
            return _find(root, content, cap_bytes, reserve_bytes)
    except OSError as error:
        return _find_as_it_is(root / content.key, content, error)


def _find(root: Path, content: Content, cap_bytes: int, reserve_bytes: int) -> Found:
    folder = root / content.key
    _sweep(root)
    header = read_header(folder)
    if header is not None and not _is_whole(folder, content, header):
        header = None
    if header is None and folder.exists():
        _remove(folder)  # whatever lies there is not known to be ours
    now = header["kept"] if header else 0
    kept = _fit(root, content, now, cap_bytes, reserve_bytes)
    if header is None:
        made = root / f"{_MAKING}{secrets.token_hex(8)}"
        create(made, content, kept)
        made.rename(folder)
    elif kept != now:
        kept = _resize(folder, content, now, kept)
    in_use = share(folder / IN_USE)
    os.utime(folder / IN_USE)
    return Found(folder=folder, kept=kept, in_use=in_use, writable=True, why="")


def _is_whole(folder: Path, content: Content, header: dict[str, Any]) -> bool:
    """Whether the header is this content's, and all files are there at their full length."""
    if header != content.header(header["kept"]):
        return False
    try:
        return all((folder / name).stat().st_size == size for name, size in sizes_of(content).items())
    except FileNotFoundError:
        return False


def _find_as_it_is(folder: Path, content: Content, error: OSError) -> Found:
    """A cache that can be read where none can be made: a read-only mount, somebody else's folder."""
    header = read_header(folder)
    if header is None or not _is_whole(folder, content, header):
        raise error
    in_use = share(folder / IN_USE)
    return Found(folder=folder, kept=header["kept"], in_use=in_use, writable=False, why=str(error))


def _fit(root: Path, content: Content, now: int, cap_bytes: int, reserve_bytes: int) -> int:
    """How many rows may be kept, once room has been made for as many as possible."""
    folder = root / content.key
    others = sorted(_others(root, folder), key=lambda other: other.used_ns)
    wanted = content.bytes_of(content.samples)
    while True:
        by_cap = cap_bytes - sum(other.bytes for other in others)
        by_disk = free_bytes(root) - reserve_bytes - sum(other.bytes - other.written for other in others)
        by_disk += _written(folder)
        if wanted <= min(by_cap, by_disk) or not _evict_one(others):
            break
    # What is on the disk already stays there when the disk has become fuller, but not above the cap.
    kept = max(_rows_in(min(by_cap, by_disk), content), min(now, _rows_in(by_cap, content)))
    if kept < 1:
        if folder.exists():
            _evict_one([Other(folder=folder, bytes=0, written=0, used_ns=0)])
        raise OSError(
            errno.ENOSPC,
            f"no room for a row of {content.stride} bytes in {root}: the cap of {cap_bytes} bytes leaves "
            f"{max(by_cap, 0)}, the disk {max(by_disk, 0)} beside a reserve of {reserve_bytes}",
        )
    return kept


def _rows_in(size: int, content: Content) -> int:
    fixed = content.bytes_of(0)
    return min(content.samples, max(0, (size - fixed) // (content.stride + TABLE_BYTES)))


def _evict_one(others: list[Other]) -> bool:
    """Remove the longest unused of those that nobody has open, if there is one."""
    for other in others:
        with alone(other.folder / IN_USE) as unused:
            if unused:
                _remove(other.folder)
                others.remove(other)
                return True
    return False


def _others(root: Path, own: Path) -> Iterator[Other]:
    for folder in root.iterdir():
        # Only what is surely a cache is ever counted, and so removed: root may be anybody's folder.
        if folder == own or not _CACHE.fullmatch(folder.name) or not (folder / IN_USE).is_file():
            continue
        header = read_header(folder)
        written = _written(folder)
        told = [header[name] for name in ("samples", "kept", "stride", "entry")] if header else []
        size = bytes_of(*told) if told else written
        yield Other(
            folder=folder,
            bytes=max(size, written),
            written=written,
            used_ns=(folder / IN_USE).stat().st_mtime_ns,
        )


def _resize(folder: Path, content: Content, now: int, kept: int) -> int:
    """Keep more rows than so far, or fewer under a lower cap unless somebody has the cache open."""
    if kept < now:
        with alone(folder / IN_USE) as unused:
            if not unused:
                return now
            for name, cut in ((SUMS, kept * content.entry_bytes), (ROWS, kept * content.stride)):
                os.truncate(folder / name, cut)
                os.truncate(folder / name, sizes_of(content)[name])
    write_header(folder, content.header(kept))
    return kept


def _written(folder: Path) -> int:
    """What it takes on the disk now: rows never written are holes."""
    total = 0
    for name in (ROWS, SUMS, HEADER):
        try:
            total += (folder / name).stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def free_bytes(folder: Path) -> int:
    """What is left to users on the disk under a folder."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _remove(folder: Path) -> None:
    """Out of the way first, by one rename, so that no half removed cache is ever found."""
    going = folder.with_name(f"{_GOING}{secrets.token_hex(8)}")
    folder.rename(going)
    shutil.rmtree(going)


def _sweep(root: Path) -> None:
    """What was left behind by processes killed while they made or removed a cache; we hold the lock."""
    for folder in [found for found in root.iterdir() if found.name.startswith((_MAKING, _GOING))]:
        shutil.rmtree(folder)
