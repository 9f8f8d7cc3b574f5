"""`stoker bench resumes`: trainings killed, stopped and gone on with at random; samples and bits counted.

A chain is one training of `stoker.train` (`resumes_task`), from its first start to its last step. Each start
draws its ranks, its micro-batch, where its samples come from and how many processes read them; a blow drawn
with it ends it: `kill -9` of a rank, of all, of a reader, or a SIGTERM, aimed at a place in the training's
life. Before the first start the set is staged, which is killed too. At its end the chain is judged beside a
training that was left alone (`resumes_judge`).

`--size N` asks for N events in all, 1,000 otherwise. Every chain that was finished leaves a line in `--state`
with all that was done to it; `--stop-after` ends the campaign between two chains, and the next call with the
same state goes on. Lines of another commit do not count.
"""

import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from stoker.bench.catalogue import Options
from stoker.bench.children import say
from stoker.bench.result import Result, commit_here, versions_here
from stoker.bench.resumes_chain import Runner
from stoker.bench.resumes_crew import Launcher
from stoker.bench.resumes_draws import draw_plan
from stoker.bench.resumes_page import figures_of, wrongs_of
from stoker.bench.resumes_page import page as page
from stoker.errors import BenchFailed, UsageError

EVENTS, SEED = 1000, 8
# A chain takes 30 s as a rule on 2 cores.
_CHAIN_S = 60.0


def measure(options: Options) -> Iterator[Result]:
    """As many chains as there is time for, up to so many events; what all of them in the state come to."""
    if not sys.platform.startswith("linux"):
        raise UsageError(f"bench resumes kills processes as Linux has them, and this is {sys.platform}")
    if options.device not in ("all", "cpu"):
        raise UsageError(f"--device {options.device}: bench resumes trains on the CPU; leave it out")
    if options.parts or len(options.sizes) > 1 or min(options.sizes, default=1) < 1:
        raise UsageError("bench resumes has no parts, and one --size: the number of events, 1 or more")
    wanted = options.sizes[0] if options.sizes else EVENTS
    commit = options.commit or commit_here()
    end = None if options.stop_after is None else time.monotonic() + options.stop_after
    state = options.state or Path(".stoker/bench/resumes") / (commit or "unknown")[:12]
    state.mkdir(parents=True, exist_ok=True)
    chains = read_chains(state, commit)
    launcher = Launcher()
    longest = _CHAIN_S
    while _count(chains) < wanted and (end is None or time.monotonic() + longest < end):
        line = _run_chain(len(chains), chains, launcher, state)
        longest = max(longest, line["seconds"])
        chains.append(line)
        with (state / "chains.jsonl").open("a") as file:
            file.write(json.dumps({"commit": commit, **line}) + "\n")
        say(_progress(chains, wanted))
    if not chains:
        raise BenchFailed(f"no chain was finished: give --stop-after {2 * _CHAIN_S:.0f} or more")
    figures = figures_of(chains)
    yield Result(
        bench="resumes",
        hardware="cpu",
        figures=figures,
        runs=[{"seed": SEED}, *chains],
        versions=versions_here(**_machine()),
        commit=commit,
    )
    if wrongs := wrongs_of(figures):
        raise BenchFailed(f"found {'; '.join(wrongs)}. What was done to each training is in {state}")
    if _count(chains) < wanted:
        raise BenchFailed(f"{_count(chains)} of {wanted} events: run it again with --state {state} to go on")


def read_chains(state: Path, commit: str | None) -> list[dict[str, Any]]:
    """The chains that were finished at this commit."""
    path = state / "chains.jsonl"
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line.pop("commit") == commit]


def _run_chain(number: int, chains: list[dict[str, Any]], launcher: Launcher, state: Path) -> dict[str, Any]:
    folder = state / f"chain-{number}"
    shutil.rmtree(folder, ignore_errors=True)  # begun, and broken off
    folder.mkdir()
    plan, chance = draw_plan(SEED, number)
    begun = sum(len(chain["starts"]) for chain in chains)
    line = Runner(plan, chance, launcher, folder.absolute(), begun).run()
    if wrongs := wrongs_of(figures_of([line])):
        say(f"chain {number}: {'; '.join(wrongs)}; its files are kept in {folder}: {line['failed'] or ''}")
    else:
        shutil.rmtree(folder)
    return line


def _count(chains: list[dict[str, Any]]) -> int:
    return sum(len(chain["events"]) for chain in chains)


def _progress(chains: list[dict[str, Any]], wanted: int) -> str:
    figures = figures_of(chains)
    fell = ", ".join(
        f"{name.removeprefix('resumes_fell_')} {count:g}"
        for name, count in figures.items()
        if name.startswith("resumes_fell_") and count
    )
    return (
        f"{_count(chains)} of {wanted} events in {len(chains)} chains, the last in {chains[-1]['seconds']:g} "
        f"s; fell in: {fell}; lost {figures['resumes_lost']:g}, doubled {figures['resumes_doubled']:g}"
    )


def _machine() -> dict[str, str]:
    return {"cores": str(psutil.cpu_count()), "ram": f"{psutil.virtual_memory().total / 2**30:.1f} GiB"}
