"""The card's memory by torch's own account: all that its allocator gave and took since CUDA was started."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

# Longer is not kept: a model with more in its first steps is not played again.
_MOST_EVENTS = 200_000


class History:
    """Begins when the script first uses CUDA, without a stack for any event; ends when it is taken.

    torch says that an event costs 2 us with its Python stack, which is left out here.
    """

    def __init__(self) -> None:
        self._why: str | None = "CUDA was not started"
        torch.cuda._lazy_call(self._begin)

    def _begin(self) -> None:
        """It runs inside the script's own first use of CUDA, which must not fail for it."""
        try:
            torch.cuda.memory._record_memory_history("all", context=None, max_entries=_MOST_EVENTS)
            self._why = None
        except RuntimeError as error:  # another allocator than torch's own keeps no history
            self._why = str(error)

    def take(self, device: int) -> dict[str, Any]:
        """Events as `Allocations` has them, and the most that was reserved; no events, and why, else."""
        told: dict[str, Any] = {"peak": torch.cuda.max_memory_reserved(device), "events": [], "streams": []}
        if self._why is not None:
            return {**told, "why": self._why}
        entries = torch.cuda.memory._snapshot(device)["device_traces"][device]
        torch.cuda.memory._record_memory_history(None)
        if len(entries) >= _MOST_EVENTS:
            return {**told, "why": f"more than {_MOST_EVENTS} allocations and frees in the first steps"}
        events, streams = as_numbers(entries)
        return {**told, "events": events, "streams": sorted(streams.items())}


def as_numbers(entries: Sequence[Mapping[str, Any]]) -> tuple[list[int], dict[int, int]]:
    """The allocator's entries as numbers; streams that are not the first one's, by the number of each."""
    events: list[int] = []
    streams: dict[int, int] = {}
    known: dict[int, int] = {}  # a stream's handle to its number
    held: dict[int, int] = {}  # an address to the number of what lies there
    made = 0
    for entry in entries:
        action, address = entry["action"], entry["addr"]
        if action == "alloc":
            made += 1
            held[address] = made
            events.append(max(1, int(entry["size"])))
            if number := known.setdefault(entry["stream"], len(known)):
                streams[made] = number
        elif action == "free_completed" and address in held:
            events.append(-held.pop(address))
        elif action == "segment_free" and (not events or events[-1]):
            events.append(0)
    return events, streams
