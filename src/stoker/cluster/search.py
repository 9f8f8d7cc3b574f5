"""A search of `stoker tune` on a node of a cluster, and on another of its kind if that one is lost.

Rates are compared within a machine alone. So the search, its diagnosis and every trial run on one node, which
it has to itself. Where the node is lost, the search goes on from its ledger on another of the same kind: what
was decided holds, and what further changes are compared with is measured anew there.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stoker.cluster import ground
from stoker.cluster.errand import TICK_S, Errand, Tell
from stoker.cluster.nodes import Cluster, Hand, Look, Node, Order
from stoker.errors import ClusterFailed, NodeLost
from stoker.tune.ledger import is_taken
from stoker.watch.record import default_root

# A search that loses one node after the other is not the nodes' fault.
_MOST_LOST = 5
# What a search that moved is given at least, whatever the lost node had of it (Ray takes a minute to give one
# up): it diagnoses anew, measures anew what it compares with, and then tries changes.
LEAST_BUDGET_S, _LEAST_SHARE = 60.0, 0.5
# What runs on a node that was only cut off is killed there after a minute.
_HELD_S = 300.0
# A free node answers within seconds; of one that does not, it is told now and then that it is waited for.
_QUIET_S, _TELL_EVERY_S = 10.0, 60.0

# The words after `python` for a budget in seconds, and the folder of a search to go on with.
Words = Callable[[float, Path | None], tuple[str, ...]]


class Searching:
    """One search. `home` is the `.stoker` it writes to, `command` what its ledger says that it is of.

    `resume`: the folder of an earlier one that the words go on with.
    """

    def __init__(
        self,
        cluster: Cluster,
        words: Words,
        *,
        budget: float,
        home: Path,
        command: Sequence[str],
        files: Sequence[Path],
        tell: Tell,
        resume: Path | None = None,
    ) -> None:
        self._cluster = cluster
        self._words = words
        self._budget = budget
        self._home = home
        self._command = list(command)
        self._files = files
        self._tell = tell
        self._kind: tuple[float, float, str] | None = None
        self._before = set(ledgers(home))
        self._ledger = resume
        self._host: str | None = None

    def run(self) -> int:
        """Search to the end; the exit code. Where it ends before, what goes on with its trials is told."""
        try:
            return self._run()
        except BaseException:  # Ctrl-C too
            if (ledger := self._find_ledger()) is not None:
                self._tell(f"what was tried is kept: --resume {ledger} goes on with it")
            raise

    def _run(self) -> int:
        until = time.monotonic() + self._budget
        with ground.marked(self._home, self._files) as files:
            for lost in range(_MOST_LOST):
                hand, look = self._take(files)
                self._host = look.host
                left = self._budget if not lost else moved_budget(self._budget, until - time.monotonic())
                self._tell(f"tunes on {hand.node.name}")
                try:
                    errand = self._run_on(hand, self._words(left, self._ledger))
                except NodeLost as error:
                    self._ledger = self._find_ledger()
                    kept = (
                        "nothing was tried yet" if self._ledger is None else f"it goes on with {self._ledger}"
                    )
                    self._tell(f"{error}; {kept}")
                else:
                    sys.stdout.buffer.write(bytes(errand.outs[0]))
                    sys.stdout.flush()
                    return errand.codes[0] or 0
                finally:
                    hand.close()
                self._await_ledger()
        raise ClusterFailed(f"{_MOST_LOST} nodes in a row were lost: see what ends them")

    def _find_ledger(self) -> Path | None:
        """The folder of this search; None where it has not come so far."""
        if self._ledger is not None or self._host is None:
            return self._ledger
        return find_ledger(self._home, self._before, self._host, self._command)

    def _await_ledger(self) -> None:
        """Until nobody searches in its folder: a node that was only cut off may still do."""
        if self._ledger is None or not is_taken(self._ledger):
            return
        self._tell(f"waits until a lost process lets go of {self._ledger}")
        until = time.monotonic() + _HELD_S
        while is_taken(self._ledger):
            if time.monotonic() > until:
                raise ClusterFailed(
                    f"{self._ledger} is still held after {_HELD_S:g} s, by a process on a node that was "
                    "lost: end it there"
                )
            time.sleep(TICK_S)

    def _run_on(self, hand: Hand, words: tuple[str, ...]) -> Errand:
        env: dict[str, str | None] = {
            # Ray sets it to the room that was asked for: the script is to be measured as it runs elsewhere.
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
            # What this machine looks for in a folder is to be written to that folder.
            "STOKER_RUNS": str(default_root().absolute()) if "STOKER_RUNS" in os.environ else None,
            "COLUMNS": str(shutil.get_terminal_size().columns),
        }
        errand = Errand(hand, [Order(words=words, cwd=str(Path.cwd()), env=env)], [hand.node.name])
        while not errand.is_over:
            errand.attend()
            time.sleep(TICK_S)
        return errand

    def _take(self, files: Mapping[str, str]) -> tuple[Hand, Look]:
        """A whole node: the first that is free, of the kind that the search began on."""
        asked: dict[str, Hand] = {}
        tell_at = time.monotonic() + _QUIET_S
        try:
            while True:
                there = self._choose()
                for node in there:
                    if node.id not in asked:
                        asked[node.id] = self._cluster.take(node, cpus=node.cpus, gpus=node.gpus)
                for id_, hand in list(asked.items()):
                    try:
                        look = ground.look_at(self._cluster, hand, files)
                    except NodeLost:
                        del asked[id_]
                        continue
                    if look is not None:
                        self._kind = hand.node.kind
                        return asked.pop(id_), look
                if time.monotonic() > tell_at:
                    tell_at = time.monotonic() + _TELL_EVERY_S
                    self._tell(f"waits for a whole node, one of {', '.join(node.name for node in there)}")
                time.sleep(TICK_S)
        finally:
            for hand in asked.values():
                hand.close()

    def _choose(self) -> list[Node]:
        """Nodes of one kind: the one that was begun on, else that with the most cards, cores and nodes."""
        nodes = self._cluster.nodes()
        kinds: dict[tuple[float, float, str], list[Node]] = {}
        for node in nodes:
            kinds.setdefault(node.kind, []).append(node)
        if self._kind is not None:
            cpus, gpus, cards = self._kind
            if self._kind not in kinds:
                raise ClusterFailed(
                    f"no other node of the cluster has {cpus:g} cores and {gpus:g} GPUs {cards}".rstrip()
                    + ": rates of another kind would say nothing of this one"
                )
            return kinds[self._kind]
        if not kinds:
            raise ClusterFailed("the cluster has no node with a core to give")
        return max(kinds.values(), key=lambda same: (same[0].gpus, same[0].cpus, len(same)))


def moved_budget(budget: float, left: float) -> float:
    """What a search gets on the next node, with so much left of what it had."""
    return max(left, _LEAST_SHARE * budget, LEAST_BUDGET_S)


def ledgers(home: Path) -> list[Path]:
    """The folders of searches."""
    return sorted(path.parent for path in (home / "tune").glob("*/search.json"))


def find_ledger(home: Path, before: set[Path], host: str, command: Sequence[str]) -> Path | None:
    """The search of that command that was begun on that host meanwhile; None where it had not come so far."""
    for folder in reversed(ledgers(home)):
        if folder in before:
            continue
        try:
            told = json.loads((folder / "search.json").read_text())
        except (OSError, ValueError):  # harmed, or gone meanwhile: none to go on with
            continue
        if isinstance(told, dict) and (told.get("host"), told.get("command")) == (host, list(command)):
            return folder
    return None
