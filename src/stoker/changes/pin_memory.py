"""Batches in page-locked memory, from which a GPU copies at the bus's rate."""

import torch

from stoker.changes.change import Change, Switch
from stoker.changes.loaders import alter


def _lacks(value: bool) -> str | None:
    return "no accelerator to copy to" if value and not torch.accelerator.is_available() else None


CHANGE = Change(
    id="pin_memory",
    of="loader",
    text="batches in page-locked memory",
    kind="same",
    values=Switch(),
    apply=lambda value: alter("pin_memory", value),
    lacks=_lacks,
    backfires="pinning many small tensors takes longer than it saves; it can fail under WSL2 (WSL#14078)",
)
