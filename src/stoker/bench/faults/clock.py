"""Clocks that jump: libfaketime before a command, and a file that says what time it is there.

The kernel's own clock is left alone, and so are times of files and the monotonic clock, which no setting of
a machine's time moves either.
"""

import functools
import sysconfig
from pathlib import Path

_PLACES = (
    f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
)


@functools.cache
def _library() -> Path | None:
    return next((Path(place) for place in _PLACES if Path(place).exists()), None)


def no_clock() -> str | None:
    """Why no clock can be made to jump here; None where one can."""
    return None if _library() is not None else "libfaketime is not installed (Debian: apt install faketime)"


class Clock:
    """The wall clock of whatever is started with `env`; it jumps when it is told to."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump(0.0)

    @property
    def env(self) -> dict[str, str]:
        """For the processes that are to have it."""
        return {
            "LD_PRELOAD": str(_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DISABLE_SHM": "1",
        }

    def jump(self, seconds: float) -> None:
        """So far off from now on, ahead or (below 0) behind."""
        part = self._file.with_suffix(".part")
        part.write_text(f"{seconds:+.3f}\n")
        part.replace(self._file)
