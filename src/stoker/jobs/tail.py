"""Lines that another process appends to a file, read as they come: whole ones, with the bytes read so far."""

from pathlib import Path

# A line without an end is told in parts of this size: a progress bar may print none for hours.
MOST_BYTES = 1 << 16
# In one reading.
_MOST_READ = 1 << 20


class Tail:
    """A place in a file. A file that is not there yet has no lines."""

    def __init__(self, path: Path, position: int = 0) -> None:
        self._path = path
        self.position = position

    def read(self, *, rest: bool = False) -> list[str]:
        """Whole lines since the last reading; with `rest`, also a last one without an end."""
        try:
            with self._path.open("rb") as file:
                file.seek(self.position)
                data = file.read(_MOST_READ)
        except FileNotFoundError:
            return []
        end = data.rfind(b"\n") + 1
        if len(data) - end > MOST_BYTES or (rest and len(data) < _MOST_READ):
            end = len(data)
        self.position += end
        if not end:
            return []
        return data[:end].decode(errors="replace").removesuffix("\n").split("\n")
