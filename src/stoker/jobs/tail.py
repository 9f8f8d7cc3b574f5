"""Lines that another process writes to a file, read as they come: whole ones, with the bytes read so far."""

import os
from pathlib import Path
from typing import BinaryIO

# A line without an end is told in parts of this size: a progress bar may print none for hours.
MOST_BYTES = 1 << 16
# In one reading. What is read of a log is one transaction: of 2,000 lines a short one, of the million empty
# ones that a mebibyte may have one of 4.3 s, in which nobody else writes.
_MOST_READ, MOST_LINES = 1 << 20, 2000
# So much of what was read last is looked at again, to see that it is still there.
_MARK_BYTES = 256


class Tail:
    """A place in a file. A file that is not there yet has no lines.

    One that `restarts` may be begun anew by its writer, under its name or in its place: it is then read from
    its beginning, and what was there before may be told again. Of `most_lines` in a reading, -1 are all.
    """

    def __init__(
        self, path: Path, position: int = 0, *, restarts: bool = False, most_lines: int = MOST_LINES
    ) -> None:
        self._path = path
        self._restarts, self._most_lines = restarts, most_lines
        self._file: int | None = None
        self._mark = b""
        self.position = position

    def read(self, *, rest: bool = False) -> list[str]:
        """Whole lines since the last reading; with `rest`, also a last one without an end."""
        try:
            with self._path.open("rb") as file:
                if self._restarts:
                    self._look_for_mark(file)
                if self.position >= os.fstat(file.fileno()).st_size:  # also where a store hears no more of it
                    return []
                file.seek(self.position)
                data = file.read(_MOST_READ)
        except FileNotFoundError:
            return []
        *whole, left = data.split(b"\n", self._most_lines)
        end = len(data) - len(left)
        is_last = len(whole) != self._most_lines
        if is_last and (len(left) > MOST_BYTES or (rest and len(data) < _MOST_READ)):
            end = len(data)
        self.position += end
        self._mark = (self._mark + data[:end])[-_MARK_BYTES:]
        if not end:
            return []
        return data[:end].decode(errors="replace").removesuffix("\n").split("\n")

    def _look_for_mark(self, file: BinaryIO) -> None:
        """Back to the beginning where it is another file, or has not what was read from it any more.

        By its size alone one that has grown past the old one meanwhile would be read on in its middle.
        """
        number = os.fstat(file.fileno()).st_ino
        file.seek(self.position - len(self._mark))
        if self._file not in (None, number) or file.read(len(self._mark)) != self._mark:
            self.position, self._mark = 0, b""
        self._file = number
