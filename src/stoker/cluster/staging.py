"""Staging shared out over the nodes of a cluster; the destination decides what that means.

A folder that all nodes share gets one copy: objects are dealt out by their keys, each node copies its parts,
the parts of a node that is lost are done by others, and a last run over the whole set finds everything
there. It leaves what staging on one machine leaves, byte for byte. A folder that is each node's own gets a
copy on every node: a training reads any sample on any of them.
"""

import json
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import Any

from stoker.cluster import ground
from stoker.cluster.charge import FOLDER
from stoker.cluster.errand import TICK_S, Errand, Tell
from stoker.cluster.nodes import Cluster, Hand, Order
from stoker.errors import ClusterFailed, NodeLost
from stoker.feed.stage import Outcome, summary

# More parts than nodes, so that a slow node is given fewer; each lists the source once.
_PARTS_PER_NODE = 2
_ANSWER_S = 120.0
# Of an outcome, what is summed over nodes that each have a copy.
_COUNTS = ("files", "bytes", "copied", "copied_bytes", "checked", "kept", "deleted", "leftovers")

# The words after `python` that stage, with other values for some options of the verb.
Words = Callable[..., tuple[str, ...]]


@dataclass(kw_only=True)
class Staged:
    """What a staging came to. `nodes`: what each told; `lost`: those that went away meanwhile."""

    outcome: Outcome
    is_shared: bool
    nodes: dict[str, Any] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {**self.outcome.to_json(), "shared": self.is_shared, "nodes": self.nodes, "lost": self.lost}

    def __str__(self) -> str:
        where = "one copy, by" if self.is_shared else "a copy on each of"
        said = [summary(self.outcome), f"{where} {', '.join(self.nodes)}"]
        if self.lost:
            said.append(f"lost meanwhile: {', '.join(self.lost)}")
        return "\n".join(said)


class Staging:
    """One source staged by all nodes that are there at the beginning."""

    def __init__(self, cluster: Cluster, words: Words, target: str, tell: Tell) -> None:
        self._cluster = cluster
        self._words = words
        self._target = target
        self._tell = tell
        self._hands: list[Hand] = []
        self._lost: list[str] = []

    def run(self, *, dry_run: bool = False) -> Staged:
        """Stage everything; `failed` in the outcome names files that could not be."""
        began = time.monotonic()
        self._take()
        try:
            staged = self._stage(dry_run)
        finally:
            for hand in self._hands:
                hand.close()
        staged.outcome.seconds = time.monotonic() - began
        staged.lost = self._lost
        return staged

    def _stage(self, dry_run: bool) -> Staged:
        is_shared = self._find_shared()
        told = ", ".join(hand.node.name for hand in self._hands)
        self._tell(f"{self._target} is {'shared by' if is_shared else 'its own on each of'} {told}")
        return self._stage_shared(dry_run) if is_shared else self._stage_each(dry_run)

    # --- nodes --------------------------------------------------------------------------------------

    def _take(self) -> None:
        """A hand on every node; staging waits for disks and networks, and takes no cores from others."""
        asked = [self._cluster.take(node, cpus=0.0, gpus=0.0) for node in self._cluster.nodes()]
        for hand in asked:
            try:
                ground.await_answer(partial(ground.look_at, self._cluster, hand, {}), hand, within=_ANSWER_S)
            except NodeLost as error:
                self._lose(hand, error)
                continue
            self._hands.append(hand)
        self._require_hands()

    def _require_hands(self) -> None:
        if not self._hands:
            lost = f" ({', '.join(self._lost)} were lost)" if self._lost else ""
            raise ClusterFailed(
                f"no node is left to stage{lost}: what was copied is kept, and the same command goes on"
            )

    def _lose(self, hand: Hand, error: NodeLost) -> None:
        self._lost.append(hand.node.name)
        self._tell(str(error))
        hand.close()
        if hand in self._hands:
            self._hands.remove(hand)

    def _find_shared(self) -> bool:
        """Whether what one node writes to the target is seen by all the others, or by none."""
        while len(self._hands) > 1:
            first = self._hands[0]
            mark = ""
            try:
                mark = self._place(first)
                seen = self._find_seeing(first, mark)
            except NodeLost as error:
                self._lose(first, error)
                self._remove(mark)
                self._require_hands()
                continue
            if len(set(seen.values())) > 1:
                told = ", ".join(name for name, sees in seen.items() if not sees)
                raise ClusterFailed(
                    f"{self._target} is shared by some nodes and not by others ({told}): give a folder that "
                    "all of them share, or that each has for itself"
                )
            return all(seen.values())
        return True

    def _place(self, hand: Hand) -> str:
        """A file in the target, or where that would be made: a dry run makes no folder."""
        target = PurePath(self._target)
        places = tuple(str(path) for path in (target, *target.parents))
        look = ground.await_answer(lambda: hand.look(places), hand, within=_ANSWER_S)
        there = next((path for path in places if look.digests[path] == FOLDER), target.anchor)
        return str(PurePath(there) / f".stoker-stage-{secrets.token_hex(8)}.mark")

    def _find_seeing(self, first: Hand, mark: str) -> dict[str, bool]:
        """Of the other nodes, which see what the first writes; it is removed again."""
        seen: dict[str, bool] = {}
        try:
            if wrong := ground.await_answer(lambda: first.put(mark, "seen"), first, within=_ANSWER_S):
                raise ClusterFailed(f"the node {first.node.name} cannot write to the target: {wrong}")
            for hand in self._hands[1:]:
                seen |= self._sees(hand, mark)
        finally:
            if wrong := ground.await_answer(lambda: first.put(mark, None), first, within=_ANSWER_S):
                self._tell(f"left on the node {first.node.name}: {wrong}")
        return seen

    def _remove(self, mark: str) -> None:
        """What a node wrote that is lost since, removed by those that see it."""
        for hand in list(self._hands) if mark else []:
            try:
                wrong = ground.await_answer(partial(hand.put, mark, None), hand, within=_ANSWER_S)
            except NodeLost as error:
                self._lose(hand, error)
                continue
            if wrong:
                self._tell(f"left on the node {hand.node.name}: {wrong}")

    def _sees(self, hand: Hand, mark: str) -> dict[str, bool]:
        """Whether a node has a file; nothing where it is lost."""
        try:
            look = ground.await_answer(lambda: hand.look((mark,)), hand, within=_ANSWER_S)
        except NodeLost as error:
            self._lose(hand, error)
            return {}
        return {hand.node.name: look.digests[mark] is not None}

    # --- one copy for all ---------------------------------------------------------------------------

    def _stage_shared(self, dry_run: bool) -> Staged:
        # All of it first: what is wrong with the source, the keys or the room is told once, before a copy.
        before, _ = self._anywhere(self._words(dry_run=True))
        if dry_run:
            return Staged(outcome=_outcome(before), is_shared=True)
        told: dict[str, dict[str, int]] = {}
        if before["copied"] or before["checked"]:
            count = _PARTS_PER_NODE * len(self._hands)
            for name, found in self._share_out([self._words(part=f"{at}/{count}") for at in range(count)]):
                mine = told.setdefault(name, {"copied": 0, "copied_bytes": 0})
                mine["copied"] += found["copied"]
                mine["copied_bytes"] += found["copied_bytes"]
        # What is there was verified as it was written, or by its part.
        last, name = self._anywhere(self._words(verify=False))
        told.setdefault(name, {"copied": 0, "copied_bytes": 0})
        outcome = _outcome(last)
        for mine in told.values():
            outcome.copied += mine["copied"]
            outcome.copied_bytes += mine["copied_bytes"]
            outcome.kept -= mine["copied"]
        return Staged(outcome=outcome, is_shared=True, nodes=told)

    def _share_out(self, orders: Sequence[tuple[str, ...]]) -> list[tuple[str, dict[str, Any]]]:
        """Each of these done by some node, given to another where that was lost; who told what."""
        todo = deque(orders)
        running: list[tuple[Errand, tuple[str, ...]]] = []
        done: list[tuple[str, dict[str, Any]]] = []
        while todo or running:
            busy = [errand.hand for errand, _ in running]
            for hand in self._hands:
                if hand not in busy and todo:
                    words = todo.popleft()
                    running.append((_begin(hand, words), words))
            self._require_hands()
            for errand, words in list(running):
                try:
                    errand.attend()
                except NodeLost as error:
                    running.remove((errand, words))
                    todo.appendleft(words)
                    self._lose(errand.hand, error)
                    continue
                if errand.is_over:
                    running.remove((errand, words))
                    done.append((errand.hand.node.name, _read(errand)))
            time.sleep(TICK_S)
        return done

    def _anywhere(self, words: tuple[str, ...]) -> tuple[dict[str, Any], str]:
        [(name, found)] = self._share_out([words])
        return found, name

    # --- a copy for each ----------------------------------------------------------------------------

    def _stage_each(self, dry_run: bool) -> Staged:
        errands = [_begin(hand, self._words(dry_run=dry_run)) for hand in self._hands]
        told: dict[str, dict[str, Any]] = {}
        while errands:
            for errand in list(errands):
                try:
                    errand.attend()
                except NodeLost as error:
                    errands.remove(errand)
                    self._lose(errand.hand, error)
                    continue
                if errand.is_over:
                    errands.remove(errand)
                    told[errand.hand.node.name] = _read(errand)
            time.sleep(TICK_S)
        self._require_hands()
        first = next(iter(told.values()))
        total = Outcome(source=first["source"], target=first["target"], dry_run=dry_run)
        for name, one in sorted(told.items()):
            for key in _COUNTS:
                setattr(total, key, getattr(total, key) + one[key])
            for key in ("changed", "gone", "removed", "skipped"):
                getattr(total, key).extend(text for text in one[key] if text not in getattr(total, key))
            total.failed.update({f"{name}: {key}": why for key, why in one["failed"].items()})
        return Staged(outcome=total, is_shared=False, nodes=told)


def _begin(hand: Hand, words: tuple[str, ...]) -> Errand:
    # In a folder that is everywhere: paths are absolute.
    return Errand(hand, [Order(words=words, cwd="/")], [hand.node.name])


def _read(errand: Errand) -> dict[str, Any]:
    """What a child told: of one that could not do its part, why."""
    try:
        found: dict[str, Any] = json.loads(errand.outs[0])
    except ValueError:
        raise ClusterFailed(
            f"on the node {errand.hand.node.name}: {errand.last_words.removeprefix('stoker: ')}"
        ) from None
    return found


def _outcome(told: dict[str, Any]) -> Outcome:
    return Outcome(**{name: value for name, value in told.items() if name != "schema"})
