"""A file that appears whole or not at all: written under another name in its folder, synced, renamed.

A killed writer leaves its part behind. A part is locked while it is written, so that what can be locked is
nobody's any more and may be removed, by whatever process and in whatever container its writer ran.
"""

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

if sys.platform != "win32":
    import fcntl

# Not made from the file's own name, which may be as long as names can be.
PART = ".stoker-part-"
# Without locks (Windows) a part is taken for dead when it has not been written to for so long.
_DEAD_S = 3600.0


@contextlib.contextmanager
def whole_file(path: Path, *, modified_ns: int | None = None) -> Iterator[BinaryIO]:
    """A file to write and read back; it gets its name when the block ends well, and is gone when it does not.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with whole_file(Path(folder) / "a" / "b") as out:
    ...         n = out.write(b"all of it")
    ...     (Path(folder) / "a" / "b").read_bytes()
    b'all of it'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file, part = _open_part(path.parent)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if sys.platform != "win32":  # renamed while locked: no moment in which it could be taken for dead
                _name(part, path, modified_ns)
        if sys.platform == "win32":
            _name(part, path, modified_ns)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def remove_leftovers(folder: Path) -> int:
    """Remove what killed writers left anywhere under a folder, where it may be; how many there were."""
    removed = 0
    for found, _, names in os.walk(folder):
        for name in names:
            if name.startswith(PART) and _is_dead(Path(found) / name):
                try:
                    (Path(found) / name).unlink(missing_ok=True)
                except OSError:  # a read-only mount, or another's folder: it is no harm there
                    continue
                removed += 1
    return removed


def _name(part: Path, path: Path, modified_ns: int | None) -> None:
    if modified_ns is not None:
        os.utime(part, ns=(time.time_ns(), modified_ns))
    part.replace(path)


def _open_part(folder: Path) -> tuple[BinaryIO, Path]:
    while True:
        part = folder / f"{PART}{secrets.token_hex(8)}"
        file = part.open("x+b")
        if sys.platform == "win32":
            return file, part
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file, part
        file.close()  # somebody cleaning up came between the opening and the lock


def _is_dead(part: Path) -> bool:
    try:
        if sys.platform == "win32":
            return time.time() - part.stat().st_mtime > _DEAD_S
        with part.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked by its writer, or just renamed
        return False
    return True
