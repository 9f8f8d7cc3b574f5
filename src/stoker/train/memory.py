"""What a training has of its card's memory, and whether the card is so full that its allocator struggles."""

import torch


class DeviceMemory:
    """Reads torch's own counters; `None` for a device that has none."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._retries = 0
        self._struggled = False

    def peak(self) -> int | None:
        """The most bytes in use so far, of this process."""
        if self._device.type != "cuda":
            return None
        return int(torch.cuda.max_memory_allocated(self._device))

    def read_warning(self) -> str | None:
        """Since the last call: whether the allocator had to empty its cache to find room, again.

        Once is what a new size costs. Again and again, every step waits for the driver.
        """
        if self._device.type != "cuda":
            return None
        retries = int(torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0))
        return self.judge(retries)

    def judge(self, retries: int) -> str | None:
        """The same, of a count of all retries so far."""
        more, self._retries = retries - self._retries, retries
        again, self._struggled = more > 0 and self._struggled, more > 0
        if not again:
            return None
        return (
            f"the device is nearly full: its allocator emptied its cache {more} times since the last line, "
            "which stalls steps; a lower train.micro_batch is faster"
        )
