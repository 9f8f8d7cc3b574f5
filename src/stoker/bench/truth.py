"""`stoker bench truth`: shares of the step on a GPU, against loops built to have known ones.

Each case of `loops/truth.py` runs as a script under `stoker run`. The figure of a case is the
largest difference, in points of the step, between a phase's share as built and as observed;
`points_max` is the largest over all cases, and 3 is the limit.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from stoker.bench.catalogue import Options
from stoker.bench.children import run_child
from stoker.bench.page import number, origin, table
from stoker.bench.result import Result, commit_here, hardware_word, versions_here
from stoker.errors import UsageError
from stoker.watch import Record

LOOPS = Path(__file__).parent / "loops" / "truth.py"
LIMIT_POINTS = 3.0
_CHILD_S = 120.0
# The loops leave these out of their own clock too; a graph has three eager steps before its replays.
_WARM_UP = 5
_MORE_WARM_UP = {"whole_step_graph": 3}


def cases() -> list[str]:
    """The names of the cases, read from the script without running it."""
    lines = LOOPS.read_text().splitlines()
    return [line.split("def ")[1].split("(")[0] for before, line in pairwise(lines) if before == "@case"]


def measure(options: Options) -> Iterator[Result]:
    """Run every case; one result."""
    if not torch.cuda.is_available():
        raise UsageError(
            "bench truth needs a CUDA device: without one, the tests hold the same cases for the CPU"
        )
    runs = [run_case(name) for name in cases()]
    figures = {f"points_{run['case']}": run["points"] for run in runs}
    figures["points_max"] = max(figures.values())
    figures["points_limit"] = LIMIT_POINTS
    yield Result(
        bench="truth",
        hardware=hardware_word("cuda"),
        figures=figures,
        runs=runs,
        versions=versions_here(),
        commit=options.commit or commit_here(),
    )


def run_case(name: str) -> dict[str, Any]:
    """Run one case under `stoker run`; what was built, what was observed, and the difference."""
    with tempfile.TemporaryDirectory(prefix="stoker-truth-") as folder:
        log = Path(folder) / "log"
        run_child(
            [
                sys.executable,
                "-m",
                "stoker",
                "run",
                "--quiet",
                "--runs",
                folder,
                "--run-id",
                name,
                LOOPS,
                name,
            ],
            what=f"truth: {name}",
            log=log,
            timeout=_CHILD_S,
        )
        told = [line for line in log.read_text().splitlines() if line.startswith("TRUTH ")]
        truth: dict[str, float] = json.loads(told[-1].removeprefix("TRUTH "))
        steps = list(Record.open(Path(folder) / name).ranks[0].steps())
    kept = steps[_WARM_UP + _MORE_WARM_UP.get(name, 0) :]
    total = sum(step.seconds for step in kept)
    observed = {
        phase: sum(_spent(step, phase) for step in kept) / total
        for phase in {"wait", "forward", "backward", "update", *truth}
    }
    points = max(abs(observed[phase] - truth.get(phase, 0.0)) for phase in observed) * 100
    return {"case": name, "steps": len(steps), "truth": truth, "observed": observed, "points": points,
            "on_device": all(step.device is not None for step in kept)}  # fmt: skip


def _spent(step: Any, phase: str) -> float:
    if phase == "graph":
        return float((step.device or {}).get("graph", 0.0))
    return getattr(step, phase) or 0.0


def page(results: Sequence[Result]) -> str:
    """The cases, built against observed."""
    parts = [
        "# Shares on a GPU against known truth\n",
        "Loops built to have known shares of the step, run under `stoker run`. The last column is the "
        f"largest difference over the phases, in points of the step; the limit is {LIMIT_POINTS:.0f}.\n",
        "`stoker bench truth`\n",
    ]
    for result in results:
        rows = []
        for run in result.runs:
            phases = [
                p for p in ("wait", "copy", "forward", "backward", "update", "graph") if p in run["truth"]
            ]
            built, seen = run["truth"], run["observed"]
            said = ", ".join(f"{p} {built[p]:.1%} / {seen[p]:.1%}" for p in phases)
            rows.append([run["case"], said, number(result.figures, f"points_{run['case']}", 2)])
        parts += [
            f"## {result.hardware}\n",
            table(["case", "built / observed", "points"], rows),
            origin(result) + "\n",
        ]
    return "\n".join(parts)
