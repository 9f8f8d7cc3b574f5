"""What staging would do: where each object would lie, what is already there, how much room it takes."""

import os
import shutil
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from threading import get_ident

import numpy as np
from numpy.typing import NDArray

from stoker.errors import NoSpace, NotPermitted, UsageError
from stoker.feed.manifest import NAME, OF_PART, Line
from stoker.feed.sources.listing import Entry, Listing, encode
from stoker.feed.whole_file import PART

LOCK = ".stoker-stage.lock"
_LONGEST = 255
# What file systems cut times of change to: some keep them as they are; NTFS and SMB 100 ns, FUSE often 1 us,
# exFAT 10 ms, sshfs, ext3 and ext4 with small inodes a second, FAT two.
_TIME_STEPS_NS = (1, 100, 1_000, 10_000_000, 1_000_000_000, 2_000_000_000)
# A time that each of them changes.
_ODD_NS = 1_600_000_001_123_456_789


class Target:
    """The folder that objects are staged into: where each lies, and that none lies outside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._safe: set[Path] = set()
        self._may_write = True

    def path(self, key: str) -> Path:
        """Where the object with this key lies."""
        return self.folder / key

    def place(self, key: str) -> Path:
        """The same, its folders made; an error where a link would lead it out."""
        path = self.path(key)
        if path.parent not in self._safe:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.parent.resolve().is_relative_to(self.folder.resolve()):
                raise NotPermitted(
                    f"{path.parent} is a link that leads out of {self.folder}: nothing is written through "
                    "it; remove the link, or give the folder it leads to"
                )
            self._safe.add(path.parent)
        return path

    def remove(self, key: str) -> None:
        """Remove a file, and the folders that it was the last in: an empty one would be a class of images."""
        path = self.place(key)
        path.unlink(missing_ok=True)
        for folder in path.parents:
            if folder == self.folder:
                return
            try:
                folder.rmdir()
            except OSError:  # there is more in it
                return
            self._safe.discard(folder)

    def holds(self, entry: Entry) -> bool:
        """Whether a file of this size and time lies there. It is whole: names are given to nothing else."""
        try:
            status = self.path(entry.key).stat()
        except (OSError, ValueError):
            return False
        if status.st_size != entry.size or status.st_mtime_ns > entry.modified_ns:
            return False
        if status.st_mtime_ns == entry.modified_ns:
            return True
        steps = (self._time_step,) if self._may_write else _TIME_STEPS_NS
        return any(status.st_mtime_ns == entry.modified_ns // step * step for step in steps)

    @cached_property
    def _time_step(self) -> int:
        """What the folder's disk cuts times of change to, in ns, as seen of a file that is removed again.

        Not taken from a file's own time: an object written anew within the same two seconds would be it too.
        """
        probe = self.folder / f"{PART}times-{os.getpid()}-{get_ident()}"
        try:
            probe.touch()
            try:
                os.utime(probe, ns=(_ODD_NS, _ODD_NS))
                found = probe.stat().st_mtime_ns
            finally:
                probe.unlink(missing_ok=True)
        except OSError:  # nothing can be written here, so nothing was: times are as they are
            return 1
        return next((step for step in _TIME_STEPS_NS if found == _ODD_NS // step * step), 1)

    def check(self, keys: Iterable[str], *, probe: bool = True) -> None:
        """UsageError where keys cannot all be files in one folder; `probe`: what the disk does is tried."""
        self._may_write = probe
        files = set(keys)
        folders: set[str] = set()
        for key in files:
            if wrong := _fault_of(key):
                raise UsageError(
                    f"the key {key!r} cannot be a file under {self.folder}: {wrong}; leave it out by "
                    "--exclude"
                )
            parent = key.rpartition("/")[0]
            while parent and parent not in folders:
                folders.add(parent)
                parent = parent.rpartition("/")[0]
        if both := sorted(files & folders):
            raise UsageError(
                f"the key {both[0]!r} is an object and the beginning of others: it cannot be both a file and "
                "a folder; leave one out by --exclude"
            )
        if probe and folds_case(self.folder):
            self._check_case(files | folders)

    def _check_case(self, names: set[str]) -> None:
        seen: dict[str, str] = {}
        for name in sorted(names):
            other = seen.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
            if other != name:
                raise UsageError(
                    f"{other!r} and {name!r} are one file on {self.folder}, which does not tell upper from "
                    "lower case; leave one out by --exclude, or stage to another disk"
                )


def _fault_of(key: str) -> str | None:
    """Why a key is no path to a file below a folder."""
    if key.startswith("/") or Path(key).is_absolute():
        return "it is absolute"
    parts = key.split("/")
    if ".." in parts or "." in parts or "" in parts:
        return "it has a part that is empty, . or .."
    if "\0" in key or (os.name == "nt" and any(mark in key for mark in '\\:*?"<>|')):
        return "it has a character that file names cannot have"
    if any(len(os.fsencode(part)) > _LONGEST for part in parts):
        return f"it has a part longer than {_LONGEST} bytes"
    return None


def is_ours(key: str) -> bool:
    """Whether a key has one of the names that staging uses for itself."""
    return key in (NAME, LOCK) or key.startswith(OF_PART) or key.rpartition("/")[2].startswith(PART)


def folds_case(folder: Path) -> bool:
    """Whether the file system under a folder takes `a` and `A` for one name; unknown is no."""
    probe = folder / f"{PART}case"
    try:
        probe.touch()
        try:
            return probe.with_name(probe.name.upper()).exists()
        finally:
            probe.unlink(missing_ok=True)
    except OSError:
        return False


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Numbers of the listing's entries: those to copy, and those to read and check, with their digests."""

    listing: Listing
    copy: NDArray[np.int64]
    check: Mapping[int, str]
    kept: int
    removed: tuple[str, ...]
    skipped: tuple[str, ...]

    @property
    def copy_bytes(self) -> int:
        """The size of what is to be copied."""
        return int(self.listing.sizes[self.copy].sum())


def make_plan(
    listing: Listing,
    target: Target,
    lines: Mapping[str, Line],
    *,
    verify: bool = False,
    removed: tuple[str, ...] = (),
    skipped: tuple[str, ...] = (),
) -> Plan:
    """Compare the source with what is there. A file with its manifest line is trusted, unless `verify`."""
    copy: list[int] = []
    check: dict[int, str] = {}
    for number, entry in enumerate(listing):
        line = lines.get(entry.key)
        known = line.digest if line is not None and line.tells(entry) else None
        md5 = md5_of(entry)
        if not target.holds(entry) or (known is None and md5 is None):
            copy.append(number)  # missing, changed, or nothing to check it by
        elif known is None or verify:
            check[number] = known or f"md5:{md5}"
    return Plan(
        listing=listing,
        copy=np.array(copy, np.int64),
        check=check,
        kept=len(listing) - len(copy) - len(check),
        removed=removed,
        skipped=skipped,
    )


def in_part(key: str, part: tuple[int, int]) -> bool:
    """Whether an object belongs to this part, of so many: by its key alone, so that all machines agree."""
    number, count = part
    return int.from_bytes(blake2b(encode(key), digest_size=8).digest()) % count == number


def md5_of(entry: Entry) -> str | None:
    """The MD5 that a tag is, for objects put in one piece; other tags are no digests."""
    tag = entry.etag or ""
    return tag if len(tag) == 32 and all(c in "0123456789abcdef" for c in tag) else None


def require_room(plan: Plan, folder: Path) -> None:
    """NoSpace where what is to be copied does not fit, by bytes in whole blocks or by files."""
    # Here, because workers import this module, and facts bring libraries that they have no use for.
    from stoker.facts.words import size as in_words

    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not hasattr(os, "statvfs"):
        free, block, files = shutil.disk_usage(there).free, 4096, None
    else:
        status = os.statvfs(there)
        block = status.f_frsize
        free = status.f_bavail * block
        # 0 is a file system that does not count them.
        files = status.f_favail if status.f_files else None
    sizes = plan.listing.sizes[plan.copy]
    need = int((-(-sizes // block) * block).sum())
    if need > free:
        raise NoSpace(
            f"staging needs {in_words(need)} for {len(sizes):,} files, and {there} has {in_words(free)} "
            f"free, {in_words(need - free)} too little; free some, take fewer classes, or give another folder"
        )
    if files is not None and len(sizes) > files:
        raise NoSpace(
            f"staging needs {len(sizes):,} files, and {there} has room for {files:,} more (inodes); remove "
            "some, take fewer classes, or give another disk"
        )
