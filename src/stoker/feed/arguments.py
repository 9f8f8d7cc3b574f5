"""What a feed and its sources are given, checked where it is taken: the value is told, and what to give.

Imports no torch: staging checks by these too.
"""

import os
import reprlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stoker.errors import UsageError


def checked_count(name: str, given: Any, what: str, least: int = 1) -> int:
    """A whole number of something."""
    if not _is_whole(given) or given < least:
        raise UsageError(f"{name} is {given!r}: give a number of {what}, {least} or more")
    return int(given)


def checked_or_none(name: str, given: Any, what: str) -> int | None:
    """The same where it was given."""
    return None if given is None else checked_count(name, given, what)


def checked_bytes(name: str, given: Any) -> int:
    """A whole number, also as 15e9."""
    if isinstance(given, float) and given.is_integer():
        given = int(given)
    return checked_count(name, given, "bytes", least=0)


def checked_share(name: str, given: Any, what: str) -> float:
    """A part of something."""
    if not isinstance(given, (int, float, np.floating)) or not 0 <= given <= 1:
        raise UsageError(f"{name} is {given!r}: it is a share of {what}, from 0 to 1")
    return float(given)


def checked_size(size: Any) -> tuple[int, int]:
    """The height and width of images."""
    sides = _whole_sides((size, size) if _is_whole(size) else size)
    if len(sides) != 2:
        raise UsageError(f"size={size!r}: give height and width in pixels, or one number for both")
    return sides[0], sides[1]


def checked_box(name: str, given: Any) -> tuple[int, int, int]:
    """The depth, height and width of a part of a volume."""
    sides = _whole_sides(given)
    if len(sides) != 3:
        raise UsageError(f"{name} is {given!r}: give depth, height and width in voxels, each at least 1")
    return sides[0], sides[1], sides[2]


def checked_list(name: str, given: Any, what: str) -> list[Any]:
    """Several of something: a text would be taken letter by letter."""
    if isinstance(given, (str, bytes)):
        raise UsageError(f"{name}={given!r} is one text: give a list, [{given!r}]")
    try:
        return list(given)
    except TypeError:
        raise UsageError(f"{name} is {given!r}: give a list of {what}") from None


def checked_text(name: str, given: Any, what: str) -> str:
    """A text, whatever it says."""
    if not isinstance(given, str):
        raise UsageError(f"{name} is {reprlib.repr(given)}: give {what}")
    return given


def checked_path(name: str, given: Any, what: str) -> str:
    """A path as text. An empty one is a mistake, and no name for the working directory."""
    text = checked_text(name, os.fspath(given) if isinstance(given, os.PathLike) else given, what)
    if not text:
        raise UsageError(f"{name} is '': give {what}")
    return text


def expanded(path: str) -> Path:
    """A path with the home that `~` stands for; as it is where there is no such home, and so no such path."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  # a Path's own raises RuntimeError for "~nobody"


def checked_call(name: str, given: Callable[..., Any] | None) -> None:
    """None, or what can be called with a batch or with samples."""
    if given is not None and not callable(given):
        raise UsageError(f"{name} is {given!r}: give a function, or leave it out")


def _whole_sides(given: Any) -> tuple[int, ...]:
    """Whole numbers from 1 on; none where one of them is something else."""
    sides = tuple(given) if isinstance(given, (Sequence, np.ndarray)) else ()
    return tuple(map(int, sides)) if all(_is_whole(side) and side >= 1 for side in sides) else ()


def _is_whole(given: Any) -> bool:
    return isinstance(given, (int, np.integer)) and not isinstance(given, bool)
