"""`stoker bench overhead`: what observing costs a step, beside TraceML.

One loop (`loops/overhead.py`: 158 modules, AdamW, a DataLoader with 2 workers) at steps of nominally
1, 10 and 100 ms, timed by its own clock over stretches of many steps, never step by step. What a
bare step really took stands in the figures. Measured in two ways:

toggle
    One process, observation switched on and off in many short turns (`toggle.py` says how and why).
    `us_per_step` is this.
process
    Each turn a fresh process: bare, under `stoker run`, under `traceml run`, bare again. This is how a
    tool is really used, the only way that TraceML can be measured by, and the check on the first:
    `us_per_step_by_process` beside `us_per_step_peer_traceml`. Two processes differ for reasons of
    their own, so its intervals are wider.

An overhead is a stretch's time per step less that of the bare stretches before and after it; the
figure is the median of these differences, `_low` and `_high` its 95% bootstrap interval. The headline
`us_per_step` is at 10 ms: there what is paid by the second (the counters) weighs ten times as much on
a step as at 1 ms, and the interval is still narrow, unlike at 100 ms.
`cpu_us_…` are the same differences in CPU time, of the training thread, of the process's other threads,
of the workers, and of the process that writes the record (`beside`): they tell where the cost arises,
also where a spare core hides it. `others_cores_…` is how many cores other processes had meanwhile: a
figure measured on a busy machine is the machine's.

TraceML is used as its documentation shows for a plain loop: `traceml run`, `init(mode="auto")` and
`trace_step` in the loop (`traceml`), and with its manual wrappers instead of the automatic ones
(`traceml_manual`). Its default view is the summary at the end; Stoker's live view is on.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stoker.bench.catalogue import Options
from stoker.bench.children import free_port, run_child, say
from stoker.bench.loops import overhead as loop_script
from stoker.bench.overhead_figures import BARE, OBSERVED, PEERS, figures_of
from stoker.bench.overhead_figures import page as page
from stoker.bench.peers import Peer, find_peer
from stoker.bench.result import Result, commit_here, hardware_word, versions_here
from stoker.bench.turns import rounds
from stoker.errors import BenchFailed, UsageError

SIZES = (1, 10, 100)
# Of the time given, for the toggle; the rest goes to processes, most of whose time is starting up.
_TOGGLE_SHARE = 0.45
# Seconds: short against the drift of a shared machine's speed, and as long as between two of the
# recorder's rounds.
_STRETCH = 0.5
_CHILD_LIMIT = 300.0
# A twentieth of a machine with 2 cores, on which less than a hundredth of a step is to be told apart.
_BUSY = 0.1


def measure(options: Options) -> Iterator[Result]:
    """Measure each device in turn."""
    sizes = sorted(options.sizes) or list(SIZES)
    if any(size < 1 for size in sizes):
        raise UsageError(f"a step of {min(sizes)} ms cannot be made; give --size 1 or more")
    for device in _devices(options.device):
        yield _measure_on(device, sizes, options)


def _devices(asked: str) -> list[str]:
    cuda = torch.cuda.is_available()
    if asked == "all":
        return ["cpu", "cuda"] if cuda else ["cpu"]
    if asked not in ("cpu", "cuda"):
        raise UsageError(f"no device {asked!r} to measure on: --device cpu, cuda or all")
    if asked == "cuda" and not cuda:
        raise UsageError("--device cuda, but torch finds no CUDA device here: use --device cpu")
    return [asked]


def _measure_on(device: str, sizes: Sequence[int], options: Options) -> Result:
    began = time.monotonic()
    runs: list[dict[str, Any]] = []
    peer = _find_traceml(options)
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        bench = _Bench(device=device, folder=Path(folder), peer=peer if isinstance(peer, Peer) else None)
        about, toggled = bench.toggle(sizes, options.seconds * _TOGGLE_SHARE, _STRETCH)
        runs += toggled
        runs += bench.processes(about["plans"], options.seconds - (time.monotonic() - began))
    if isinstance(peer, str):
        say(f"TraceML was left out: {peer}")
        runs.append({"how": "skipped", "kind": "traceml", "why": peer})
    figures = figures_of(runs)
    others = max((value for key, value in figures.items() if key.startswith("others_cores_")), default=0.0)
    if others > _BUSY:
        say(f"others had {others:.2f} cores of this machine meanwhile: measure again when it is quiet")
    versions = {"traceml-ai": peer.version} if isinstance(peer, Peer) else {}
    return Result(
        bench="overhead",
        hardware=hardware_word(device),
        figures={"modules": about["modules"], **figures},
        runs=runs,
        versions=versions_here(**versions),
        commit=options.commit or commit_here(),
    )


def _find_traceml(options: Options) -> Peer | str:
    if not options.peers:
        return "not asked for"
    return find_peer("traceml", "traceml_ai", python=options.peer_python, path=options.peer_path)


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """The child processes of one device's measurement."""

    device: str
    folder: Path
    peer: Peer | None

    def toggle(
        self, sizes: Sequence[int], seconds: float, stretch: float
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """On and off in one process: what was calibrated, and the stretches."""
        out = self.folder / "toggle.jsonl"
        words = ["--device", self.device, "--sizes", json.dumps(list(sizes))]
        words += ["--seconds", str(seconds), "--stretch", str(stretch), "--out", str(out)]
        run_child(
            [sys.executable, "-m", "stoker.bench.toggle", *words],
            what=f"overhead on {self.device}: observation on and off in one process, about {seconds:.0f} s",
            log=self.folder / "toggle.log",
            timeout=seconds + _CHILD_LIMIT,
            told=True,
        )
        about, *stretches, seen = (json.loads(line) for line in out.read_text().splitlines())
        made = sum(run["steps"] for run in stretches if run["kind"] == OBSERVED)
        if seen["steps"] < made:
            raise BenchFailed(f"Stoker saw {seen['steps']} of {made} steps: nothing was measured")
        return about, stretches

    def processes(self, plans: dict[str, dict[str, int]], seconds: float) -> list[dict[str, Any]]:
        """Fresh processes in turns until the time is up, ending on a bare one; at least one round."""
        began = time.monotonic()
        kinds = [OBSERVED, *(PEERS if self.peer is not None else [])]
        runs: list[dict[str, Any]] = []
        spent: dict[str, float] = {}
        for turn, kind in enumerate(rounds(BARE, kinds)):
            begun = time.monotonic()
            runs += [
                {"how": "process", "size": size, "turn": turn, "kind": kind, **measured}
                for size, measured in self._process(kind, turn, plans).items()
            ]
            spent[kind] = time.monotonic() - begun
            left = seconds - (time.monotonic() - began)
            if kind == BARE and turn and sum(spent.values()) > left:
                break
        return runs

    def _process(self, kind: str, turn: int, plans: dict[str, dict[str, int]]) -> dict[str, dict[str, Any]]:
        out = self.folder / f"{turn}.json"
        sizes = [{"name": name, **plan} for name, plan in plans.items()]
        words = ["--device", self.device, "--sizes", json.dumps(sizes), "--out", str(out)]
        env = {"STOKER_RUNS": str(self.folder / "runs")}
        if kind in PEERS:
            command = self._under_traceml(turn, [*words, "--tool", kind])
            env |= dict(self.peer.env) if self.peer is not None else {}
        else:
            prefix = ["-m", "stoker", "run"] if kind == OBSERVED else []
            command = [sys.executable, *prefix, loop_script.__file__, *words]
        name = {BARE: "bare", OBSERVED: "under Stoker"}.get(kind, f"under TraceML ({kind})")
        run_child(
            command,
            what=f"overhead on {self.device}: process {turn + 1}, {name}",
            log=self.folder / f"{turn}.log",
            timeout=_CHILD_LIMIT,
            env=env,
        )
        answer = json.loads(out.read_text())
        measured: dict[str, dict[str, Any]] = answer["sizes"]
        return {size: {**one, "torch": answer["torch"]} for size, one in measured.items()}

    def _under_traceml(self, turn: int, words: Sequence[str]) -> list[str]:
        assert self.peer is not None
        return [
            *(str(self.peer.python), "-m", "traceml_ai.launcher.cli", "run", loop_script.__file__),
            *("--logs-dir", str(self.folder / "traceml"), "--run-name", f"turn{turn}"),
            # Ports of our own: its fixed ones may be somebody's here.
            *("--aggregator-port", str(free_port()), "--master-port", str(free_port())),
            *("--args", *words),
        ]
