"""A cluster of Ray: nodes as Ray tells of them, a hand as an actor that is bound to its node.

From a machine that is no node, Ray's own client is used (`ray://`): one port to the head, and the same calls
as on a node. Whether a node is lost is for Ray to say: its head asks each node for its health, and a node
that cannot reach the head ends itself.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stoker.cluster.address import parse_named, parse_on, port_hint
from stoker.cluster.charge import Charge
from stoker.cluster.nodes import Heard, Look, Node, Order
from stoker.errors import ClusterFailed, MissingExtra, NodeLost, NodeUnfit

# Of a cluster that is started for one command: what passes through it are lines of text.
_STORE_BYTES = 80 << 20
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
_CARDS = "accelerator_type:"
# An answer that is there is there at once; the loops above do the waiting.
_AT_ONCE_S = 0.02
# A head that is there takes a connection within a round trip.
_REACHED_S = 5.0


class RayCluster:
    """The cluster at an address; without one, that of this machine, or one that is started for it."""

    def __init__(self, address: str | None, tell: Callable[[str], None]) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingExtra("ray", "ray", "--on ray") from error
        self._ray: Any = ray
        _connect(ray, address, tell)
        self._actor: Any = ray.remote(max_restarts=0, max_task_retries=0)(Charge)

    def nodes(self) -> list[Node]:
        """Those that are alive and have a core to give, by their addresses."""
        with _asking():
            told = self._ray.nodes()
        found = [_node(one) for one in told if one["Alive"] and one["Resources"].get("CPU")]
        return sorted(found, key=lambda node: node.name)

    def take(self, node: Node, *, cpus: float, gpus: float) -> "RayHand":
        """Ask for room on a node, and no other."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        with _asking():
            actor = self._actor.options(
                num_cpus=cpus,
                num_gpus=gpus,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            ).remote()
        return RayHand(self._ray, node, actor)

    def close(self) -> None:
        """Ray ends the actors of one that leaves."""
        self._ray.shutdown()


class RayHand:
    """An actor on a node, and the calls to it that have not been answered yet."""

    def __init__(self, ray: Any, node: Node, actor: Any) -> None:
        self.node = node
        self._ray = ray
        self._actor = actor
        self._asked: dict[str, Any] = {}
        self._number = 0
        self._orders: tuple[Order, ...] = ()
        self._seen: list[tuple[int, int]] = []

    def look(self, files: Sequence[str] = ()) -> Look | None:
        """What is true there."""
        found: Look | None = self._ask("look", self.node.name, tuple(files))
        return found

    def put(self, path: str, text: str | None) -> str | None:
        """Write or remove a small file; what is wrong, or nothing."""
        found: str | None = self._ask("put", path, text)
        return found

    def start(self, orders: Sequence[Order]) -> None:
        """Start commands; those before them are killed."""
        self._number += 1
        self._orders = tuple(orders)
        self._seen = [(0, 0)] * len(self._orders)
        self._asked.pop("hear", None)
        self._tell("start", self._number, self._orders)

    def hear(self) -> Sequence[Heard] | None:
        """What each command has to tell."""
        heard: list[Heard] | None = self._ask("hear", self._number, tuple(self._seen))
        if heard is None:
            return None
        if not heard:  # the start was lost on its way
            self._tell("start", self._number, self._orders)
            return None
        self._seen = [
            (out + len(one.out), err + len(one.err))
            for (out, err), one in zip(self._seen, heard, strict=True)
        ]
        return heard

    def signal(self, number: int) -> None:
        """Send all commands a signal."""
        self._tell("signal", number)

    def stop(self) -> None:
        """Kill what runs."""
        self._tell("stop")

    def close(self) -> None:
        """The actor goes, and by its tether what it started."""
        with contextlib.suppress(ClusterFailed), _asking():
            self._ray.kill(self._actor)

    def _tell(self, name: str, *words: Any) -> None:
        """Ask for something whose answer says nothing: whether it arrived shows in what is heard next."""
        with _asking():
            getattr(self._actor, name).remote(*words)

    def _ask(self, name: str, *words: Any) -> Any:
        """The answer to a call, if it is there; else the same call is asked about next time."""
        errors = self._ray.exceptions
        with _asking():
            if name not in self._asked:
                self._asked[name] = getattr(self._actor, name).remote(*words)
            done, _ = self._ray.wait([self._asked[name]], timeout=_AT_ONCE_S)
            if not done:
                return None
            try:
                return self._ray.get(self._asked.pop(name))
            except errors.RayTaskError as error:
                last = str(error).strip().rpartition("\n")[2]
                raise NodeUnfit(
                    f"the node {self.node.name} failed at what it was asked, {name}: {last}; see to that "
                    "there, or take the node out of the cluster"
                ) from error
            except errors.ActorUnavailableError:
                return None  # not reached for the moment; whether it is lost, Ray will know
            except errors.RayError as error:
                if "ModuleNotFoundError" in str(error):
                    raise NodeUnfit(
                        f"Stoker cannot be imported on the node {self.node.name}: install it there, as it is "
                        "here (pip install 'stoker[ray]'), for the Python that its Ray runs on"
                    ) from error
                raise NodeLost(self.node.name, _reason(error)) from error


def _connect(ray: Any, address: str | None, tell: Callable[[str], None]) -> None:
    # Nothing is sent anywhere.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    named = os.environ.get("RAY_ADDRESS", "")
    if address is not None:
        with _opening(f"at {address}", port_hint(address)):
            ray.init(address, **_QUIET)
        return
    if named not in ("", "auto", "local"):
        tell(f"RAY_ADDRESS is {named}: that cluster is tried")
        host, port = parse_named(named)
        with _opening(f"at {named}, which RAY_ADDRESS names", way_out=", or unset RAY_ADDRESS"):
            # Ray itself would try for minutes, without a word.
            socket.create_connection((host, port), timeout=_REACHED_S).close()
            ray.init((parse_on(named) if "://" in named else None) or named, **_QUIET)
        return
    with _opening("here"):
        if named != "local":
            with contextlib.suppress(ConnectionError):
                ray.init("auto", **_QUIET)
                return
        tell("this machine is part of no Ray cluster: one is started for this command, here alone")
        ray.init("local", include_dashboard=False, object_store_memory=_STORE_BYTES, **_QUIET)


@contextlib.contextmanager
def _opening(where: str, hint: str = "", way_out: str = "") -> Iterator[None]:
    """What is raised where no cluster can be opened, in Stoker's words."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        raise ClusterFailed(
            f"no Ray cluster answers {where}: {_reason(error)}{hint}. Start one (ray start --head), with the "
            f"same versions of Ray and Python as here{way_out}"
        ) from error


@contextlib.contextmanager
def _asking() -> Iterator[None]:
    """What Ray raises where its head is gone, in Stoker's words."""
    try:
        yield
    except (ConnectionError, RuntimeError) as error:
        raise ClusterFailed(
            f"the Ray cluster does not answer any more: {_reason(error)}. Once its head is back, give "
            "the command again"
        ) from error


def _node(told: Any) -> Node:
    room = told["Resources"]
    cards = sorted(name.removeprefix(_CARDS) for name in room if name.startswith(_CARDS))
    return Node(
        id=told["NodeID"],
        name=told["NodeManagerAddress"],
        cpus=float(room["CPU"]),
        gpus=float(room.get("GPU", 0.0)),
        cards=", ".join(cards),
    )


def _reason(error: BaseException) -> str:
    """One line of what Ray tells at length: the one that gives a reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if " because " in line or line.startswith("RuntimeError")]
    return ([*telling, *lines] or [type(error).__name__])[0].rstrip(".")
