"""Losses of many steps as one mean: summed on the device, read by the host when it is asked for."""

from collections.abc import Mapping

import torch
from torch import Tensor

from stoker.train.meeting import Meeting


class Means:
    """Sums of named losses, each weighted by its samples, in float64."""

    def __init__(self, device: torch.device) -> None:
        # Not every accelerator has float64.
        self._dtype = torch.float32 if device.type == "mps" else torch.float64
        self._device = device
        self._sums: dict[str, Tensor] = {}
        self._samples = 0

    @torch.no_grad()
    def add(self, values: Mapping[str, Tensor], samples: int) -> None:
        """A micro-batch's means over so many samples."""
        for name, value in values.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros((), dtype=self._dtype, device=self._device)
            self._sums[name].add_(value.detach(), alpha=samples)
        self._samples += samples

    def read(self, meeting: Meeting | None = None) -> dict[str, float]:
        """The means so far, of all ranks if they meet; waits for the device."""
        names, (*sums, samples) = self._numbers(meeting)
        return {name: value / samples for name, value in zip(names, sums, strict=True)} if samples else {}

    def clear(self) -> None:
        """Begin anew."""
        self._sums, self._samples = {}, 0

    def state(self, meeting: Meeting | None = None) -> dict[str, float]:
        """The sums, as numbers; of all ranks if they meet."""
        names, sums = self._numbers(meeting)
        return {
            **{f"sum/{name}": value for name, value in zip(names, sums[:-1], strict=True)},
            "samples": sums[-1],
        }

    def load(self, state: Mapping[str, float]) -> None:
        """Go on from kept sums."""
        self.clear()
        for name, value in state.items():
            if name.startswith("sum/"):
                self._sums[name.removeprefix("sum/")] = torch.tensor(
                    value, dtype=self._dtype, device=self._device
                )
        self._samples = int(state["samples"])

    def _numbers(self, meeting: Meeting | None) -> tuple[list[str], list[float]]:
        """The names, and their sums with the samples last."""
        names = sorted(self._sums)
        if meeting is not None and meeting.size > 1:
            # A rank may have had no sample of a short batch, and so no names yet; rank 0 always has.
            names = meeting.share(names)
        zero = torch.zeros((), dtype=self._dtype, device=self._device)
        sums = torch.stack([self._sums.get(name, zero) for name in names]).tolist() if names else []
        sums.append(float(self._samples))
        return names, sums if meeting is None else meeting.sum(sums)
