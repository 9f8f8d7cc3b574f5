"""Folders of other users in an overlay that a user namespace made: there before anything is written below.

To write a file, an overlay copies the folders above it into its upper layer, with their owners. In a user
namespace only we have a number: the copy of root's /var/tmp fails with EOVERFLOW, and with it every write
below. So such folders are made beforehand, as ours; what they hold is seen through them.
"""

# Paths are the kernel's own words, put under other roots.
# ruff: noqa: PTH101, PTH102, PTH112, PTH116

import os
import stat
from collections.abc import Iterable

# Deep enough for /mnt/disk/team; a folder of our own ends the walk on its branch anyway.
_DEPTH = 3
# 20 us each, so at most 40 ms.
_MOST = 2000
# Where no user but root has anything to write.
_SYSTEM = {"bin", "boot", "etc", "lib", "lib32", "lib64", "libx32", "lost+found", "sbin", "usr"}


def prepare(lower: str, upper: str, *, certain: Iterable[str]) -> None:
    """Make the folders of others in an upper layer: those above the certain paths, and those near the top."""
    made = 0
    for path in certain:
        if path == lower or path.startswith(lower.rstrip("/") + "/"):
            _make_above(lower, upper, os.path.relpath(path, lower))
    if lower.strip("/") in _SYSTEM:
        return
    waiting = [(lower, 1)]
    while waiting and made < _MOST:
        folder, depth = waiting.pop(0)
        for name in _foreign(folder):
            path = f"{folder.rstrip('/')}/{name}"
            _make(path, upper + path[len(lower.rstrip("/")) :])
            made += 1
            if depth < _DEPTH:
                waiting.append((path, depth + 1))


def _foreign(folder: str) -> list[str]:
    """The folders in a folder that are another user's, and that we may enter."""
    try:
        with os.scandir(folder) as entries:
            return [
                entry.name
                for entry in entries
                if entry.is_dir(follow_symlinks=False)
                and entry.stat(follow_symlinks=False).st_uid != os.geteuid()
                and os.access(entry.path, os.X_OK)
                and not (folder == "/" and entry.name in _SYSTEM)
            ]
    except OSError:
        return []  # not ours to list, so not ours to write in


def _make_above(lower: str, upper: str, relative: str) -> None:
    for part in (part for part in relative.split("/") if part != "."):
        lower, upper = f"{lower.rstrip('/')}/{part}", f"{upper}/{part}"
        if not os.path.isdir(lower) or os.stat(lower).st_uid == os.geteuid():
            return
        _make(lower, upper)


def _make(lower: str, upper: str) -> None:
    if os.path.isdir(upper):
        return
    os.mkdir(upper)
    os.chmod(upper, stat.S_IMODE(os.stat(lower).st_mode) | stat.S_IRWXU)
