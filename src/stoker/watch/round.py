"""What travels from the process that trains to the one that writes, twice a second."""

import marshal
import struct
from typing import Any, NamedTuple

from stoker.watch.notes import Aside

# Length of the message behind it.
HEAD = struct.Struct("<I")


class Round(NamedTuple):
    """What was noted since the last round. All of it is numbers, text and lists: it is marshalled as it is.

    `told` are the workers' tellings by loader; `marks` and `pairs` the device's times (`EventLog`); `about`
    is JSON: what is known of the loaders, the goal and the training thread, where that has changed;
    `counters` asks for a reading of the machine's, and holds the allocator's.
    """

    notes: list[Any]
    aside: list[Aside] = []  # noqa: RUF012  # never changed
    told: list[tuple[int, list[Any]]] = []  # noqa: RUF012
    marks: list[float] = []  # noqa: RUF012
    pairs: list[float] = []  # noqa: RUF012
    unix_less_clock: float = 0.0
    about: str | None = None
    counters: dict[str, Any] | None = None
    last: bool = False

    def to_bytes(self) -> bytes:
        """The round as a message, its head included."""
        body = marshal.dumps(tuple(self))
        return HEAD.pack(len(body)) + body

    @classmethod
    def from_bytes(cls, body: bytes) -> "Round":
        """The round that such a message holds, without its head."""
        return cls(*marshal.loads(body))
