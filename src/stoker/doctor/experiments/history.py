"""The card's memory by torch's own account: all that its allocator gave and took since CUDA was started."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

# Longer is not kept: a model with more in its first steps is not played again.
_MOST_EVENTS = 200_000


class History:
    """Begins when the script first uses CUDA, without a stack for any event; ends when taken or stopped.

    torch says that an event costs 2 us with its Python stack, which is left out here. The calls are private
    parts of torch, made inside the script's own: whatever they raise is told as `why`, and harms nobody.
    """

    def __init__(self) -> None:
        self._why: str | None = "CUDA was not started"
        self._is_on = self._is_over = False
        try:
            torch.cuda._lazy_call(self._begin)
        except Exception as error:  # noqa: BLE001  it is told, and the script goes on
            self._why = words_of(error)

    def _begin(self) -> None:
        """It runs inside the script's own first use of CUDA, which may come after all is over."""
        if self._is_over:
            return
        try:
            torch.cuda.memory._record_memory_history("all", context=None, max_entries=_MOST_EVENTS)
            self._is_on, self._why = True, None
        except Exception as error:  # noqa: BLE001  another allocator than torch's own keeps no history
            self._why = words_of(error)

    def stop(self) -> None:
        """Record no more."""
        self._is_over = True
        if not self._is_on:
            return
        self._is_on = False
        try:
            torch.cuda.memory._record_memory_history(None)
        except Exception as error:  # noqa: BLE001
            self._why = words_of(error)

    def take(self, device: int) -> dict[str, Any]:
        """Events as `Allocations` has them, and the most that was reserved; what is lacking, with `why`."""
        told: dict[str, Any] = {"peak": None, "events": [], "streams": []}
        try:
            told["peak"] = torch.cuda.max_memory_reserved(device) or None  # 0: nothing was counted
            if self._why is None:
                entries = torch.cuda.memory._snapshot(device)["device_traces"][device]
                if len(entries) < _MOST_EVENTS:
                    events, streams = as_numbers(entries)
                    told |= {"events": events, "streams": sorted(streams.items())}
                else:
                    self._why = f"more than {_MOST_EVENTS} allocations and frees in the first steps"
        except Exception as error:  # noqa: BLE001
            self._why = words_of(error)
        self.stop()
        return told if self._why is None else {**told, "why": self._why}


def recorded(device: torch.device, work: Callable[[], None]) -> list[int] | None:
    """What a piece of work allocates and frees, as `Allocations` has it, where no history is recorded.

    None where memory was refused on the way, also where it was then had: libraries choose otherwise.
    """
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=_MOST_EVENTS)
    try:
        work()
        entries = torch.cuda.memory._snapshot(device.index)["device_traces"][device.index]
    except torch.OutOfMemoryError:
        return None
    finally:
        torch.cuda.memory._record_memory_history(None)
    if any(entry["action"] == "oom" for entry in entries):
        return None
    events, _ = as_numbers(entries)
    return [event for event in events if event]


def words_of(error: Exception) -> str:
    """An error's kind, and its first line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def as_numbers(entries: Sequence[Mapping[str, Any]]) -> tuple[list[int], dict[int, int]]:
    """The allocator's entries as numbers; streams that are not the first one's, by the number of each."""
    events: list[int] = []
    streams: dict[int, int] = {}
    known: dict[int, int] = {}  # a stream's handle to its number
    held: dict[int | None, int] = {}  # an address to the number of what lies there
    made = 0
    for entry in entries:
        action, address = entry["action"], entry.get("addr")  # a refused allocation has none
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
