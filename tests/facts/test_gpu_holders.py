"""Two real holders on a real GPU, one idle like a notebook and one busy: pids and bytes right within 5%.

Also runs without pytest, where nothing can be installed: `python tests/facts/test_gpu_holders.py` prints the
figures as JSON.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

PATIENCE_S = 120
MIB = 1 << 20

# Reports what torch reserved after its context stands and after the allocation; then computes until stdin
# ends (busy), or does nothing (idle).
HOLDER = """
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


def card_used_bytes() -> int:
    """Return what is in use on the first card, by the card's own count and not by process."""
    from stoker.facts import nvml

    source, reason = nvml.connect()
    assert source is not None, reason
    try:
        used = source.read(0).used_bytes
    finally:
        source.close()
    assert used is not None
    return used


@contextmanager
def hold(size: int, how: str, *arguments: str) -> Iterator[dict[str, int]]:
    """Start a holder; gives its pid and the bytes it truly takes: torch's reserve and measured context."""
    before = card_used_bytes()
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(size), how, *arguments],
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


def check_json() -> tuple[int, dict[str, Any]]:
    """Run `stoker check --json` as a user does."""
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "check", "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def verify() -> dict[str, Any]:
    """Hold the first card by two processes, check, compare; returns the figures."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        connection = folder / "kernel-v3-like-a-notebook.json"
        idle = stack.enter_context(hold(4096 * MIB, "idle", f"--f={connection}"))
        busy = stack.enter_context(hold(2048 * MIB, "busy"))
        code, found = check_json()
    card = found["gpus"][0]
    assert card["holders"] is not None, card["holders_reason"]
    by_pid = {holder["pid"]: holder for holder in card["holders"]}
    figures: dict[str, Any] = {"card": card["name"], "exit_code": code, "gpu": card}
    for name, truth in (("idle", idle), ("busy", busy)):
        holder = by_pid[truth["pid"]]
        error = abs(holder["bytes"] - truth["expected"]) / truth["expected"]
        figures[name] = {**truth, "told": holder["bytes"], "error": error}
        assert error <= 0.05, figures[name]
        assert holder["parent_alive"] is True and holder["ours"] is False
        assert holder["age_s"] > 0 and holder["user"]
    assert by_pid[idle["pid"]]["notebook_state"] == "unknown"
    assert by_pid[busy["pid"]]["notebook_state"] is None
    assert not found["torch"]["in_use"]
    named = {pid for pid in by_pid for one in found["warnings"] if f"pid {pid} " in one["text"]}
    assert {idle["pid"], busy["pid"]} <= named
    assert code == 1
    figures["warnings"] = found["warnings"]
    return figures


if "pytest" in sys.modules:
    import pytest

    @pytest.mark.gpu
    def test_two_holders_are_named_with_their_bytes() -> None:
        """Pids are right, bytes within 5% of torch's reserve and the measured context, both warned of."""
        verify()

    @pytest.mark.gpu
    def test_the_check_itself_holds_nothing() -> None:
        """The check makes no CUDA context: it is not among the holders that it lists."""
        before = card_used_bytes()
        _, found = check_json()
        assert found["process"]["pid"] not in {one["pid"] for one in found["gpus"][0]["holders"]}
        assert card_used_bytes() <= before + 64 * MIB


if __name__ == "__main__":
    print(json.dumps(verify(), indent=1))
