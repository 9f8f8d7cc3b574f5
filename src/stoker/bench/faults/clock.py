"""Clocks that jump: the wall clock as Python tells it, in a trial's processes, as far off as a file says.

The kernel's own clock is left alone, and so are times of files and the monotonic clock, which no setting of
a machine's time moves either.
"""

import os
from pathlib import Path

_SEAM = Path(__file__).parent / "clock_seam"


class Clock:
    """The wall clock of whatever is started with `env`; it jumps when it is told to."""

    def __init__(self, file: Path, environment: dict[str, str]) -> None:
        self._file = file
        path = os.pathsep.join([str(_SEAM), environment["PYTHONPATH"]])
        self.env = {"PYTHONPATH": path, "STOKER_FAULTS_CLOCK": str(file)}
        self.jump(0.0)

    def jump(self, seconds: float) -> None:
        """So far off from now on, ahead or (below 0) behind."""
        part = self._file.with_suffix(".part")
        part.write_text(f"{seconds:.3f}\n")
        part.replace(self._file)
