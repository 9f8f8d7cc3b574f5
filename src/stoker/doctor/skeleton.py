"""A run's allocations in two: what lives on, and the workspaces that come and go between its events. Pure.

A workspace is freed as soon as its kernel is launched, so nothing lies between its allocation and its free.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Taken = tuple[int, ...]  # bytes of workspaces that follow each other at one place


class Place(NamedTuple):
    """What was taken between two events, and bytes of the tensors that these made; 0 where one made none."""

    taken: Taken
    before: int
    after: int

    def is_like(self, other: "Place") -> bool:
        """Whether the same tensors lie around it, as far as it knows of any."""
        return self.before in (0, other.before) and self.after in (0, other.after)


@dataclass(frozen=True)
class Parts:
    """`skeleton` is what lives on, with frees; `workspaces` those before each of its events and after all."""

    skeleton: tuple[int, ...]
    streams: tuple[int, ...]
    workspaces: tuple[Taken, ...]

    def place(self, at: int) -> Place:
        """Before the event of that number."""
        before = self.skeleton[at - 1] if at else 0
        after = self.skeleton[at] if at < len(self.skeleton) else 0
        return Place(self.workspaces[at], max(0, before), max(0, after))

    def do_match(self, other: "Parts") -> bool:
        """Whether the same lives on in both, in the same order and of whatever size."""
        if len(self.skeleton) != len(other.skeleton) or self.streams != other.streams:
            return False
        both = zip(self.skeleton, other.skeleton, strict=True)
        return all((a > 0 and b > 0) or a == b for a, b in both)


def parts_of(events: Sequence[int], of_streams: Mapping[int, int]) -> Parts:
    """Events as `Allocations` has them, in two."""
    skeleton: list[int] = []
    streams: list[int] = []
    workspaces: list[Taken] = []
    names: dict[int, int] = {}
    now: list[int] = []
    for number, event, is_workspace in _told_apart(events):
        if is_workspace:
            now.append(event)
            continue
        workspaces.append(tuple(now))
        now = []
        if event > 0:
            names[number] = len(names) + 1
            streams.append(of_streams.get(number, 0))
        skeleton.append(-names[-event] if event < 0 else event)
    workspaces.append(tuple(now))
    return Parts(tuple(skeleton), tuple(streams), tuple(workspaces))


def _told_apart(events: Sequence[int]) -> Iterator[tuple[int, int, bool]]:
    """The number of each allocation (0 for other events), the event, and whether it is a workspace's."""
    made, skip = 0, False
    for position, event in enumerate(events):
        if skip:
            skip = False
            continue
        if event > 0:
            made += 1
            skip = position + 1 < len(events) and events[position + 1] == -made
        yield (made if event > 0 else 0), event, skip
