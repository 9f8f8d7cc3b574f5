"""In the script's process: how much memory workers share with it, from when they have settled on.

The counters beside a run walk the memory of processes rarely, the larger the more so; some readings are
needed, all of them before a worker ends.
"""

import os
import threading
import time
from pathlib import Path
from typing import Any

from stoker.facts.counters import ProcessCounters

# Seconds from the first step that is observed: what every worker copies it has copied by then. And from one
# reading to the next: each takes some milliseconds a worker, beside the loop.
_SETTLED = 1.0
_EVERY = 3.0


class Sharing:
    """Readings of this process and its workers, as lines like those of `resources.jsonl`."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self._due: float | None = None

    def stepped(self, pids: list[int]) -> None:
        """A step was observed: now and then one has them read, beside the loop."""
        now = time.perf_counter()
        if self._due is None:
            self._due = now + _SETTLED
        elif pids and now >= self._due:
            self._due = now + _EVERY
            threading.Thread(target=self.read, args=(pids,), daemon=True).start()

    def read(self, pids: list[int]) -> None:
        """Add what each of them has now."""
        own = _read(os.getpid()) or {}
        workers = [found for pid in pids if (found := _read(pid)) is not None]
        line = {"t": time.time(), "anonymous_bytes": own.get("anonymous_bytes"), "processes": workers}
        self.lines.append(line)


def _read(pid: int) -> dict[str, Any] | None:
    if not Path("/proc/self/smaps_rollup").exists():
        return None
    counters = ProcessCounters(pid)
    try:
        found = counters.read()
        return None if found is None else {**found, **counters.read_sizes()}
    finally:
        counters.close()
