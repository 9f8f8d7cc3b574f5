"""The child that switches observation on and off in one process: `python -m stoker.bench.toggle`.

Two processes that run the same code differ by a percent or two for as long as they live, by where
their memory happened to lie, and a shared machine's speed drifts from second to second; either is more
than what is to be measured. So one process is compared with itself, in many short turns. Each way has
a loader of its own whose workers live on: those of the observed one measure their batches, those of the
bare one do not. The recorder's thread and the process that writes the record run beside the loop as in any
run, on a clock that stands still while the loop is bare: rounds come twice a second of observed time, and
fall where they fall.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import torch

from stoker.bench.children import say
from stoker.bench.loops.overhead import WORKERS, Loop
from stoker.bench.overhead_figures import HEADLINE
from stoker.bench.turns import rounds
from stoker.watch import hooks
from stoker.watch.session import Plan, Session

# Fewer than these and there is no interval; they are measured whatever the budget.
_FEWEST_PAIRS = 3
# How much more of the time the size gets that the headline figure is of.
_HEADLINE_WEIGHT = 3


class _ObservedTime:
    """A clock that runs while the loop is observed."""

    def __init__(self) -> None:
        self._running = threading.Event()
        self._halted = threading.Event()

    def resume(self) -> None:
        """The loop is observed from now on."""
        self._halted.clear()
        self._running.set()

    def halt(self) -> None:
        """The loop is bare."""
        self._running.clear()
        self._halted.set()

    def pause(self, seconds: float) -> bool:
        """Wait for so many observed seconds. The run never ends."""
        while seconds > 0:
            self._running.wait()
            began = time.monotonic()
            self._halted.wait(seconds)
            seconds -= time.monotonic() - began
        return False


class Toggle:
    """Measures stretches of one loop, bare and observed."""

    def __init__(self, device: str, folder: Path) -> None:
        self.loop = Loop(device)
        self._clock = _ObservedTime()
        plan = Plan(name="overhead", root=folder, run_id="toggle")
        # The view is drawn as for a run whose stderr is no terminal, and goes nowhere.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        self._session = Session(plan, live=nowhere, pause=self._clock.pause)
        self._session.recorder.start()
        self._bare: Any = iter(self.loop.loader)
        with self._observing():
            self._observed: Any = iter(self.loop.loader)

    def stretch(self, kind: str, *, pad: int, warm: int, steps: int) -> dict[str, Any]:
        """One stretch: what it measured, and what the observer saw of it."""
        scribe = self._session.account.scribe_pid
        plan: dict[str, Any] = {"pad": pad, "warm": warm, "steps": steps}
        plan["beside"] = [] if scribe is None else [scribe]
        if kind == "bare":
            return {"kind": kind, **self.loop.measure(**plan, batches=self._bare)}
        with self._observing():
            return {"kind": kind, **self.loop.measure(**plan, batches=self._observed)}

    def seen_steps(self) -> int:
        """Steps that the observer has seen so far."""
        self._session.recorder.exchange()
        return self._session.account.updates

    @contextmanager
    def _observing(self) -> Iterator[None]:
        observer = self._session.observer
        hooks.install(observer)
        observer.roots.set([self.loop.model])
        observer.roots.fixed = True
        observer.restart()
        self._clock.resume()
        try:
            yield
        finally:
            self._clock.halt()
            hooks.uninstall()

    def calibrate(self, sizes: Sequence[int], stretch: float) -> dict[str, dict[str, int]]:
        """How much padding makes a bare step last so many milliseconds, and how many steps a stretch has."""
        warm = 50
        base = self._step_seconds(pad=0, warm=warm, steps=100)
        unit = 20e-6  # right for a nap; what it gives corrects it for a spin
        plans = {}
        for size in sizes:
            wanted = size / 1e3
            pad = 0
            if wanted > base:
                pad = max(1, round((wanted - base) / unit))
                for _ in range(3):
                    # On a GPU some of the padding hides behind the host, so by the whole step, not by what
                    # was added to it.
                    real = self._step_seconds(pad=pad, warm=6, steps=max(6, int(0.5 / wanted)))
                    pad = max(1, round(pad * (wanted - base / 2) / max(real - base / 2, 1e-4)))
            real = max(base, wanted)
            # Whole cycles of the workers. The warm-up empties the queue that filled during the other's turn.
            steps = max(4, round(stretch / real / WORKERS) * WORKERS)
            plans[f"{size}ms"] = {"pad": pad, "warm": 3 * WORKERS, "steps": steps}
        return plans

    def _step_seconds(self, *, pad: int, warm: int, steps: int) -> float:
        measured = self.loop.measure(pad=pad, warm=warm, steps=steps)
        return float(measured["seconds"] / measured["steps"])


def alternate(toggle: Toggle, name: str, plan: dict[str, int], seconds: float, out: TextIO) -> None:
    """Take turns at one size of step until the time is up, ending on a bare stretch."""
    began = told = time.monotonic()
    pairs = 0
    for turn, kind in enumerate(rounds("bare", ["observed"])):
        line = {"how": "toggle", "size": name, "turn": turn, **toggle.stretch(kind, **plan)}
        out.write(json.dumps(line) + "\n")
        out.flush()
        pairs += kind == "observed"
        now = time.monotonic()
        if now - told > 10:
            say(f"{name} steps, on and off in turns: {pairs} pairs, {now - began:.0f} of {seconds:.0f} s")
            told = now
        each = (now - began) / (turn + 1)
        if kind == "bare" and pairs >= _FEWEST_PAIRS and now - began + 2 * each > seconds:
            return


def main() -> None:
    """Calibrate, then take turns at each size; write a line for each stretch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--sizes", required=True, help="JSON: milliseconds a step")
    parser.add_argument("--seconds", required=True, type=float)
    parser.add_argument("--stretch", required=True, type=float)
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args()
    sizes = json.loads(args.sizes)
    with args.out.open("w") as out, tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        toggle = Toggle(args.device, Path(folder))
        plans = toggle.calibrate(sizes, args.stretch)
        about = {
            "how": "calibrate",
            "plans": plans,
            "modules": toggle.loop.modules,
            "torch": torch.__version__,
        }
        out.write(json.dumps(about) + "\n")
        weights = {name: _HEADLINE_WEIGHT if name == HEADLINE else 1 for name in plans}
        for name, plan in plans.items():
            left = args.seconds - (time.monotonic() - began)
            share = left / sum(weights.values()) * weights.pop(name)
            alternate(toggle, name, plan, share, out)
        out.write(json.dumps({"how": "seen", "steps": toggle.seen_steps()}) + "\n")


if __name__ == "__main__":
    main()
