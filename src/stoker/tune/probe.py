"""What happens in a probe's process: the script's first steps, seeded, and what it trained on in each.

Of the first updates the weights are noted too: some entries of every parameter.
"""

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import wraps
from typing import Any

import torch
from torch.nn import functional
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import dataloader as torch_dataloader

from stoker import changes
from stoker.changes import held
from stoker.feed.held_loader import is_reader
from stoker.scratch import Child
from stoker.tune.agreement import Agreement
from stoker.tune.backward import Backward
from stoker.tune.contents import checksum, numbers
from stoker.tune.seeds import seed_all, shift_seeds

# Updates whose weights are noted, and entries of all parameters together.
_UPDATES = 3
_ENTRIES = 512
# Batches beyond the turn of an epoch.
_PAST = 2
# Ranks draw apart, as they do by themselves: the same draws on all would hide what mixes them up.
_SEEDS_APART = 1000


# What drops at random, by its name in torch.nn.functional, and what the share is called there.
_DROPS = {
    "dropout": "p",
    "dropout1d": "p",
    "dropout2d": "p",
    "dropout3d": "p",
    "alpha_dropout": "p",
    "feature_alpha_dropout": "p",
    "scaled_dot_product_attention": "dropout_p",
}


def as_argument(
    settings: Mapping[str, Any], *, seed: int, steps: int, dropout: bool = True, ranks: int = 1
) -> dict[str, Any]:
    """What `prepare` is given. Without `dropout`, nothing is dropped."""
    return {"settings": dict(settings), "seed": seed, "steps": steps, "dropout": dropout, "ranks": ranks}


def prepare(child: Child, argument: Mapping[str, Any]) -> None:
    """The hook of a probe's scratch run, in each of its ranks."""
    seed = argument["seed"] + _SEEDS_APART * child.rank
    seed_all(seed)
    shift_seeds(argument["seed"])
    agreement = Agreement(child, argument["ranks"])
    if not argument["dropout"]:
        _drop_nothing()
    changes.put(argument["settings"])
    epochs = _Epochs()
    ids: list[list[Any]] = []
    batches: list[int] = []
    losses: list[float | None] = []
    weights: list[tuple[list[float], list[float]]] = []
    rates: list[list[float]] = []
    _keep_drawn()
    _note_batches(ids, batches, epochs)
    backward = Backward()
    backward.install()
    made = 0
    before: list[float] = []

    def steps(optimizer: Optimizer, *_: Any) -> None:
        if made < _UPDATES:
            before[:] = _entries(optimizer)
            rates.append([float(group["lr"]) for group in optimizer.param_groups])

    def stepped(optimizer: Optimizer, *_: Any) -> None:
        nonlocal made
        if made < _UPDATES:
            weights.append((list(before), _entries(optimizer)))
        losses.append(backward.loss())
        made += 1
        child.progress(made)
        goes_on = argument["ranks"] == 1 and epochs.is_near(len(batches), made, argument["steps"])
        if made >= argument["steps"] and not goes_on:
            child.report(
                "probe",
                ids=ids,
                batches=batches,
                losses=losses,
                weights=weights,
                rates=rates,
                turned=epochs.turned_at is not None,
                batch_norm=None if (parts := held.installed()) is None else parts.batch_norm,
            )
            agreement.leave(made)  # all ranks make as many

    register_optimizer_step_pre_hook(steps)
    register_optimizer_step_post_hook(stepped)


def _drop_nothing() -> None:
    """What is dropped is drawn for a whole batch, and otherwise for each of its parts."""
    for name, share in _DROPS.items():
        setattr(functional, name, _keeping(getattr(functional, name), share))


def _keeping(drop: Any, share: str) -> Any:
    @wraps(drop)
    def kept(*args: Any, **kwargs: Any) -> Any:
        if share == "p":
            return args[0] if args else kwargs["input"]
        if len(args) > 4:  # query, key, value, mask, then the share
            args = (*args[:4], 0.0, *args[5:])
        else:
            kwargs[share] = 0.0
        return drop(*args, **kwargs)

    return kept


def _keep_drawn() -> None:
    """Have each iterator keep what its sampler has given, a batch at a time, until the batch is handed out.

    Workers draw ahead, and of several loaders each for itself: by when they are drawn, samples of one would
    lie otherwise among those of another for every number of workers. Those of a batch that no step gets, and
    of an epoch that is left early, are none of the probe.
    """
    kind: Any = torch_dataloader._BaseDataLoaderIter
    draw, reset = kind._next_index, kind._reset

    @wraps(draw)
    def _next_index(self: Any) -> Any:
        index = draw(self)
        _drawn(self).append(index)
        return index

    @wraps(reset)
    def _reset(self: Any, *args: Any, **kwargs: Any) -> None:
        _drawn(self).clear()
        reset(self, *args, **kwargs)

    kind._next_index, kind._reset = _next_index, _reset


def _drawn(iterator: Any) -> deque[Any]:
    """What it keeps."""
    kept: deque[Any] = vars(iterator).setdefault("_stoker_drawn", deque())
    return kept


class _Epochs:
    """Where an epoch ends and another begins: some changes are not what they say from there on alone."""

    def __init__(self) -> None:
        # Batches in an epoch, and those before the first of another.
        self.length: int | None = None
        self.turned_at: int | None = None
        self._over: set[int] = set()

    def end(self, dataset: Any) -> None:
        """All of it was handed out."""
        self._over.add(id(dataset))

    def take(self, iterator: Any, before: int) -> None:
        """A batch is handed out, after so many."""
        if self.length is None:
            with suppress(TypeError, NotImplementedError):  # of an iterable dataset, and of many a sampler
                self.length = len(iterator)
        if self.turned_at is None and id(iterator._dataset) in self._over:
            self.turned_at = before

    def is_near(self, batches: int, made: int, steps: int) -> bool:
        """Whether to go on beyond so many steps, to see the turn: for no more than as many again."""
        turn = self.length if self.turned_at is None else self.turned_at
        if turn is None or not batches:
            return False
        until = (turn + _PAST) * made / batches  # a step may take several batches
        return made < until <= 2 * steps


def _note_batches(ids: list[list[Any]], batches: list[int], epochs: _Epochs) -> None:
    """By their samples and what is in them, in the order in which the loop gets them.

    Of an iterable dataset samples have no ids.
    """
    kind: Any = torch_dataloader._BaseDataLoaderIter
    take = kind.__next__

    @wraps(take)
    def __next__(self: Any) -> Any:  # noqa: N807
        trains = torch.is_grad_enabled() and not is_reader(self._dataset)
        try:
            batch = take(self)
        except StopIteration:
            if trains:
                epochs.end(self._dataset)
            raise
        drawn = _drawn(self)
        index = drawn.popleft() if drawn else ()
        if trains:
            epochs.take(self, len(batches))
            ids.append(numbers(index))
            batches.append(checksum(batch))
        return batch

    kind.__next__ = __next__


def _entries(optimizer: Optimizer) -> list[float]:
    """Of every parameter by its size, evenly spread over it, and one of each."""
    owned = [p.detach().flatten() for group in optimizer.param_groups for p in group["params"]]
    total = sum(p.numel() for p in owned) or 1
    found: list[float] = []
    for one in owned:
        some = min(one.numel(), max(1, _ENTRIES * one.numel() // total))
        at = torch.arange(some, device=one.device) * one.numel() // some
        found += one[at].double().tolist()
    return found
