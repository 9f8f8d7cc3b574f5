"""A value that each process makes for itself: connections, clients, open files.

A forked child that used its parent's connection would garble both; an object store's client used in a
parent hangs in its forked children. So what is inherited is neither used nor closed, only forgotten.
"""

import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Made by `make` on first use in each process; never pickled, but `make` is.

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
        if made is None or made[0] != os.getpid():
            self._made = made = (os.getpid(), self._make())
        return made[1]

    def drop(self) -> T | None:
        """Forget it, so that the next use makes another; what this process had, for closing."""
        made, self._made = self._made, None
        return made[1] if made is not None and made[0] == os.getpid() else None

    def __reduce__(self) -> tuple[Any, ...]:
        return PerProcess, (self._make,)
