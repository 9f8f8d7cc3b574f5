"""Loaders taking turns: each in a process that stays, tuned first, then measured one after the other.

A machine drifts, so nobody is measured twice before everybody was measured once. A peer that cannot be had,
or that fails, is left out with the last line of what it said; the others go on.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from stoker.bench.children import StayingChild, say
from stoker.bench.loops.feed_peers import turn
from stoker.bench.peers import Peer, last_line
from stoker.errors import BenchFailed

# At least so many turns each, whatever the time.
LEAST_TURNS = 5
# Writing a set in a peer's own format is the longest that is waited for.
_PATIENCE_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A loader to measure: its module, run by which interpreter, and the settings to choose from.

    `plans` are keywords of the module's `open_epochs`; the fastest is the one that takes turns. `threads` in
    one is for torch. `needed`: without it nothing is measured at all.
    """

    kind: str
    module: str
    plans: Sequence[Mapping[str, Any]]
    python: Path = Path(sys.executable)
    env: Mapping[str, str] = field(default_factory=dict)
    needed: bool = False


def peer_of(found: Peer | str, kind: str, module: str, plans: Sequence[Mapping[str, Any]]) -> Contender | str:
    """A peer in its own environment, or why there is none."""
    if isinstance(found, str):
        return found
    return Contender(kind=kind, module=module, plans=plans, python=found.python, env=found.env)


class Contest:
    """One part's contenders and what they measured: `runs`, in order.

    With `warm`, everybody has an epoch that is not timed right before each stretch that is. `classes` is of
    samples whose label is a class (see `turn.py`), `tuning_turns` how often each setting is tried.
    """

    def __init__(
        self,
        part: str,
        folder: Path,
        *,
        stretch_s: float,
        expected: int,
        warm: bool = False,
        classes: int | None = None,
        tuning_turns: int = 3,
    ) -> None:
        self.part, self.runs = part, list[dict[str, Any]]()
        self._classes, self._tuning_turns = classes, tuning_turns
        self._folder, self._stretch, self._expected, self._warm = folder, stretch_s, expected, warm
        self._children: dict[str, tuple[StayingChild, Mapping[str, Any]]] = {}

    def hold(self, contenders: Sequence[Contender], seconds: float) -> list[dict[str, Any]]:
        """Start and tune everybody, then take turns for that long."""
        with contextlib.ExitStack() as stack:
            for contender in contenders:
                kept = self._tune(contender, stack)
                if kept is not None:
                    self._children[contender.kind] = kept
            self._take_turns({one.kind for one in contenders if one.needed}, seconds)
        return self.runs

    def leave_out(self, kind: str, why: str) -> None:
        """Say that somebody was not measured."""
        say(f"{kind} was left out: {why}")
        self.runs.append({"part": self.part, "how": "skipped", "kind": kind, "why": why})

    def _tune(
        self, contender: Contender, stack: contextlib.ExitStack
    ) -> tuple[StayingChild, Mapping[str, Any]] | None:
        """The fastest of a contender's settings, at work; None where none works."""
        started = []
        for plan, child in zip(contender.plans, self._start_all(contender), strict=True):
            if isinstance(child, StayingChild):
                started.append((stack.enter_context(child), plan))
            elif contender.needed:
                raise child
            else:
                self.leave_out(contender.kind, f"{last_line(str(child))} ({_told(plan)})")
        if len(started) < 2:
            return started[0] if started else None
        rates: dict[int, list[float]] = {at: [] for at in range(len(started))}
        for number in range(self._tuning_turns):
            for at, (child, plan) in enumerate(started):
                answer = self._ask(child, self._stretch / 2)
                rates[at].append(answer["samples"] / answer["seconds"])
                self._note("tuning", number, contender.kind, plan, answer)
        best = max(rates, key=lambda at: median(rates[at]))
        with ThreadPoolExecutor(len(started)) as pool:  # workers take their time to end
            list(pool.map(StayingChild.close, [child for at, (child, _) in enumerate(started) if at != best]))
        return started[best]

    def _start_all(self, contender: Contender) -> list[StayingChild | BenchFailed]:
        """A child for each setting, or why there is none.

        The first alone: it may write the set in the peer's own format, which the others find. Those start as
        many at a time as there are cores, because most of a start is importing torch.
        """

        def start(number: int) -> StayingChild | BenchFailed:
            try:
                return self._start(contender, number, contender.plans[number])
            except BenchFailed as error:
                return error

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return [start(0), *pool.map(start, range(1, len(contender.plans)))]

    def _start(self, contender: Contender, number: int, plan: Mapping[str, Any]) -> StayingChild:
        given = {key: value for key, value in plan.items() if key != "threads"}
        # Where torch's threads are not a setting, one: two that contend for two cores made stacking a batch
        # 8 times slower beside other work. Stoker's own ways are run as a user has them.
        counted = contender.module != OURS or "threads" in plan
        threads = {"OMP_NUM_THREADS": str(plan.get("threads", 1))} if counted else {}
        told_classes = [] if self._classes is None else [str(self._classes)]
        child = StayingChild(
            [contender.python, turn.__file__, contender.module, json.dumps(given), *told_classes],
            what=f"{self.part}: starting {contender.kind} ({_told(plan)})",
            log=self._folder / f"{contender.kind}_{number}.log",
            patience_s=_PATIENCE_S,
            env={**threads, **contender.env},
        )
        if child.ready["samples"] != self._expected:
            child.close()
            raise BenchFailed(f"an epoch brought {child.ready['samples']} samples of {self._expected}")
        return child

    def _take_turns(self, needed: set[str], seconds: float) -> None:
        say(f"{self.part}: taking turns, {len(self._children)} of them, for about {seconds:.0f} s")
        began, number = time.monotonic(), 0
        while number < LEAST_TURNS or time.monotonic() - began < seconds:
            for kind, (child, plan) in list(self._children.items()):
                try:
                    answer = self._ask(child, self._stretch)
                except BenchFailed as error:
                    if kind in needed:
                        raise
                    self.leave_out(kind, last_line(str(error)))
                    del self._children[kind]
                    continue
                self._note("turn", number, kind, plan, answer)
            number += 1

    def _ask(self, child: StayingChild, seconds: float) -> dict[str, Any]:
        return child.ask({"seconds": seconds, "warm": self._warm})

    def _note(
        self, how: str, number: int, kind: str, plan: Mapping[str, Any], answer: Mapping[str, Any]
    ) -> None:
        self.runs.append(
            {"part": self.part, "how": how, "turn": number, "kind": kind, **_settings(plan), **answer}
        )


# The module of Stoker's own ways.
OURS = "stoker.bench.feed_ours"
_SETTINGS = ("way", "workers", "threads", "cache_bytes")


def ours(kind: str, plan: Mapping[str, Any]) -> Contender:
    """One of Stoker's own ways, with torch's threads as a user has them."""
    return Contender(kind=kind, module=OURS, plans=[plan], needed=True)


def worker_plans(**plan: Any) -> list[dict[str, Any]]:
    """Settings of a loader with worker processes, on as many cores as this machine has."""
    cores = os.cpu_count() or 1
    alone = [{**plan, "workers": 0, "threads": 1}, {**plan, "workers": 0, "threads": cores}]
    return [*alone, *({**plan, "workers": count} for count in sorted({1, min(2, cores), cores}))]


def process_plans(**plan: Any) -> list[dict[str, Any]]:
    """The same without torch's threads, for work that they have no part in."""
    return [one for one in worker_plans(**plan) if one.get("threads", 1) == 1]


def _settings(plan: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plan[name] for name in _SETTINGS if name in plan}


def _told(plan: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in _settings(plan).items()) or "as it comes"
