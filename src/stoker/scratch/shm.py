"""Shared memory that a run leaves in the machine's own /dev/shm, where it could not have a private one.

What its processes map or hold open, and what torch named by their numbers, is theirs.
"""

from collections.abc import Iterable
from pathlib import Path

import psutil

_FOLDER = Path("/dev/shm")


def names() -> set[str]:
    """The entries that are there now."""
    return {path.name for path in _FOLDER.iterdir()} if _FOLDER.is_dir() else set()


def held_by(processes: Iterable[psutil.Process]) -> set[str]:
    """The entries that these processes map, hold open, or made by torch's naming."""
    there, found = names(), set()
    for process in processes:
        found |= {name for name in there if name.startswith(f"torch_{process.pid}_")}
        for link in _links(process.pid):
            if link.startswith(f"{_FOLDER}/"):
                found.add(link.removeprefix(f"{_FOLDER}/").split(" (deleted)")[0])
    return found & there


def remove(found: Iterable[str]) -> None:
    """Take entries away."""
    for name in found:
        (_FOLDER / name).unlink(missing_ok=True)


def _links(pid: int) -> Iterable[str]:
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
        yield from (line.split(maxsplit=5)[5] for line in maps if f" {_FOLDER}/" in line)
        for link in Path(f"/proc/{pid}/fd").iterdir():
            yield str(link.readlink())
    except OSError:
        return  # it ended meanwhile
