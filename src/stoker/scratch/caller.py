"""The supervisor's side of its caller: what it asks for, what it is told. A slow caller holds nobody up."""

import json
import os
from typing import Any

_IN, _OUT = 0, 1


class Caller:
    """Standard input and output, at whose other ends the caller is."""

    def __init__(self) -> None:
        os.set_blocking(_OUT, False)
        self._waiting = bytearray()

    def listen(self) -> str:
        """What the caller wants, when its end of the pipe is ready; the only word it has is end."""
        return "the caller ended it" if os.read(_IN, 1 << 12) else "the caller is gone"

    def tell(self, **line: Any) -> None:
        """Put a line in the queue."""
        self._waiting += json.dumps(line).encode() + b"\n"

    @property
    def is_behind(self) -> bool:
        """Whether lines are waiting."""
        return bool(self._waiting)

    def flush(self) -> None:
        """Give the caller as much as it takes now."""
        try:
            del self._waiting[: os.write(_OUT, self._waiting)]
        except BlockingIOError:
            pass  # it reads later
        except BrokenPipeError:
            self._waiting.clear()  # it is gone

    def finish(self) -> None:
        """Give the caller all of it, however long it takes to read."""
        os.set_blocking(_OUT, True)
        while self._waiting:
            self.flush()
