"""A value that each process makes for itself: connections, clients, open files.

A forked child that used its parent's connection would garble both; an object store's client used in a
parent hangs in its forked children. So what is inherited is neither used nor closed, only forgotten.
"""

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
# Kept for ever: what a fork brought along must not even be closed, and closing is what forgetting may do.
_inherited: list[Any] = []
_making = threading.RLock()


def _begin_child() -> None:
    """The lock may have been held by a thread that is not here."""
    global _making
    _making = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)


class PerProcess(Generic[T]):
    """Made by `make` on first use in each process, once whatever the threads; never pickled, but `make` is.

    >>> pid = PerProcess(os.getpid)
    >>> pid.get() == os.getpid()
    True
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: tuple[int, T] | None = None

    def get(self) -> T:
        """This process's own."""
        made = self._made
        if made is not None and made[0] == os.getpid():
            return made[1]
        with _making:
            made = self._made
            if made is None or made[0] != os.getpid():
                if made is not None:
                    _inherited.append(made)
                self._made = made = (os.getpid(), self._make())
            return made[1]

    def drop(self, only: T | None = None) -> T | None:
        """Forget it, so that the next use makes another; what this process had, for closing.

        With `only`, if it is still that one.
        """
        with _making:
            made = self._made
            if made is None or (only is not None and made[1] is not only):
                return None
            self._made = None
        if made[0] == os.getpid():
            return made[1]
        _inherited.append(made)
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return PerProcess, (self._make,)
