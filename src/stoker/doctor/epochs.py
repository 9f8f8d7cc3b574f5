"""What making a batch cost in the first epoch, and in those after it: whether reading became cheaper."""

from dataclasses import dataclass, field
from typing import Any

from stoker.watch.phases import Batch
from stoker.watch.tally import Making


@dataclass(slots=True)
class Epochs:
    """Running sums over a loader's batches, by the number of batches in an epoch."""

    length: int | None
    first: Making = field(default_factory=Making)
    later: Making = field(default_factory=Making)

    def add(self, batch: Batch) -> None:
        """One more batch, in the order in which they were made."""
        if self.length is not None:
            (self.first if self.first.batches < self.length else self.later).add(batch)

    def compared(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Means a batch of the first epoch and of the later ones; None before half of a second one."""
        if self.length is None or 2 * self.later.batches < self.length:
            return None
        return self.first.to_json(), self.later.to_json()
