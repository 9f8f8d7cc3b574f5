"""Class folders: which classes of a store are taken, and which of its files. Shared by images and staging."""

import difflib
import fnmatch
import re
from collections.abc import Iterable, Sequence

import numpy as np

from stoker.errors import UsageError
from stoker.feed.arguments import checked_list
from stoker.feed.sources.listing import Listing
from stoker.feed.sources.objects import Store
from stoker.feed.subset import choose_classes


def gather_classes(store: Store, classes: int | Sequence[str] | None, seed: int) -> tuple[list[str], Listing]:
    """The classes taken, sorted, and what lies in their folders. Only those folders are listed."""
    taken = pick_classes(store, classes, seed)
    return taken, store.gather(taken)


def pick_classes(store: Store, classes: int | Sequence[str] | None, seed: int) -> list[str]:
    """All classes, that many by the seed, or the named ones. Hidden folders are none."""
    there = [name for name in store.folders() if not name.startswith(".")]
    if classes is None:
        return there
    if isinstance(classes, (int, np.integer)):
        if not there:
            raise UsageError(f"{store.url} has no class folders; give the folder above them")
        return choose_classes(there, int(classes), seed)
    named = checked_list("classes", classes, "names, or a number of classes")
    for name in named:
        if name not in there:
            near = difflib.get_close_matches(str(name), there, n=3) or there[:8]
            raise UsageError(
                f"no class {name!r} in {store.url}: of {len(there)} folders the nearest are {', '.join(near)}"
            )
    return sorted(set(named))


class Globs:
    """Which keys are taken: one that an `include` pattern matches (or any, without), and no `exclude` one.

    A pattern without `/` is for the file's name, one with it for the whole key; `*` matches `/` too.

    >>> Globs(include=["*.jpg"], exclude=["test/*"]).match("train/cat/1.jpg")
    True
    """

    def __init__(self, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> None:
        self._include = [_compile(pattern) for pattern in checked_list("include", include, "patterns")]
        self._exclude = [_compile(pattern) for pattern in checked_list("exclude", exclude, "patterns")]

    def match(self, key: str) -> bool:
        """Whether this one is taken."""
        name = key.rpartition("/")[2]

        def matches(pattern: tuple[bool, re.Pattern[str]]) -> bool:
            whole, expression = pattern
            return expression.match(key if whole else name) is not None

        if self._include and not any(map(matches, self._include)):
            return False
        return not any(map(matches, self._exclude))


def _compile(pattern: str) -> tuple[bool, re.Pattern[str]]:
    return "/" in pattern, re.compile(fnmatch.translate(pattern))
