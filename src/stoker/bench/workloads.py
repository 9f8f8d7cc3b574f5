"""`stoker bench workloads`: the four systems of the field notes, the note's way and Stoker's, side by side.

Each system is a part (`--part sar`), measured in a process of its own. In each turn come

synthetic
    Stoker's step, compiled, on one batch that lies on the device, without loader or transforms.
fast
    The same step on Stoker's feed. `_fed` is its rate over synthetic's; both are taken twice in a turn, in
    the order one, other, other, one, after a second of steps that make the card as hot as a training does.
    `_cores` is CPU time of the whole process in these stretches, less that in as many steps on one batch, for
    each second: in both the host is kept at most two steps ahead of the device and sleeps where it waits, so
    that what is left is the feed's. Feeds have no processes of their own here.
fed
    Stoker's feed under the note's own step: the note's batch, precision and layout, not compiled.
note, near
    The note's script (`loops/notes`), which imports no Stoker, in a process that is stopped between its
    turns; steps in whole rounds of its workers. `note` has the delay of the note's storage, which stands in
    the result, with where it comes from; `near` has none.

`_speedup` is fast over note, `_speedup_feed` fed over note (the feed alone), `_speedup_step` fast over fed
(batch or precision); `_near` the same without the delay. Ratios are taken within each turn, of which there
are three or more; a figure is their median. Before the first turn every sample was read once: rates are of
later epochs. `_fill_s` is what that took, opening the feed included, without the steps.

On a CPU the systems are as small as they can be and nothing is compiled: it shows that all of it works.

A part that was measured leaves a file in `--state`, and is not measured again at the same commit; the result
has all that lie there, and of the newest result before it the other parts. `--stop-after` ends all of it
after so many seconds, also amid a part, which is then not measured.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch

from stoker.bench import joined
from stoker.bench.catalogue import Options
from stoker.bench.children import run_child, say
from stoker.bench.result import Origin, Result, commit_here, hardware_word, versions_here
from stoker.bench.workloads_figures import figures_of
from stoker.bench.workloads_page import page as page
from stoker.errors import BenchFailed, UsageError

PARTS = ("sar", "imagenet", "vesuvius", "heimdall")
# A part that takes longer hangs; one that has less left than this is not begun.
_LONGEST_S, _SHORTEST_S = 300.0, 30.0


def measure(options: Options) -> Iterator[Result]:
    """Measure the parts that are asked for and not measured yet."""
    device = _device(options.device)
    parts = _parts(options.parts)
    commit, hardware = options.commit or commit_here(), hardware_word(device)
    end = None if options.stop_after is None else time.monotonic() + options.stop_after
    state = options.state or Path(".stoker/bench/workloads") / (commit or "unknown")[:12]
    state.mkdir(parents=True, exist_ok=True)
    files = {part: state / f"{part}_{hardware}.json" for part in PARTS}
    left = []
    for part in parts:
        try:
            if _read(files[part], commit):
                say(f"{part}: measured already, see {files[part]}")
            else:
                _measure_part(part, files[part], device, options.seconds / len(parts), end, commit)
        except BenchFailed as error:  # the others are measured all the same
            say(f"{part} was left out: {error}")
            left.append(f"{part} ({str(error).splitlines()[0]})")
    runs = [run for file in files.values() for run in _read(file, commit)]
    if runs:
        yield Result(
            bench="workloads",
            hardware=hardware,
            figures=figures_of(runs),
            runs=runs,
            versions=versions_here(),
            commit=commit,
            parts={run["part"]: _origin(commit) for run in runs},
        )
    if left:
        raise BenchFailed(
            f"not measured: {'; '.join(left)}. Run it again with --state {state}, where it goes on"
        )


def join(new: Result, old: Result) -> Result:
    """With the parts that the old one has alone."""
    whole = joined.join(new, old, figures_of)
    return replace(whole, runs=sorted(whole.runs, key=lambda run: PARTS.index(run["part"])))


def _origin(commit: str | None) -> Origin:
    return Origin(date=date.today().isoformat(), commit=commit, versions=versions_here())


def _measure_part(
    part: str, file: Path, device: str, seconds: float, end: float | None, commit: str | None
) -> None:
    limit = _LONGEST_S if end is None else min(_LONGEST_S, end - time.monotonic())
    if limit < _SHORTEST_S:
        raise BenchFailed(f"{part}: {max(0.0, limit):.0f} s are left, too few to begin it")
    module = "stoker.bench.workloads_part"
    run_child(
        [
            sys.executable, "-m", module, part,
            "--device", device, "--seconds", str(seconds),
            "--data", file.parent / "data" / f"{part}_{device}", "--out", file, "--commit", str(commit),
        ],
        what=f"{part}: about {seconds:.0f} s of turns, at most {limit:.0f} s in all",
        log=file.with_suffix(".log"),
        timeout=limit,
        told=True,
    )  # fmt: skip


def _read(file: Path, commit: str | None) -> list[dict[str, Any]]:
    """What was measured at this commit; nothing where that was not."""
    if not file.exists():
        return []
    kept = json.loads(file.read_text())
    runs: list[dict[str, Any]] = kept["runs"]
    return runs if kept["commit"] == str(commit) else []


def _device(asked: str) -> str:
    here = torch.cuda.is_available()
    if asked == "all":
        return "cuda" if here else "cpu"
    if asked not in ("cpu", "cuda"):
        raise UsageError(f"--device {asked}: workloads are measured on cpu or cuda")
    if asked == "cuda" and not here:
        raise UsageError("--device cuda, but torch finds no CUDA device here: use --device cpu")
    return asked


def _parts(asked: Sequence[str]) -> list[str]:
    unknown = [part for part in asked if part not in PARTS]
    if unknown:
        raise UsageError(f"no part {unknown[0]!r} of workloads: --part {', '.join(PARTS)}")
    return list(asked) or list(PARTS)
