"""What is asked of a cluster: which nodes it has, and a hand on one of them. `ward` has a fake of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine of the cluster; `name` is the address by which the others reach it."""

    id: str
    name: str
    cpus: float
    gpus: float = 0.0
    cards: str = ""

    @property
    def kind(self) -> tuple[float, float, str]:
        """Nodes of one kind have the same cores and cards."""
        return self.cpus, self.gpus, self.cards


@dataclass(frozen=True, kw_only=True)
class Order:
    """A command: the words after `python`, where, and variables over the node's own (None takes one away)."""

    words: tuple[str, ...]
    cwd: str
    env: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What a command printed since it was last heard. `code`: once it has ended and all of it was heard."""

    out: bytes = b""
    err: bytes = b""
    code: int | None = None


@dataclass(frozen=True, kw_only=True)
class Look:
    """What is true on a node now. `digests` are of the files asked for; None for one that is not there.

    `port` is one that other nodes can be listened to on; None where the node's address is not its own.
    """

    version: str
    host: str
    interface: str | None
    port: int | None
    cores: int
    digests: Mapping[str, str | None]


class Hand(Protocol):
    """What was taken of one node, and runs commands there.

    Nothing here waits: an answer that is not there yet is None, and is to be asked for again. Every method
    may raise NodeLost.
    """

    node: Node

    def look(self, files: Sequence[str] = ()) -> Look | None:
        """What is true there; the first answer says that the room asked for was free."""

    def put(self, path: str, text: str | None) -> str | None:
        """Write a small file to a folder that is there, or remove it (no text); what is wrong, or nothing."""

    def start(self, orders: Sequence[Order]) -> None:
        """Start commands side by side; those before them are killed."""

    def hear(self) -> Sequence[Heard] | None:
        """What each command has to tell."""

    def signal(self, number: int) -> None:
        """Send all commands a signal."""

    def stop(self) -> None:
        """Kill what runs."""

    def close(self) -> None:
        """Kill what runs, and give the room back."""


class Cluster(Protocol):
    """Several machines."""

    def nodes(self) -> list[Node]:
        """Those that are there now."""

    def take(self, node: Node, *, cpus: float, gpus: float) -> Hand:
        """Ask for room on a node; it is there once the hand answers."""

    def close(self) -> None:
        """Let go of everything; what still runs is killed."""
