"""What the tests of scratch share: a user's project, its hash, and who is still alive."""

import hashlib
import os
import sys
from pathlib import Path

import psutil

from stoker.scratch import Plan
from stoker.scratch.values import Mechanism

HERE = Path(__file__).parent


def plan(script: Path, *args: str, **words: object) -> Plan:
    """A plan for a script, with the hooks of these tests in reach."""
    env = {"PYTHONPATH": str(HERE), **words.pop("env", {})}  # type: ignore[dict-item]
    return Plan(command=(str(script), *args), env=env, **words)  # type: ignore[arg-type]


def digest(folder: Path) -> str:
    """Every path below a folder with its bytes, mode and link target; `__pycache__` apart."""
    seen = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if "__pycache__" in path.parts:
            continue
        seen.update(
            f"{path.relative_to(folder)}\0{path.lstat().st_mode:o}\0".encode(errors="surrogateescape")
        )
        if path.is_symlink():
            seen.update(os.fsencode(path.readlink()))
        elif path.is_file():
            seen.update(path.read_bytes())
    return seen.hexdigest()


def marked(mark: str) -> list[int]:
    """The living processes that have a mark in their environment or arguments."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and (
                mark in process.environ().values() or mark in process.cmdline()
            ):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def can_overlay() -> bool:
    """Whether this machine lets us have private mounts."""
    if sys.platform != "linux":
        return False
    pid = os.fork()
    if pid == 0:
        from stoker.scratch import namespaces

        try:
            namespaces.enter(mounts=True, processes=False, offline=False)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def can_landlock() -> bool:
    """Whether this kernel has Landlock."""
    from stoker.scratch import landlock

    try:
        landlock.check()
    except (OSError, AttributeError):
        return False
    return True


def available(mechanism: Mechanism) -> bool:
    """Whether a shield can be tried here."""
    if mechanism == "overlay":
        return can_overlay()
    return mechanism == "patches" or can_landlock()
