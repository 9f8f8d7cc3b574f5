"""The child that switches observation on and off in one process: `python -m stoker.bench.toggle`.

Two processes that run the same code differ by a percent or two for as long as they live, by where
their memory happened to lie; that is more than what is to be measured. One process compared with
itself does not have that error. Each stretch starts workers of its own, so those of an observed
stretch measure their batches and those of a bare one do not.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import torch

from stoker.bench.children import say
from stoker.bench.loops.overhead import WORKERS, Loop
from stoker.bench.turns import rounds
from stoker.facts.sample import Sampler
from stoker.watch.live import LiveView
from stoker.watch.session import Plan, Session

# Fewer than these and there is no interval; they are measured whatever the budget.
_FEWEST_PAIRS = 3


class _Stretch(Session):
    """A session for one stretch, with what a run does once left out of every stretch.

    A sampler's first reading walks every mapping of the processes (PSS and USS) and the next thirty
    seconds' readings do not; the facts of the machine (some 40 ms) are taken once a run. Charged to a
    stretch of a second, either would look like hundreds of microseconds a step.
    """

    def _take_facts(self) -> None:
        self.facts = {"unavailable": "taken once a run, and this is a stretch of one"}


class Toggle:
    """Measures stretches of one loop, bare and observed."""

    def __init__(self, device: str, folder: Path) -> None:
        self.loop = Loop(device)
        self._folder = folder
        self._sampler = Sampler()
        # The view is drawn as for a run whose stderr is no terminal, and goes nowhere.
        self._nowhere = os.open(os.devnull, os.O_WRONLY)
        self._stretches = 0

    def stretch(self, kind: str, *, pad: int, warm: int, steps: int) -> dict[str, Any]:
        """One stretch: what it measured, and what the observer saw of it."""
        if kind == "bare":
            return {"kind": kind, **self.loop.measure(pad=pad, warm=warm, steps=steps)}
        self._stretches += 1
        plan = Plan(name="overhead", root=self._folder, run_id=f"stretch{self._stretches}")
        session = _Stretch(plan, LiveView(self._nowhere), self._sampler)
        session.start()
        try:
            measured = self.loop.measure(pad=pad, warm=warm, steps=steps)
        finally:
            session.finish("done")
        return {"kind": kind, **measured, "seen_steps": session.observer.updates, "told": session.overhead()}

    def calibrate(self, sizes: Sequence[int], stretch: float) -> dict[str, dict[str, int]]:
        """How much padding makes a bare step last so many milliseconds, and how many steps a stretch has."""
        warm = 50
        base = self._step_seconds(pad=0, warm=warm, steps=100)
        unit = (self._step_seconds(pad=100, warm=10, steps=20) - base) / 100
        plans = {}
        for size in sizes:
            wanted = size / 1e3
            pad = max(0, round((wanted - base) / unit)) if unit > 0 else 0
            real = base
            if (
                pad
            ):  # padding among real steps costs another sum than padding alone: once more by what it gave
                real = self._step_seconds(pad=pad, warm=4, steps=max(4, int(0.5 / wanted)))
                pad = max(1, round(pad * (wanted - base) / max(real - base, 1e-5)))
                real = wanted
            # Whole cycles of the workers. A stretch of whole seconds holds as many rounds of the
            # recorder as a run of any length does; the ones before it belong to the warm-up.
            steps = max(4, round(stretch / real / WORKERS) * WORKERS)
            plans[f"{size}ms"] = {"pad": pad, "warm": max(4, steps // 2), "steps": steps}
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
        for done, (name, plan) in enumerate(plans.items()):
            left = args.seconds - (time.monotonic() - began)
            alternate(toggle, name, plan, left / (len(plans) - done), out)


if __name__ == "__main__":
    main()
