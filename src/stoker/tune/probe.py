"""What happens in a probe's process: the script's first steps, seeded, and what it trained on in each."""

import random
import zlib
from collections.abc import Mapping
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_leaves
from torch.utils.data import dataloader as torch_dataloader

from stoker import changes
from stoker.scratch import Child


def as_argument(settings: Mapping[str, Any], *, seed: int, steps: int) -> dict[str, Any]:
    """What `prepare` is given."""
    return {"settings": dict(settings), "seed": seed, "steps": steps}


def prepare(child: Child, argument: Mapping[str, Any]) -> None:
    """The hook of a probe's scratch run."""
    torch.manual_seed(argument["seed"])
    np.random.seed(argument["seed"])
    random.seed(argument["seed"])
    changes.put(argument["settings"])
    ids: list[list[int]] = []
    batches: list[int] = []
    losses: list[float] = []
    _note_ids(ids)
    _note_batches(batches)
    _note_losses(losses)
    made = 0

    def stepped(*_: Any) -> None:
        nonlocal made
        made += 1
        child.progress(made)
        if made >= argument["steps"]:
            # Indices are drawn ahead of the batches; those that no step had yet are none of the probe.
            child.report("probe", ids=ids[: len(batches)], batches=batches, losses=losses)
            child.end(made)

    register_optimizer_step_post_hook(stepped)


def _note_ids(ids: list[list[int]]) -> None:
    """As the sampler gives them, a batch at a time; of an iterable dataset there are none."""
    kind: Any = torch_dataloader._BaseDataLoaderIter
    draw = kind._next_index

    @wraps(draw)
    def _next_index(self: Any) -> Any:
        index = draw(self)
        if torch.is_grad_enabled():
            one = index if isinstance(index, (list, tuple)) else [index]
            ids.append([int(at) for at in one if at is not None])
        return index

    kind._next_index = _next_index


def _note_batches(batches: list[int]) -> None:
    """By what is in their tensors, in the order in which the loop gets them."""
    kind: Any = torch_dataloader._BaseDataLoaderIter
    take = kind.__next__

    @wraps(take)
    def __next__(self: Any) -> Any:  # noqa: N807
        batch = take(self)
        if torch.is_grad_enabled():
            batches.append(_checksum(batch))
        return batch

    kind.__next__ = __next__


def _checksum(batch: Any) -> int:
    found = 0
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor):
            plain = leaf.detach().cpu().contiguous().flatten()
            found = zlib.crc32(plain.view(torch.uint8).numpy().data, found) if plain.numel() else found
        else:
            found = zlib.crc32(repr(leaf).encode(), found)
    return found


def _note_losses(losses: list[float]) -> None:
    backward: Any = torch.Tensor.backward

    @wraps(backward)
    def noted(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if tensor.numel() == 1:
            losses.append(float(tensor.detach()))
        backward(tensor, *args, **kwargs)

    torch.Tensor.backward = noted  # type: ignore[method-assign, assignment]
