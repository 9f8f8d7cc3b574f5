"""Where a loop stands in its order, and the small value from which it goes on elsewhere."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from stoker.errors import StateBroken

Shuffle = Literal[False, "full", "blocks"]


@dataclass(frozen=True, kw_only=True)
class Place:
    """The batch that comes next: steps 0 to step - 1 of the epoch have been handed out.

    `offset` is 0 but in the rest of an epoch that was begun with another batch size: that rest's batches
    are counted from there (`Order.resume`).
    """

    epoch: int = 0
    step: int = 0
    offset: int = 0


class Progress:
    """An epoch under way: where it was begun, and the batches handed out since."""

    __slots__ = ("begun", "handed")

    def __init__(self, begun: Place) -> None:
        self.begun, self.handed = begun, 0

    @property
    def place(self) -> Place:
        """The batch that comes next."""
        return replace(self.begun, step=self.begun.step + self.handed)


@dataclass(frozen=True, kw_only=True)
class State:
    """What a checkpoint keeps: how many samples of which order were handed out, and of which data.

    It counts samples, not steps, since the batch size may change (what it was is kept to be told); and
    those of all ranks, so that no world size is in it.
    """

    version: int
    epoch: int
    samples: int
    seed: int
    shuffle: Shuffle
    block_size: int | None
    group_size: int | None
    batch_size: int
    length: int
    selection: str
    fingerprint: str

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and text, also for a checkpoint that is loaded with `weights_only`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> "State":
        """The state again; StateBroken for anything that `to_json` did not make."""
        if not isinstance(data, dict):
            raise StateBroken(f"a state of an order is a dict, not {type(data).__name__}")
        names = {field.name for field in fields(cls)}
        if set(data) != names:
            lacks = ", ".join(sorted(names - set(data))) or "nothing"
            unknown = ", ".join(sorted(map(str, set(data) - names))) or "nothing"
            raise StateBroken(
                f"not a state of an order: it lacks {lacks} and has {unknown} besides. "
                "Give what was kept, whole, or start without a state"
            )
        for name, (allowed, told) in _KINDS.items():
            if not allowed(data[name]):
                raise StateBroken(f"{name} in the state is {data[name]!r}, not {told}: start without a state")
        return cls(**data)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_COUNT = (_is_count, "a number from 0")
_BLOCKS = (lambda value: value is None or (_is_count(value) and value > 0), "a number from 1, or none")
_TEXT = (lambda value: isinstance(value, str), "text")
_KINDS = {
    **dict.fromkeys(("version", "epoch", "samples", "batch_size", "length"), _COUNT),
    **dict.fromkeys(("block_size", "group_size"), _BLOCKS),
    **dict.fromkeys(("selection", "fingerprint"), _TEXT),
    "seed": (lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    "shuffle": (lambda value: value is False or value in ("full", "blocks"), 'false, "full" or "blocks"'),
}
