"""Another batch size, from the moment a loader is made: its length, which schedules are made of, is right.

Loaders that shuffle, or draw by a sampler of their own, train; others, as those that validate mostly are,
keep theirs. A loader whose batches are its batch_sampler's or its dataset's is left alone.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

from torch.utils.data import IterableDataset, SequentialSampler

from stoker.changes.change import Change, Whole
from stoker.changes.loader_classes import put_into_each
from stoker.errors import UsageError


@dataclass(slots=True)
class _Met:
    """What was met: lines to tell, and who wants to know of a batch that grew, by how much."""

    lines: list[str] = field(default_factory=list)
    listeners: list[Callable[[float], None]] = field(default_factory=list)


_met = _Met()


def on_change(listener: Callable[[float], None]) -> None:
    """Have this called with how many times as large a training loader's batches become."""
    _met.listeners.append(listener)


def _apply(value: int) -> None:
    put_into_each(partial(_put, value))


def _put(value: int, kind: Any) -> None:
    init = kind.__init__
    signature = inspect.signature(init)

    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        given = signature.bind(self, *args, **kwargs)
        asked = given.arguments
        if _trains(asked) and (had := asked.get("batch_size", 1)) != value:
            _check_length(asked, value)
            asked["batch_size"] = value
            _met.lines.append(f"changed: {_name(asked)}: batch_size {had} -> {value}")
            for listener in _met.listeners:
                listener(value / had)
        init(*given.args, **given.kwargs)

    kind.__init__ = __init__


def _trains(asked: dict[str, Any]) -> bool:
    name, sampler = _name(asked), asked.get("sampler")
    if asked.get("batch_sampler") is not None or asked.get("batch_size", 1) is None:
        _met.lines.append(f"{name}: left alone: its batches are made by its own batch_sampler or dataset")
        return False
    if isinstance(asked["dataset"], IterableDataset):
        _met.lines.append(f"{name}: left alone: whether an IterableDataset trains is not known")
        return False
    in_order = isinstance(sampler, SequentialSampler) or getattr(sampler, "shuffle", None) is False
    return bool(asked.get("shuffle")) or (sampler is not None and not in_order)


def _check_length(asked: dict[str, Any], value: int) -> None:
    samples = len(asked["dataset"])
    if asked.get("drop_last") and samples < value:
        raise UsageError(
            f"change batch_size = {value}: {_name(asked)} has {samples} samples and drops its last batch, so "
            f"there would be none; give at most {samples}"
        )


def _name(asked: dict[str, Any]) -> str:
    return f"{type(asked['self']).__name__}({type(asked['dataset']).__name__})"


def _told(value: int) -> list[str]:
    lines = list(dict.fromkeys(_met.lines))
    if not any(line.startswith("changed") for line in lines):
        lines.append(
            f"batch_size = {value} had no effect: no loader was made that shuffles, or draws by a sampler, "
            "with another batch size"
        )
    return lines


CHANGE = Change(
    id="batch_size",
    of="update",
    text="batches of another size, in loaders that shuffle or draw by a sampler of their own",
    kind="optimization",
    values=Whole(1, 1 << 24),
    apply=_apply,
    told=_told,
    backfires="the largest is not the fastest (transformers#14615: 7,000 samples/s at 256, 4,000 at 384); "
    "other gradients, and another number of updates an epoch; a schedule that is given a number of "
    "steps does not follow; it is the batch of each rank",
)
