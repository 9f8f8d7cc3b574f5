"""`stoker bench scale`: what `doctor RUN --scale` predicts for 2 and 4 ranks, beside what they then do.

Each case of `loops/scale.py` runs with 1, 2 and 4 ranks of one machine over gloo, under torchrun and `stoker
run`. From the record of the one rank alone, and the speeds that the case's store and link are held to, the
other two are predicted; then they are measured. A ratio is the measured rate over the predicted one.
"""

import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import obstore
from obstore.store import S3Store

from stoker.bench.catalogue import Options
from stoker.bench.children import run_child, say
from stoker.bench.loops.scale import SIDE
from stoker.bench.page import number, origin, table
from stoker.bench.result import Result, commit_here, versions_here
from stoker.doctor.scale import Outlook, foresee
from stoker.doctor.scale_links import links_of
from stoker.doctor.scale_load import load_of, machine_of
from stoker.errors import BenchFailed, UsageError
from stoker.ward.proxy import Proxy
from stoker.ward.s3 import KEY, SECRET, serve
from stoker.ward.surroundings import link
from stoker.ward.torchrun import torchrun
from stoker.watch import Record

LOOP = Path(__file__).parent / "loops" / "scale.py"
RANKS = (1, 2, 4)
_OBJECTS, _BUCKET = 512, "scale"
# The first steps start up, and are none like the others; a rate is of so many at least.
_WARM_UP, _FEWEST = 12, 16
_CHILD_S = 240.0
# Of what nothing here is held to, more than anything can use.
_PLENTY = 1e12


@dataclass(frozen=True, kw_only=True)
class Case:
    """A way to be fed, what its store or link is held to, and the loop's own words."""

    name: str
    text: str
    way: str
    args: tuple[str, ...] = ()
    store: float | None = None
    """Bytes a second, for all who read."""
    delay_s: float = 0.0
    """Later that answers come, each way."""
    link: float | None = None
    """Mbit/s of the network that ranks share."""


CASES = (
    Case(name="store", text="a store of 12 MB/s for all", way="store", store=12e6, args=("--width", "32")),
    Case(
        name="latency", text="a store 20 ms away, 2 workers a rank", way="store", delay_s=0.01,
        args=("--width", "8"),
    ),
    Case(name="cores", text="files, ranks that compute on shared cores", way="disk", args=("--width", "32")),
    Case(
        name="link", text="gradients of 5.7 MB over 1 Gbit/s for all", way="disk", link=1000,
        args=("--width", "32", "--wide", "32768"),
    ),
)  # fmt: skip


def measure(options: Options) -> Iterator[Result]:
    """Run the cases; one result."""
    chosen = [case for case in CASES if not options.parts or case.name in options.parts]
    if unknown := set(options.parts) - {case.name for case in CASES}:
        known = ", ".join(case.name for case in CASES)
        raise UsageError(f"bench scale has no part {', '.join(sorted(unknown))}; there are: {known}")
    seconds = options.seconds / (len(CASES) * len(RANKS))
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="stoker-scale-") as folder:
        for case in chosen:
            runs += run_case(case, Path(folder) / case.name, seconds)
    yield Result(
        bench="scale",
        hardware="cpu",
        figures=figures_of(runs),
        runs=runs,
        versions=versions_here(),
        commit=options.commit or commit_here(),
    )


def run_case(case: Case, folder: Path, seconds: float) -> list[dict[str, Any]]:
    """Its runs, each with what was predicted for it from the first."""
    folder.mkdir()
    runs: list[dict[str, Any]] = []
    with _fed(case, folder) as words:
        for ranks in RANKS:
            record = _run(case, folder, ranks, [*case.args, *words, "--seconds", str(seconds)])
            runs.append({"case": case.name, "ranks": ranks, **measured(record)})
    first = Record.open(folder / "1")
    load = load_of(first, {})
    for run in runs:
        told = links_told(case, run["ranks"])
        seen = foresee(load, links_of(told, machine_of(first)), case.way, run["ranks"])
        run.update(_predicted(seen))
    return runs


def links_told(case: Case, ranks: int) -> dict[str, float]:
    """The links of a case: one machine, on which ranks share one network."""
    plenty = dict.fromkeys(("nic", "gets", "disk", "peer"), _PLENTY)
    told = {**plenty, "per_node": max(RANKS), "store": case.store or _PLENTY}
    if case.link is not None:  # each rank's part of the one that they share
        told["peer"] = case.link * 1e6 / 8 / ranks
    return told


def measured(record: Record) -> dict[str, Any]:
    """Samples a second of all ranks, by the wall clock between the first and the last step that count."""
    total, wall = 0.0, 0.0
    for rank in record.ranks.values():
        steps = list(rank.steps())[_WARM_UP:]
        if len(steps) < _FEWEST:
            raise BenchFailed(
                f"{record.folder}: {len(steps)} steps to measure by, not {_FEWEST}: give --seconds"
            )
        total += sum(step.samples or 0 for step in steps[1:])
        wall = max(wall, steps[-1].t - steps[0].t)
    first = list(record.ranks[0].steps())[_WARM_UP:]
    waits = sum(step.wait or 0.0 for step in first) / sum(step.seconds for step in first)
    return {"measured": total / wall, "steps": len(first), "seconds": wall, "waits": waits}


def _predicted(seen: Outlook) -> dict[str, Any]:
    if seen.rate is None:
        return {"predicted": None, "why": seen.how}
    parts = {name: round(value, 6) for name, value in seen.parts.items()}
    rate = seen.rate
    return {"predicted": rate.mid, "low": rate.low, "high": rate.high, "limit": seen.limit, "parts": parts}


def figures_of(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Measured over predicted of each, and how far the worst of more ranks than were recorded is off."""
    figures: dict[str, float] = {}
    errors, inside = [], []
    for run in runs:
        key = f"{run['case']}_{run['ranks']}"
        figures[f"{key}_measured"] = run["measured"]
        if run["predicted"] is None:
            continue
        figures[f"{key}_predicted"] = run["predicted"]
        figures[f"{key}_ratio"] = run["measured"] / run["predicted"]
        if run["ranks"] > 1:
            errors.append(abs(run["measured"] / run["predicted"] - 1))
            inside.append(run["low"] <= run["measured"] <= run["high"])
    if errors:
        figures["error_max"] = max(errors)
        figures["error_median"] = float(np.median(errors))
        figures["coverage"] = sum(inside) / len(inside)
    return figures


def _run(case: Case, folder: Path, ranks: int, words: Sequence[str]) -> Record:
    command: list[str | Path] = [
        *torchrun(ranks), "-m", "stoker", "run", "--quiet", "--runs", folder, "--run-id", str(ranks),
        LOOP, *words,
    ]  # fmt: skip
    with contextlib.ExitStack() as around:
        if case.link is not None:
            command = [*around.enter_context(link(case.link, folder)).prefix, *command]
        run_child(
            command, what=f"{case.name}: {ranks} ranks", log=folder / f"{ranks}.log", timeout=_CHILD_S,
            env={"GLOO_SOCKET_IFNAME": "lo"},
        )  # fmt: skip
    return Record.open(folder / str(ranks))


@contextlib.contextmanager
def _fed(case: Case, folder: Path) -> Iterator[list[str]]:
    """The samples where the case has them; the words that tell the loop."""
    bodies = np.random.default_rng(0).integers(0, 256, (_OBJECTS, 3 * SIDE * SIDE), np.uint8)
    if case.way == "disk":
        files = folder / "files"
        files.mkdir()
        for at, body in enumerate(bodies):
            (files / f"{at:05}").write_bytes(body.tobytes())
        yield ["--files", str(files)]
        return
    home = folder / "server"
    home.mkdir()
    say(f"{case.name}: a server of its own with {_OBJECTS} objects")
    with serve(home, _BUCKET) as server, Proxy(port=server.port, delay_s=case.delay_s) as proxy:
        near = server.store(_BUCKET)
        for at, body in enumerate(bodies):
            near.put(f"{at:05}", body.tobytes())
        proxy.bytes_per_s = case.store
        far = S3Store(
            _BUCKET, endpoint=f"http://127.0.0.1:{proxy.port}", access_key_id=KEY, secret_access_key=SECRET,
            region="us-east-1", virtual_hosted_style_request=False, client_options={"allow_http": True},
        )  # fmt: skip
        signed = obstore.sign(far, "GET", [f"{at:05}" for at in range(_OBJECTS)], timedelta(hours=2))
        urls = folder / "urls.json"
        urls.write_text(json.dumps(list(signed)))
        yield ["--urls", str(urls)]


def page(results: Sequence[Result]) -> str:
    """Predicted beside measured."""
    parts = [
        "# Predictions for several ranks, tried\n",
        "From the record of one rank and the speeds that a case's store and link are held to, `stoker doctor "
        "RUN --scale` predicts 2 and 4 ranks of the same machine; then they run, over gloo. Samples a second "
        "of all ranks; a ratio is measured over predicted. One rank's own row shows what the model makes of "
        "what it was given.\n",
        "`stoker bench scale`\n",
    ]
    for result in results:
        rows = []
        for run in result.runs:
            key, text = f"{run['case']}_{run['ranks']}", next(c.text for c in CASES if c.name == run["case"])
            between = "n/a" if run["predicted"] is None else f"{run['low']:,.0f} to {run['high']:,.0f}"
            figures = result.figures
            rows.append(
                [
                    f"{run['case']}: {text}", str(run["ranks"]), number(figures, f"{key}_measured"),
                    number(figures, f"{key}_predicted"), between, number(figures, f"{key}_ratio", 2),
                    run.get("limit") or "n/a",
                ]
            )  # fmt: skip
        parts += [
            f"## {result.hardware}\n",
            table(["case", "ranks", "measured", "predicted", "low to high", "ratio", "waits for"], rows),
            _summary(result),
            origin(result) + "\n",
        ]
    return "\n".join(parts)


def _summary(result: Result) -> str:
    figures = result.figures
    if "error_max" not in figures:
        return "No prediction for more ranks than were recorded.\n"
    return (
        f"Of 2 and 4 ranks: off by {figures['error_median']:.0%} in the median and by "
        f"{figures['error_max']:.0%} at most; {figures['coverage']:.0%} within their intervals.\n"
    )
