"""`stoker bench holders`: who holds a GPU, and how much, against two holders that are known.

One holder sits idle behind a kernel's connection file, as a notebook does; the other computes. What
each truly takes is what its torch reserved and what its context took, by the card's own count before
and after. The figures are the shares by which `stoker check --json` is off; 0.05 is the limit.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from stoker.bench.catalogue import Options
from stoker.bench.page import number, origin, table
from stoker.bench.result import Result, commit_here, hardware_word, versions_here
from stoker.errors import BenchFailed, UsageError
from stoker.facts import nvml

LIMIT = 0.05
_PATIENCE_S = 120
_MIB = 1 << 20

# Reports what torch reserved after its context stands and after the allocation; then computes until stdin
# ends (busy), or does nothing (idle).
_HOLDER = """
import json, sys, threading
import torch
size, busy = int(sys.argv[1]), sys.argv[2] == "busy"
def say(**values):
    print(json.dumps(values), flush=True)
small = torch.zeros(1, device="cuda"); torch.cuda.synchronize()
# The first product loads cuBLAS, whose kernels and workspace belong to the context.
grid = torch.ones(256, 256, device="cuda"); (grid @ grid).sum().item()
say(reserved=torch.cuda.memory_reserved())
sys.stdin.readline()
held = torch.zeros(size, dtype=torch.uint8, device="cuda"); torch.cuda.synchronize()
say(reserved=torch.cuda.memory_reserved())
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
while not ended.is_set():
    if busy:
        grid.copy_(grid @ grid); grid.clamp_(-1, 1); torch.cuda.synchronize()
    else:
        ended.wait()
"""


def measure(options: Options) -> Iterator[Result]:
    """Hold the first card twice, check, compare; one result."""
    if not torch.cuda.is_available():
        raise UsageError("bench holders needs a CUDA device: there is nobody to hold one here")
    runs, _ = look_at_two_holders()
    figures = {f"error_{run['holder']}": run["error"] for run in runs}
    yield Result(
        bench="holders",
        hardware=hardware_word("cuda"),
        figures={**figures, "error_max": max(figures.values()), "error_limit": LIMIT},
        runs=runs,
        versions=versions_here(),
        commit=options.commit or commit_here(),
    )


def look_at_two_holders() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What each of two holders takes and is told to take; and all that the check told."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        connection = folder / "kernel-v3-like-a-notebook.json"
        truths = {
            "idle": stack.enter_context(_hold(4096 * _MIB, "idle", f"--f={connection}")),
            "busy": stack.enter_context(_hold(2048 * _MIB, "busy")),
        }
        found = check_json()
    card = found["gpus"][0]
    if card["holders"] is None:
        raise BenchFailed(f"holders cannot be told here: {card['holders_reason']}")
    by_pid = {holder["pid"]: holder for holder in card["holders"]}
    runs = []
    for name, truth in truths.items():
        told = by_pid.get(truth["pid"])
        if told is None:
            raise BenchFailed(
                f"pid {truth['pid']} holds {truth['expected']} bytes and was not listed: {by_pid}"
            )
        error = abs(told["bytes"] - truth["expected"]) / truth["expected"]
        state = told["notebook_state"]
        runs.append({"holder": name, **truth, "told": told["bytes"], "notebook_state": state, "error": error})
    return runs, found


def check_json() -> dict[str, Any]:
    """Run `stoker check --json` as a user does."""
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "check", "--json"],
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise BenchFailed(f"stoker check ended with code {done.returncode}: {done.stderr[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def card_used_bytes() -> int:
    """What is in use on the first card, by the card's own count and not by process."""
    source, reason = nvml.connect()
    if source is None:
        raise BenchFailed(f"the card cannot be asked: {reason}")
    try:
        used = source.read(0).used_bytes
    finally:
        source.close()
    if used is None:
        raise BenchFailed("the card does not tell how much of it is in use")
    return used


@contextmanager
def _hold(size: int, how: str, *arguments: str) -> Iterator[dict[str, int]]:
    """Start a holder; gives its pid and the bytes it truly takes: torch's reserve and measured context."""
    before = card_used_bytes()
    child = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(size), how, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "CUDA_MODULE_LOADING": "LAZY"},
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        first = json.loads(child.stdout.readline())["reserved"]
        context = card_used_bytes() - before - first
        child.stdin.write("\n")
        child.stdin.flush()
        reserved = json.loads(child.stdout.readline())["reserved"]
        yield {"pid": child.pid, "expected": reserved + context, "context": context, "reserved": reserved}
    finally:
        child.kill()
        child.communicate()


def page(results: Sequence[Result]) -> str:
    """The holders, true against told."""
    parts = [
        "# Who holds a GPU\n",
        "Two holders of known size, one idle behind a kernel's connection file, one busy: what each takes "
        "(torch's reserve and its context) against what `stoker check --json` tells. "
        f"The limit is {LIMIT:.0%}.\n",
        "`stoker bench holders`\n",
    ]
    for result in results:
        rows = [
            [run["holder"], f"{run['expected']:,}", f"{run['told']:,}",
             number(result.figures, f"error_{run['holder']}", 4)]
            for run in result.runs
        ]  # fmt: skip
        parts += [f"## {result.hardware}\n", table(["holder", "bytes", "told", "error"], rows)]
        parts += [origin(result) + "\n"]
    return "\n".join(parts)
