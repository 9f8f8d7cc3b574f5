"""Before the first step: what will hurt on the device to be used, and whether the step will fit it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from stoker import facts
from stoker.doctor.peaks import fit
from stoker.facts.words import size
from stoker.train.config import OptimizerConfig

# States of a weight's size that an optimizer makes in its first update.
_STATES = {"adamw": 2, "adam": 2, "sgd": 1}
# The line through smaller sizes is made from these shares of the micro-batch.
_SHARES = (8, 4, 2)
# Peaks of batches this small do not lie on the line of larger ones (see doctor.peaks).
_SMALLEST = 2


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a micro-batch will need of the device's memory, by a line through smaller ones; in bytes."""

    micro_batch: int
    fixed: int
    per_sample: int
    # By how much the line missed a size that it was not made from, as a share.
    error: float
    room: int

    @property
    def need(self) -> int:
        """In the middle."""
        return self.fixed + self.per_sample * self.micro_batch

    @property
    def overflows(self) -> bool:
        """Whether it will not fit."""
        return self.need > self.room

    @property
    def text(self) -> str:
        """In a sentence, with what to do."""
        told = (
            f"a micro-batch of {self.micro_batch} is predicted to need {size(self.need)} "
            f"(\u00b1 {self.error:.0%}, from smaller ones), and {size(self.room)} are free"
        )
        if not self.overflows:
            return told
        return (
            f"{told}: it will be lowered when memory runs out; set train.micro_batch={self.largest} to be "
            "spared that"
        )

    @property
    def largest(self) -> int:
        """The largest that the line has room for; at least 1."""
        if self.per_sample <= 0:
            return self.micro_batch
        return max(1, min(self.micro_batch, (self.room - self.fixed) // self.per_sample))


def look(device: torch.device, source: Any = None) -> tuple[facts.Warned, ...]:
    """What `stoker check` warns of, for the device that will be used; `source` stands in for NVML."""
    found = facts.collect(source=source)
    used = _uuid(device)
    cards = tuple(card for card in found.gpus if used is not None and card.uuid == used)
    if used is not None and not cards:  # a part of a card has an id of its own
        cards = tuple(card for card in found.gpus if card.visible is not False)
    return tuple(facts.warnings_of(replace(found, gpus=cards)))


def sizes_to_try(micro_batch: int) -> tuple[int, ...]:
    """Sizes to run before the full one, three of them; none where it is too small for a line.

    >>> sizes_to_try(32), sizes_to_try(8)
    ((4, 8, 16), ())
    """
    sizes = tuple(micro_batch // share for share in _SHARES)
    return sizes if sizes[0] >= _SMALLEST else ()


def predict(
    measure: Callable[[int], int | None], *, micro_batch: int, states: int, room: int
) -> Prediction | str:
    """The prediction, or why there is none. `measure` runs a size and gives its peak, None out of memory.

    `states` is what the optimizer will hold besides. Where a smaller size overflows already, it is said so.
    """
    points: list[tuple[int, int]] = []
    for samples in sizes_to_try(micro_batch):
        peak = measure(samples)
        if peak is None:
            return (
                f"{samples} samples are too many for the device already, and the micro-batch is {micro_batch}"
            )
        points.append((samples, peak + states))
    if not points:
        return f"a micro-batch of {micro_batch} is too small to be predicted from smaller ones"
    line = fit(points)
    if line.fixed is None or line.per_sample is None:
        return "the peaks of smaller micro-batches lie on no line"
    return Prediction(
        micro_batch=micro_batch,
        fixed=line.fixed,
        per_sample=line.per_sample,
        error=line.error or 0.0,
        room=room,
    )


def bytes_of_states(model: torch.nn.Module, config: OptimizerConfig) -> int:
    """What an optimizer's first update will add."""
    kept = _STATES[config.name] if config.name != "sgd" or config.momentum else 0
    return kept * sum(weight.nbytes for weight in model.parameters() if weight.requires_grad)


def peak_of(run: Callable[[], object], device: torch.device) -> int | None:
    """The most memory that torch had in use on a card while `run` ran; None where it ran out."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    try:
        run()
    except torch.OutOfMemoryError:
        return None
    finally:
        torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device))


def room_on(device: torch.device) -> int:
    """What torch may have in use on a card: what is free, and what it has set aside already."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free) + int(torch.cuda.memory_reserved(device))


def _uuid(device: torch.device) -> str | None:
    if device.type != "cuda":
        return None
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
