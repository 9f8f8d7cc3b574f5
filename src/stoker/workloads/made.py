"""Made data by name: made once, by whichever process comes first, and found again by all others."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.errors import NotPermitted, StokerError, UsageError

# Under the folder that a training is started in.
PLACE = Path(".stoker") / "data"
_DONE = ".made"
# The largest sets that are made by default take a minute.
_PATIENCE_S = 3600.0


def made_once(name: str, make: Callable[[Path], object], *, place: Path | None = None) -> Path:
    """The folder of this name, made by `make` unless it is whole already.

    The name must tell all settings. Ranks that start together do not make it twice; what a killed maker left
    is gone on with.
    """
    folder = (PLACE if place is None else place).absolute() / name
    done = folder / _DONE
    if done.exists():
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder.with_name(f".{name}.lock")):
            if not done.exists():
                make(folder)
                done.touch()
    except OSError as error:
        if isinstance(error, StokerError):
            raise
        raise NotPermitted(
            f"cannot make data in {folder}: {error.strerror or error}; make room there, start from a folder "
            "you may write to, or give the data by a path"
        ) from error
    return folder


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Wait for all others that hold this lock, and keep them out for the block."""
    if sys.platform == "win32":  # where trainings have one rank
        yield
        return
    from stoker.feed.tiers.locks import locked

    lock.parent.mkdir(parents=True, exist_ok=True)
    with locked(lock, patience_s=_PATIENCE_S) as mine:
        if not mine:
            raise UsageError(
                f"another process has held {lock} for {_PATIENCE_S:.0f} s, making or copying data: end it, "
                "or give the data by a path"
            )
        yield
