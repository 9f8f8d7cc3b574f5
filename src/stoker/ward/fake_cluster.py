"""A fake of a cluster: its nodes are names, what runs on them are real processes of this machine.

cluster = FakeCluster("a", "b")
…
cluster.lose("b")      # what ran on it is killed, and every hand on it is lost
cluster.add("b")       # it comes back, as another node of that name
cluster.cut("a")       # it answers nothing, and what runs on it goes on; `mend` it, or lose it
"""

from collections.abc import Mapping, Sequence

from stoker.cluster.charge import Charge
from stoker.cluster.nodes import Heard, Look, Node, Order
from stoker.errors import NodeLost

_HERE = "127.0.0.1"


class FakeCluster:
    """Nodes by name; each has a core, or what `cpus` and `gpus` say."""

    def __init__(self, *names: str, cpus: float = 1.0, gpus: Mapping[str, float] | None = None) -> None:
        self._cpus = cpus
        self._gpus = gpus or {}
        self._made = 0
        self._there: dict[str, Node] = {}
        self.hands: list[FakeHand] = []
        self.cut_off: set[str] = set()
        # Files that a node does not have, or has otherwise: (name, end of path) to digest.
        self.other_files: dict[tuple[str, str], str | None] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """A node comes."""
        self._made += 1
        gpus = self._gpus.get(name, 0.0)
        self._there[name] = Node(id=f"node-{self._made}", name=name, cpus=self._cpus, gpus=gpus)

    def lose(self, name: str) -> None:
        """A node goes, with all that runs on it."""
        node = self._there.pop(name)
        for hand in self.hands:
            if hand.node == node:
                hand.is_lost = True
                hand.charge.stop()

    def cut(self, name: str) -> None:
        """A node answers no more; nobody knows that yet."""
        self.cut_off.add(name)

    def mend(self, name: str) -> None:
        """It answers again."""
        self.cut_off.remove(name)

    def nodes(self) -> list[Node]:
        """Those that are there."""
        return [self._there[name] for name in sorted(self._there)]

    def take(self, node: Node, *, cpus: float, gpus: float) -> "FakeHand":
        """A hand on a node that has this room left; it answers once others have given theirs back."""
        hand = FakeHand(self, node, cpus, gpus)
        self.hands.append(hand)
        return hand

    def has_room(self, hand: "FakeHand") -> bool:
        """Whether those that were asked for before it leave enough."""
        earlier = self.hands[: self.hands.index(hand)]
        held = [one for one in earlier if one.node == hand.node and not one.is_closed]
        return (
            sum(one.cpus for one in held) + hand.cpus <= hand.node.cpus
            and sum(one.gpus for one in held) + hand.gpus <= hand.node.gpus
        )

    def close(self) -> None:
        """All that runs is killed."""
        for hand in self.hands:
            hand.close()


class FakeHand:
    """A node's side, called at once."""

    def __init__(self, cluster: FakeCluster, node: Node, cpus: float, gpus: float) -> None:
        self.node = node
        self.cpus, self.gpus = cpus, gpus
        self.charge = Charge()
        self.is_lost = self.is_closed = False
        self._cluster = cluster
        self._number = 0
        self._seen: list[tuple[int, int]] = []

    def look(self, files: Sequence[str] = ()) -> Look | None:
        """What is true here, told as of that node."""
        if not self._reaches() or not self._cluster.has_room(self):
            return None
        found = self.charge.look(_HERE, files)
        digests = dict(found.digests)
        for path in digests:
            for (name, end), other in self._cluster.other_files.items():
                if name == self.node.name and path.endswith(end):
                    digests[path] = other
        return Look(**{**vars(found), "host": self.node.name, "digests": digests})

    def put(self, path: str, text: str | None) -> str | None:
        """Write or remove a small file."""
        return self.charge.put(path, text) if self._reaches() else None

    def start(self, orders: Sequence[Order]) -> None:
        """Start commands."""
        self._number += 1
        self._seen = [(0, 0)] * len(orders)
        if self._reaches():
            self.charge.start(self._number, orders)

    def hear(self) -> Sequence[Heard] | None:
        """What each command has to tell."""
        if not self._reaches():
            return None
        heard = self.charge.hear(self._number, self._seen)
        self._seen = [
            (out + len(one.out), err + len(one.err))
            for (out, err), one in zip(self._seen, heard, strict=True)
        ]
        return heard

    def signal(self, number: int) -> None:
        """Send all commands a signal."""
        if self._reaches():
            self.charge.signal(number)

    def stop(self) -> None:
        """Kill what runs."""
        if self._reaches():
            self.charge.stop()

    def close(self) -> None:
        """Kill what runs."""
        self.is_closed = True
        self.charge.stop()

    def _reaches(self) -> bool:
        if self.is_lost:
            raise NodeLost(self.node.name, "as ordered")
        return self.node.name not in self._cluster.cut_off
