"""A fake of the GPU driver: cards and processes by hand, where the facts would ask NVML.

    gpus = FakeGpus(card(used_bytes=20 << 30), occupants=[Occupant(pid=4242, bytes=20 << 30)])
    facts.collect(source=gpus)

A card is a `Reading`; what is left out is `None`, as with a driver that does not answer.
"""

from collections.abc import Sequence
from typing import Any

from stoker.facts.nvml import Occupant, Reading

__all__ = ["FakeGpus", "Occupant", "Reading", "card"]


def card(**values: Any) -> Reading:
    """Return a healthy, empty 80 GB card, with these values in place of its own."""
    total = values.get("total_bytes", 80 << 30)
    used = values.get("used_bytes", 0)
    healthy: dict[str, Any] = {
        "uuid": "GPU-00000000-0000-0000-0000-000000000000",
        "name": "Fake GPU",
        "total_bytes": total,
        "used_bytes": used,
        "free_bytes": None if total is None or used is None else total - used,
        "reserved_bytes": 600 << 20,
        "capability": (9, 0),
        "utilisation_percent": 0,
        "sm_clock_mhz": 1980,
        "sm_clock_max_mhz": 1980,
        "clock_reasons": ("idle",),
        "power_w": 80.0,
        "power_limit_w": 700.0,
        "power_default_w": 700.0,
        "temperature_c": 30,
        "pcie_gen": 5,
        "pcie_gen_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
    }
    return Reading(**{**healthy, **values})


class FakeGpus:
    """Stands where NVML would: one card with `occupants`, or several with `occupants_by_card`.

    `occupants=None` is a driver that lists no processes at all.
    """

    def __init__(
        self,
        *cards: Reading,
        occupants: Sequence[Occupant] | None = (),
        occupants_by_card: Sequence[Sequence[Occupant] | None] | None = None,
        driver: str | None = "fake",
    ) -> None:
        self._cards = cards
        self._occupants = occupants_by_card if occupants_by_card is not None else [occupants] * len(cards)
        self._driver = driver
        self.closed = False

    def driver(self) -> str | None:
        """Return the driver's version."""
        return self._driver

    def count(self) -> int:
        """Return the number of cards."""
        return len(self._cards)

    def read(self, index: int) -> Reading:
        """Return everything about one card."""
        return self._cards[index]

    def occupants(self, index: int) -> tuple[Occupant, ...] | None:
        """Return the processes on one card."""
        listed = self._occupants[index]
        return None if listed is None else tuple(listed)

    def sample(self, index: int, *, bus: bool) -> dict[str, object]:
        """Return the few values that change from second to second."""
        read = self._cards[index]
        values: dict[str, object] = {
            "index": index,
            "utilisation_percent": read.utilisation_percent,
            "used_bytes": read.used_bytes,
            "power_w": read.power_w,
            "sm_clock_mhz": read.sm_clock_mhz,
            "temperature_c": read.temperature_c,
            "clock_reasons": None if read.clock_reasons is None else list(read.clock_reasons),
        }
        if bus:
            values |= {"pcie_tx_kb_s": read.pcie_tx_kb_s, "pcie_rx_kb_s": read.pcie_rx_kb_s}
        return values

    def close(self) -> None:
        """Let go of the driver."""
        self.closed = True
