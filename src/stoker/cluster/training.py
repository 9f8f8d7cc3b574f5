"""A training over the nodes of a cluster: attempts, each with the nodes that are there, into one folder.

A node that is lost ends the attempt; the next one goes on from the last checkpoint with the nodes that are
left, and a node that comes (back) is taken in: the ranks save, and go on with it. What holds a training
together is its folder: on storage that all nodes share, taken by one rank 0 at a time.
"""

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM

from stoker.cluster import ground
from stoker.cluster.errand import TICK_S, Errand, Tell
from stoker.cluster.nodes import Cluster, Hand, Look, Node, Order
from stoker.errors import ClusterFailed, NodeLost, NodeUnfit, UsageError
from stoker.train import folder
from stoker.train.signals import StopSignal

STOPPED = 128 + SIGTERM
# A node that has the room and is slow to start (4 s here, 20 on busy cores) is waited for, others are not.
_PATIENCE_S = 30.0
# Room that is free is had within seconds; of room that is not, it is told that it is waited for.
_QUIET_S = 10.0
# Between two looks at which nodes there are.
_LOOK_S = 5.0
# Ranks that still run when one has failed end by themselves, or are killed after so long.
_LAST_WORDS_S = 10.0
# Attempts in a row that were lost before they saved anything: the next would be lost as well.
_MOST_FRUITLESS = 3
# A process on a node that was cut off ends with it: Ray gives a node that cannot reach the head 60 s.
_HELD_S = 300.0
_ANSWER_S = 120.0
_TERM_AGAIN_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A training: the words after `python`, its folder, and how its ranks share a batch.

    `grow_after`: seconds of an attempt before it is ended to take in a node that has come.
    """

    words: tuple[str, ...]
    folder: Path
    batch_size: int
    per_node: int = 1
    device: str = "auto"
    files: tuple[Path, ...] = ()
    grow_after: float = 60.0


@dataclass(kw_only=True)
class _End:
    """How an attempt ended: each rank's exit code, and the nodes that were lost in it."""

    codes: list[int | None] = field(default_factory=list)
    out: bytes = b""
    lost: list[tuple[Hand, NodeLost]] = field(default_factory=list)
    grows: bool = False

    @property
    def is_broken(self) -> bool:
        """Whether a node was lost, or a rank killed: not by an error of its own."""
        return bool(self.lost) or any(code is not None and code < 0 for code in self.codes)

    @property
    def goes_on(self) -> bool:
        """Whether its ranks saved and ended to go on with more of them."""
        return self.grows and self.code == STOPPED

    @property
    def code(self) -> int:
        """Of the training: that of the first rank that failed."""
        return next((code for code in self.codes if code), 0)


def choose_nodes(there: int, per_node: int, batch_size: int) -> int:
    """How many nodes take part: the most whose ranks share the batch evenly; 0 where there is none.

    >>> [choose_nodes(there, 2, 16) for there in range(6)]
    [0, 1, 2, 2, 4, 4]
    """
    return next((count for count in range(there, 0, -1) if batch_size % (count * per_node) == 0), 0)


def environments(
    looks: Sequence[Look], names: Sequence[str], per_node: int
) -> list[list[dict[str, str | None]]]:
    """For each node, for each of its ranks, the variables that torchrun would set; none for a single rank."""
    world = len(looks) * per_node
    port = ground.port_of(names[0], looks[0]) if world > 1 else 0
    found: list[list[dict[str, str | None]]] = []
    for at, look in enumerate(looks):
        # Ray sets it to the room that was asked for; a training is to have the threads that it has elsewhere.
        share = None if per_node == 1 else str(max(1, look.cores // per_node))
        own: dict[str, str | None] = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", share)}
        if world > 1 and look.interface is not None:
            # Where the host's name leads to loopback, gloo would bind to that.
            own["GLOO_SOCKET_IFNAME"] = look.interface
        ranks = [_rank_variables(at, local, per_node, world, names[0], port) for local in range(per_node)]
        found.append([{**own, **(rank if world > 1 else {})} for rank in ranks])
    return found


def _rank_variables(
    node: int, local: int, per_node: int, world: int, master: str, port: int
) -> dict[str, str]:
    rank = node * per_node + local
    return {
        "RANK": str(rank),
        "ROLE_RANK": str(rank),
        "LOCAL_RANK": str(local),
        "GROUP_RANK": str(node),
        "WORLD_SIZE": str(world),
        "ROLE_WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(per_node),
        "GROUP_WORLD_SIZE": str(world // per_node),
        "MASTER_ADDR": master,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "stoker",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        # There is no agent: rank 0 holds the store.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


class Training:
    """One training, from its first attempt to its end."""

    def __init__(self, cluster: Cluster, wanted: Wanted, tell: Tell) -> None:
        if wanted.batch_size % wanted.per_node:
            raise UsageError(
                f"train.batch_size is {wanted.batch_size} and train.devices {wanted.per_node}, which are the "
                "ranks of one node here: it must be a multiple"
            )
        self._cluster = cluster
        self._wanted = wanted
        self._tell = tell
        # By node: those that answered, and those that were asked for. A node that lacks something is neither.
        self._hands: dict[str, Hand] = {}
        self._asked: dict[str, Hand] = {}
        self._unfit: set[str] = set()
        # Nodes that answered and were given back, as no crew of that size can share the batch.
        self._spare: set[str] = set()
        self._idle_since: float | None = None
        self._gpus: int | None = None
        # Nodes that could take part, if all were free.
        self._most = 0
        self._attempts = 0
        self._said = ""

    def run(self) -> int:
        """Train to the end; the exit code."""
        wanted = self._wanted
        with StopSignal() as stop, ground.marked(wanted.folder, wanted.files) as files:
            try:
                return self._run(files, stop)
            finally:
                for hand in (*self._hands.values(), *self._asked.values()):
                    hand.close()

    def _run(self, files: Mapping[str, str], stop: StopSignal) -> int:
        wanted = self._wanted
        fruitless, saved = 0, newest_checkpoint(wanted.folder)
        while True:
            crew = self._gather(files, stop)
            if not crew:
                return STOPPED
            end = self._attempt(crew, files, stop)
            if not end.is_broken and not end.goes_on:
                sys.stdout.buffer.write(end.out)
                sys.stdout.flush()
                return end.code
            if end.is_broken:
                self._drop(hand for hand, _ in end.lost)
                before, saved = saved, newest_checkpoint(wanted.folder)
                # What was lost before its ranks were started cost nothing.
                fruitless = fruitless + bool(end.codes) if saved == before else 0
                self._mourn(end, fruitless)
            if stop.is_heard():
                return STOPPED
            self._await_folder(stop)

    # --- nodes --------------------------------------------------------------------------------------

    def _gather(self, files: Mapping[str, str], stop: StopSignal) -> list[Hand]:
        """The nodes of the next attempt, waited for; none where a wish to stop came first."""
        began = time.monotonic()
        first: float | None = None
        self._spare.clear()
        while not stop.is_heard():
            there = self._ask()
            self._drop([hand for id_, hand in self._hands.items() if id_ not in there])
            self._welcome(files)
            count, now = self._count(len(self._hands)), time.monotonic()
            first = None if not count else first or now
            if first is not None and (count >= self._most or not self._asked or now - first > _PATIENCE_S):
                crew = sorted(self._hands.values(), key=lambda hand: hand.node.name)[:count]
                self._give_back(crew)
                if count >= self._most:
                    self._forget_asked()
                return crew
            if first is None and now - began > _QUIET_S:
                self._say_once(f"waits for a node with {self._room}")
            time.sleep(TICK_S)
        return []

    def _ask(self, crew: int = 0) -> set[str]:
        """Ask for room on every node that has it: which are free shows by their answers.

        The ids of those that are there. While a `crew` of so many is at work, nodes that were given back are
        asked again only when, with others that answered, they make a larger one.
        """
        nodes = self._cluster.nodes()
        if self._gpus is None:
            self._gpus = self._choose_device(nodes)
        there = [node for node in nodes if self._fits(node) and node.id not in self._unfit]
        self._most = self._count(len(there))
        self._spare &= {node.id for node in there}
        if len(self._hands) > crew and self._count(len(self._hands) + len(self._spare)) > crew:
            self._spare.clear()
        for node in there if len(self._hands) < self._most else []:
            if node.id not in {*self._hands, *self._asked, *self._spare}:
                room = float(self._wanted.per_node)
                self._asked[node.id] = self._cluster.take(node, cpus=room, gpus=float(self._gpus))
        return {node.id for node in nodes}

    def _give_back(self, crew: Sequence[Hand]) -> None:
        """Let go of the nodes that answered and are not needed."""
        extra = [hand for hand in self._hands.values() if hand not in crew]
        self._spare |= {hand.node.id for hand in extra}
        self._drop(extra)
        self._idle_since = None

    def _forget_asked(self) -> None:
        for hand in self._asked.values():
            hand.close()
        self._asked.clear()

    def _choose_device(self, nodes: Sequence[Node]) -> int:
        """Cards for each node; a cluster that has too few of them is told at once."""
        wanted = self._wanted
        with_cards = any(node.gpus >= wanted.per_node for node in nodes)
        self._gpus = wanted.per_node if with_cards and wanted.device != "cpu" else 0
        if wanted.device == "cuda" and not with_cards:
            raise ClusterFailed(
                f"no node has {wanted.per_node} GPUs, and train.device is cuda: {_told(nodes)}"
            )
        if not any(self._fits(node) for node in nodes):
            raise ClusterFailed(f"no node has {self._room}, by train.devices: {_told(nodes)}")
        return self._gpus

    def _fits(self, node: Node) -> bool:
        return node.cpus >= self._wanted.per_node and node.gpus >= (self._gpus or 0)

    @property
    def _room(self) -> str:
        cores = self._wanted.per_node
        return f"{cores} cores" + (f" and {self._gpus} GPUs" if self._gpus else "")

    def _count(self, there: int) -> int:
        return choose_nodes(there, self._wanted.per_node, self._wanted.batch_size)

    def _welcome(self, files: Mapping[str, str]) -> None:
        """Take in those that answer and have what they need; at the beginning, one that lacks it ends all."""
        for id_, hand in list(self._asked.items()):
            try:
                look = ground.look_at(self._cluster, hand, files)
                if look is None:
                    continue
                if self._most * self._wanted.per_node > 1:
                    ground.port_of(hand.node.name, look)
                self._hands[id_] = self._asked.pop(id_)
            except NodeLost:
                del self._asked[id_]
            except NodeUnfit as error:
                del self._asked[id_]
                hand.close()
                if not self._attempts:
                    raise
                self._unfit.add(id_)
                self._tell(f"left out: {error}")

    def _drop(self, lost: Iterable[Hand]) -> None:
        for hand in lost:
            self._hands.pop(hand.node.id, None)
            hand.close()

    # --- an attempt ---------------------------------------------------------------------------------

    def _attempt(self, crew: Sequence[Hand], files: Mapping[str, str], stop: StopSignal) -> _End:
        """All ranks from their start to their end."""
        wanted = self._wanted
        looks = []
        for hand in crew:
            try:
                looks.append(ground.await_answer(hand.look, hand, within=_ANSWER_S))
            except NodeLost as error:
                return _End(lost=[(hand, error)])
        self._attempts += 1
        names = [hand.node.name for hand in crew]
        world = len(crew) * wanted.per_node
        self._tell(f"{world} {'rank' if world == 1 else 'ranks'} on {', '.join(names)}")
        errands = []
        for at, (hand, ranks) in enumerate(
            zip(crew, environments(looks, names, wanted.per_node), strict=True)
        ):
            orders = [Order(words=wanted.words, cwd=str(Path.cwd()), env=env) for env in ranks]
            # Rank 0 speaks for all; what others say has their place before it.
            speakers = [
                "" if at == local == 0 else f"rank {at * wanted.per_node + local} on {hand.node.name}"
                for local in range(len(orders))
            ]
            errands.append(Errand(hand, orders, speakers))
        end = self._watch(errands, files, stop)
        for errand in errands:
            errand.stop()
        return end

    def _watch(self, errands: Sequence[Errand], files: Mapping[str, str], stop: StopSignal) -> _End:
        began = look_at = time.monotonic()
        failed_at: float | None = None
        asked_to_end = 0.0
        end = _End()
        while True:
            for errand in errands:
                try:
                    errand.attend()
                except NodeLost as error:
                    end.lost.append((errand.hand, error))
            now = time.monotonic()
            end.codes = [code for errand in errands for code in errand.codes]
            if end.lost or None not in end.codes:
                break
            ending = stop.is_heard() or end.grows
            fine = (None, 0, STOPPED) if ending else (None, 0)
            if any(code not in fine for code in end.codes):
                failed_at = failed_at or now
                # The others may have failed because a node is gone. One that is not answers; of one that is,
                # Ray says so in the end: until then nothing can be told.
                answered = all(one.is_over or (one.answered or 0.0) > failed_at for one in errands)
                if answered and now - failed_at > _LAST_WORDS_S:
                    break
            elif ending and now - asked_to_end > _TERM_AGAIN_S:
                asked_to_end = now  # again, since a call may be lost on its way
                for errand in errands:
                    errand.signal(SIGTERM)
            elif now - look_at > _LOOK_S:
                look_at = now
                end.grows = now - began > self._wanted.grow_after and self._has_more(
                    [errand.hand for errand in errands], files
                )
            time.sleep(TICK_S)
        end.out = bytes(errands[0].outs[0])
        return end

    def _has_more(self, crew: Sequence[Hand], files: Mapping[str, str]) -> bool:
        """Whether more nodes can take part than do; their room is held from then on."""
        self._ask(len(crew))
        self._welcome(files)
        if self._count(len(self._hands)) <= len(crew):
            # What is too little for a larger crew is not held for long: others may be waiting for it.
            now = time.monotonic()
            self._idle_since = None if len(self._hands) <= len(crew) else self._idle_since or now
            if self._idle_since is not None and now - self._idle_since > _PATIENCE_S:
                self._give_back(crew)
            return False
        names = sorted(hand.node.name for hand in self._hands.values())
        self._tell(
            f"more nodes can take part ({', '.join(names)}): the state is saved, and gone on from with them"
        )
        return True

    # --- after it -----------------------------------------------------------------------------------

    def _mourn(self, end: _End, fruitless: int) -> None:
        why = "; ".join(str(error) for _, error in end.lost) or "a rank was killed"
        if fruitless >= _MOST_FRUITLESS:
            raise ClusterFailed(
                f"{why}. That was attempt {fruitless} in a row without a new checkpoint: see what ends them "
                "(memory?), or save more often (train.save.every); the same command goes on"
            )
        self._tell(f"{why}. It goes on from the last checkpoint")

    def _await_folder(self, stop: StopSignal) -> None:
        """Until nobody trains into the folder: a node that was only cut off may still hold it."""
        until = time.monotonic() + _HELD_S
        while folder.is_taken(self._wanted.folder) and not stop.is_heard():
            self._say_once(f"waits until a lost process lets go of {self._wanted.folder}")
            if time.monotonic() > until:
                raise ClusterFailed(
                    f"{self._wanted.folder} is still held after {_HELD_S:g} s, by a process on a node "
                    "that was lost: end it there; the same command goes on"
                )
            time.sleep(TICK_S)
        self._said = ""

    def _say_once(self, text: str) -> None:
        if self._said != text:
            self._said = text
            self._tell(text)


def newest_checkpoint(training: Path) -> str | None:
    """The name of the one of the last step; None where there is none."""
    return max((path.name for path in (training / folder.CHECKPOINTS).glob("step-*")), default=None)


def _told(nodes: Sequence[Node]) -> str:
    if not nodes:
        return "the cluster has no node with a core to give"
    return ", ".join(f"{node.name} has {node.cpus:g} cores and {node.gpus:g} GPUs" for node in nodes)
