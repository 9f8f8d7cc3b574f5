"""How the CUDA allocator takes memory from the card."""

import os

import torch

from stoker.changes.change import Change, Choice


def _apply(value: str) -> None:
    # Read when the first byte is asked for; both names, the first is of torch 2.9 and later.
    setting = f"{value}:True"
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        given = [part for part in os.environ.get(name, "").split(",") if part and not part.startswith(value)]
        os.environ[name] = ",".join([*given, setting])


CHANGE = Change(
    id="allocator",
    of="process",
    text="segments of the CUDA allocator that can grow",
    kind="same",
    values=Choice(("expandable_segments",)),
    apply=_apply,
    lacks=lambda value: None if torch.cuda.is_available() else "no CUDA device",
    backfires="memory that is shared between processes may need another way",
)
