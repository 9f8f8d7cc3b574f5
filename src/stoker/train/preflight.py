"""Before the first step: what will hurt on the device to be used, and whether the step will fit it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from stoker import facts
from stoker.doctor.peaks import fit
from stoker.facts.words import size
from stoker.train.config import OptimizerConfig
from stoker.train.microbatch import halve, is_out_of_memory

# States of a weight's size that an optimizer makes in its first update.
_STATES = {"adamw": 2, "adam": 2, "sgd": 1}
# The line through smaller sizes is made from these shares of the micro-batch.
_SHARES = (8, 4, 2)
# Peaks of batches this small do not lie on the line of larger ones (see doctor.peaks).
_SMALLEST = 2
# Of the room: torch sets more aside than is in use, and samples vary. The doctor's budget keeps as much.
_KEPT_FREE = 0.05


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a micro-batch will need of the device's memory, in bytes, before its first step."""

    micro_batch: int
    # None: more than there is, since `failed` samples ran out of it.
    need: int | None
    failed: int | None
    # By what share the line through smaller sizes missed one of them; None where it was run itself.
    error: float | None
    room: int
    # The largest micro-batch that was run and fits, the whole one if it is to; None: not one sample does.
    largest: int | None

    @property
    def overflows(self) -> bool:
        """Whether it will not fit."""
        return self.largest != self.micro_batch

    @property
    def text(self) -> str:
        """In a sentence, with what to do."""
        told = self._tell_need()
        if not self.overflows:
            return told
        if self.largest is None:
            return f"{told}: no smaller one fits; take a smaller model or sample, or precision bf16"
        return (
            f"{told}: it will be lowered when memory runs out; set train.micro_batch={self.largest}, which "
            "fits, to be spared that"
        )

    def _tell_need(self) -> str:
        free = f"and {size(self.room)} are free"
        if self.overflows and self.need is not None and self.need <= self.room:
            free += ", of which a twentieth is to stay so"
        if self.need is None:
            return (
                f"memory runs out with {self.failed} at a time (a micro-batch has {self.micro_batch}), {free}"
            )
        if self.error is None:
            return f"a micro-batch of {self.micro_batch} needs {size(self.need)} (it was run), {free}"
        return (
            f"a micro-batch of {self.micro_batch} is predicted to need {size(self.need)} "
            f"(\u00b1 {self.error:.0%}, from smaller ones), {free}"
        )


def look(uuid: str | None, source: Any = None) -> tuple[facts.Warned, ...]:
    """What `stoker check` warns of, for the card that will be used (None: none); `source` stands for NVML."""
    found = facts.collect(source=source)
    cards = tuple(card for card in found.gpus if uuid is not None and card.uuid == uuid)
    if uuid is not None and not cards:  # a part of a card has an id of its own
        cards = tuple(card for card in found.gpus if card.visible is not False)
    return tuple(facts.warnings_of(replace(found, gpus=cards)))


def uuid_of(device: torch.device) -> str | None:
    """A card's id, as NVML has it; None for what is no card."""
    if device.type != "cuda":
        return None
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def sizes_to_try(micro_batch: int) -> tuple[int, ...]:
    """Sizes to run before the first step: three smaller ones for a line, or the full one if it is small.

    >>> sizes_to_try(32), sizes_to_try(8)
    ((4, 8, 16), (8,))
    """
    sizes = tuple(micro_batch // share for share in _SHARES)
    return sizes if sizes[0] >= _SMALLEST else (micro_batch,)


def predict(
    measure: Callable[[int], int | None], *, micro_batch: int, states: int, room: int
) -> Prediction | str:
    """The prediction, or why there is none. `measure` runs a size and gives its peak, None out of memory.

    `states` is what the optimizer will hold besides, once it has made its first update.
    """
    ran: list[tuple[int, int]] = []
    failed: int | None = None
    for samples in (sizes := sizes_to_try(micro_batch)):
        peak = measure(samples)
        if peak is None:
            failed = samples
            break
        ran.append((samples, peak + states))
    need: int | None = None
    error: float | None = None
    if failed is None:
        need = ran[-1][1]
        if sizes[-1] != micro_batch:
            line = fit(ran)
            if line.fixed is None or line.per_sample is None:
                return f"the peaks of smaller micro-batches lie on no line ({line.why})"
            need, error = line.fixed + line.per_sample * micro_batch, line.error or 0.0
    largest: int | None = micro_batch
    if need is None or not _fits(need, room):
        fitting = [samples for samples, least in ran if samples < micro_batch and _fits(least, room)]
        largest = max(fitting) if fitting else _run_smaller(measure, sizes[0], states=states, room=room)
    return Prediction(
        micro_batch=micro_batch, need=need, failed=failed, error=error, room=room, largest=largest
    )


def _fits(need: int, room: int) -> bool:
    return need <= (1 - _KEPT_FREE) * room


def _run_smaller(measure: Callable[[int], int | None], samples: int, *, states: int, room: int) -> int | None:
    """Halves of a size, until one fits; None where not one sample does."""
    smaller = halve(samples)
    while smaller is not None:
        peak = measure(smaller)
        if peak is not None and _fits(peak + states, room):
            return smaller
        smaller = halve(smaller)
    return None


def bytes_of_states(model: torch.nn.Module, config: OptimizerConfig) -> int:
    """What an optimizer's first update will add."""
    kept = _STATES[config.name] if config.name != "sgd" or config.momentum else 0
    return kept * sum(weight.nbytes for weight in model.parameters() if weight.requires_grad)


def can_measure(device: torch.device) -> bool:
    """Whether a device's memory can be asked for."""
    return device.type == "cuda"


def peak_of(run: Callable[[], object], device: torch.device) -> int | None:
    """The most memory that torch had in use on a card while `run` ran; None where it ran out."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    try:
        run()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
    finally:
        torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device))


def room_on(device: torch.device) -> int:
    """What torch may have in use on a card: what is free and what it has set aside, or its cap."""
    free, total = torch.cuda.mem_get_info(device)
    room = int(free) + int(torch.cuda.memory_reserved(device))
    fraction = getattr(torch.cuda.memory, "get_per_process_memory_fraction", None)
    return room if fraction is None else min(room, int(total * fraction(device)))
