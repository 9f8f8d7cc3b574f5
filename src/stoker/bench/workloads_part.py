"""One system of `stoker bench workloads`, measured in a process of its own.

    python -m stoker.bench.workloads_part SYSTEM --device cuda --seconds 60 --data DIR --out FILE

A process of its own begins with an empty card, and can be ended whatever it is doing. With `--make-only` it
makes the data and says with which words the note's script is run, for `stoker doctor`.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from stoker.bench.children import StayingChild, say
from stoker.bench.workloads_step import Step
from stoker.bench.workloads_systems import NOTES, SYSTEMS, System, Way
from stoker.errors import BenchFailed
from stoker.feed import Feed
from stoker.watch.record import write_whole

LEAST_TURNS = 3
# Stretches that share a turn's time: two fed and two not, one of the note's step, two of the note's way.
_STRETCHES = 7
_LONGEST_S, _SHORTEST_S = 4.0, 0.2
# Steps on one batch before each stretch that is held against another one: a rested card is 4% faster for a
# third of a second.
_HEAT_S = 1.0
# More steps than those after which a feed knows what the model needs.
_WARM = 6
_PATIENCE_S = 200.0


class Part:
    """A system, started: everything that takes turns."""

    def __init__(self, system: System, log: Path, stack: ExitStack) -> None:
        self._system = system
        starting = _start_notes(system, log, stack)
        ways, opened = {}, {}
        for kind, open_way in (("fed", system.fed), ("fast", system.fast)):
            began = time.monotonic()
            ways[kind] = open_way()
            opened[kind] = time.monotonic() - began
        self._feeds = {kind: way.feed for kind, way in ways.items()}
        for feed in set(self._feeds.values()):
            stack.enter_context(closing(feed))
        self._steps = {kind: Step(way.task, way.how, system.device) for kind, way in ways.items()}
        # Two ways with one feed go on in it by turns.
        endless = {feed: _without_end(feed) for feed in self._feeds.values()}
        self._batches = {kind: endless[way.feed] for kind, way in ways.items()}
        self._ways, self._filled = ways, {kind: opened[kind] + self._warm_up(kind) for kind in ways}
        self._held = tree_map(_copied, next(self._batches["fast"]))
        self._notes = {kind: starting[kind].result() for kind in starting}

    def describe(self) -> dict[str, Any]:
        """What was measured, and from where it is fed by now: samples may move up in the first turn."""
        told = {kind: _told(way, self._filled[kind]) for kind, way in self._ways.items()}
        name = self._system.name
        return {"part": name, "how": "setup", "kind": name, **self._system.describe(), **told}

    def take_turn(self, turn: int, stretch: float) -> Iterator[dict[str, Any]]:
        """Everybody once; what is held against each other, twice and in the order one, other, other, one."""
        first, second = ("synthetic", "fast") if turn % 2 == 0 else ("fast", "synthetic")
        for kind in (first, second, second, first):
            self._run("synthetic", min(_HEAT_S, stretch))
            yield self._noted(turn, kind, self._run(kind, stretch))
        yield self._noted(turn, "fed", self._run("fed", stretch))
        for kind, child in self._notes.items():
            child.resume()
            answer = child.ask({"seconds": stretch})
            child.pause()
            yield self._noted(turn, kind, answer)

    def _run(self, kind: str, seconds: float) -> dict[str, float]:
        if kind == "synthetic":
            return self._steps["fast"].run(repeat(self._held), seconds=seconds)
        return self._steps[kind].run(self._batches[kind], seconds=seconds)

    def _warm_up(self, kind: str) -> float:
        """Compile and fill: some steps, and the rest of the epoch's batches. Seconds for the latter."""
        feed, batches = self._feeds[kind], self._batches[kind]
        say(f"{self._system.name}: warming up {kind}")
        began = time.monotonic()
        self._steps[kind].run(batches, least=_WARM)
        say(f"{self._system.name}: {_WARM} steps of {kind} in {time.monotonic() - began:.0f} s")
        began = time.monotonic()
        for _ in islice(batches, max(0, len(feed) - _WARM)):
            pass
        if feed.device.type == "cuda":
            torch.cuda.synchronize()
        return time.monotonic() - began

    def _noted(self, turn: int, kind: str, answer: dict[str, float]) -> dict[str, Any]:
        return {"part": self._system.name, "how": "turn", "turn": turn, "kind": kind, **answer}


def measure_part(system: System, seconds: float, log: Path) -> list[dict[str, Any]]:
    """Everything of one system, in turns, for about that long."""
    say(f"{system.name}: making data")
    system.make()
    with ExitStack() as stack:
        part = Part(system, log, stack)
        runs: list[dict[str, Any]] = []
        stretch = max(_SHORTEST_S, min(_LONGEST_S, seconds / LEAST_TURNS / _STRETCHES))
        until, turn = time.monotonic() + seconds, 0
        while turn < LEAST_TURNS or time.monotonic() < until:
            runs += part.take_turn(turn, stretch)
            turn += 1
            say(f"{system.name}: turn {turn}, {max(0.0, until - time.monotonic()):.0f} s left")
        return [part.describe(), *runs]


def _start_notes(system: System, log: Path, stack: ExitStack) -> dict[str, "Future[StayingChild]"]:
    """The note's way with its delay and without, starting while the rest is made ready."""
    threads = stack.enter_context(ThreadPoolExecutor(2))
    starting = {}
    for kind in ("note", "near") if system.delay_ms else ("note",):
        note = stack.enter_context(system.script(delayed=kind == "note"))
        words = (str(note.cycle), *note.words)
        command: list[str | Path] = [sys.executable, NOTES / "turn.py", note.script, *words]
        starting[kind] = threads.submit(
            _start_stopped, command, f"{system.name}: starting {kind}", log / f"{system.name}_{kind}.log"
        )
        stack.callback(_end, starting[kind])
    return starting


def _start_stopped(command: list[str | Path], what: str, log: Path) -> StayingChild:
    """Stopped as soon as it is ready: what it reads ahead while nobody measures would count as nothing."""
    child = StayingChild(command, what=what, log=log, patience_s=_PATIENCE_S)
    child.pause()
    return child


def _end(starting: "Future[StayingChild]") -> None:
    """Also of one that nobody came to use."""
    with contextlib.suppress(BenchFailed):
        starting.result().close()


def _without_end(feed: Feed) -> Iterator[Any]:
    while True:
        yield from feed


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def _told(way: Way, filled: float) -> dict[str, Any]:
    return {**asdict(way.how), "tier": way.feed.tier, "why": way.feed.why, "fill_s": round(filled, 2)}


def main() -> None:
    """Measure, and write what was found, whole or not at all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="None")
    parser.add_argument("--make-only", action="store_true")
    given = parser.parse_args()
    system = SYSTEMS[given.system](given.data.absolute(), torch.device(given.device))
    system.folder.mkdir(parents=True, exist_ok=True)
    if given.make_only or given.out is None:
        system.make()
        with system.script(delayed=False) as note:
            sys.stdout.write(" ".join([str(note.script), *note.words]) + "\n")
        return
    runs = measure_part(system, given.seconds, given.out.parent)
    write_whole(given.out, {"commit": given.commit, "runs": runs})


if __name__ == "__main__":
    main()
