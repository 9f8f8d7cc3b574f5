"""How a diagnosis was held: which parts its scratch runs had, one after the other, and how long each took."""

from collections.abc import Iterable
from dataclasses import dataclass

from stoker.scratch import Message

# Of the run itself, not of what is held in it; `batch` comes with what a replay found.
_PLUMBING = frozenset(
    {
        "started", "progress", "end", "error", "shield", "finished", "batch", "first", "death", "device",
        "allocations", "untraced", "unresized", "unheld", "overflow",
    }
)  # fmt: skip
_NAMES = {
    "began": "start and warm-up", "observed": "observe", "generator": "look", "from_memory": "from memory",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """One part of a scratch run: warm-up, observe, or an experiment by its name.

    `began` and `ended` are unix times, None where the run told none. `note` says what was different in it.
    """

    name: str
    seconds: float
    began: float | None = None
    ended: float | None = None
    note: str = ""


def stretches(messages: Iterable[Message], *, note: str = "") -> tuple[Stretch, ...]:
    """The parts of one scratch run: each is over when its message comes."""
    every = list(messages)
    told = [message for message in every if message.kind not in _PLUMBING]
    # The supervisor stamps a message when it has it; a part that tells the time itself gives the offset.
    clock = next((one.body["t"] - one.at for one in told if isinstance(one.body.get("t"), float)), None)
    found = []
    before = next((one.at for one in every if one.kind == "started"), None)
    for message in told:
        if before is not None:
            found.append(
                Stretch(
                    name=_name(message),
                    seconds=max(0.0, message.at - before),
                    began=None if clock is None else clock + before,
                    ended=None if clock is None else clock + message.at,
                    note=note,
                )
            )
        before = message.at
    return tuple(found)


def _name(message: Message) -> str:
    if message.kind == "variant":
        return f"steps {message.body['name']}"
    if message.kind == "resized":
        return f"batches of {message.body['samples']}"
    return _NAMES.get(message.kind, message.kind)
