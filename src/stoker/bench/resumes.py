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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from stoker.bench.catalogue import Options
from stoker.bench.children import say
from stoker.bench.result import Result, commit_here, hardware_word, versions_here
from stoker.bench.resumes_chain import Runner
from stoker.bench.resumes_crew import Launcher
from stoker.bench.resumes_draws import Room, draw_plan
from stoker.bench.resumes_page import figures_of, wrongs_of
from stoker.bench.resumes_page import page as page
from stoker.errors import BenchFailed, UsageError

EVENTS, SEED = 1000, 8
# A chain takes 30 s as a rule on 2 cores.
_CHAIN_S = 60.0


def measure(options: Options) -> Iterator[Result]:
    """A campaign for each device: as many chains as there is time for, and what all in the state come to."""
    if not sys.platform.startswith("linux"):
        raise UsageError(f"bench resumes kills processes as Linux has them, and this is {sys.platform}")
    if options.parts or len(options.sizes) > 1 or min(options.sizes, default=1) < 1:
        raise UsageError("bench resumes has no parts, and one --size: the number of events, 1 or more")
    commit = options.commit or commit_here()
    campaign = Campaign(
        wanted=options.sizes[0] if options.sizes else EVENTS,
        commit=commit,
        state=options.state or Path(".stoker/bench/resumes") / (commit or "unknown")[:12],
        end=None if options.stop_after is None else time.monotonic() + options.stop_after,
    )
    for device in _devices(options.device):
        result = campaign.run(device)
        yield result
        campaign.check(result)


def _devices(asked: str) -> list[str]:
    here = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    if asked not in ("all", *here):
        raise UsageError(f"--device {asked}: here are {', '.join(here)}, or all of them")
    return here if asked == "all" else [asked]


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """Chains up to so many events, kept in a folder; `end` is when no more is begun."""

    wanted: int
    commit: str | None
    state: Path
    end: float | None

    def run(self, device: str) -> Result:
        """Go on with it; what it has come to by now."""
        self.state.mkdir(parents=True, exist_ok=True)
        chains, launcher, longest = self.read(device), Launcher(), _CHAIN_S
        while count(chains) < self.wanted and (self.end is None or time.monotonic() + longest < self.end):
            line = self._run_chain(device, chains, launcher)
            longest = max(longest, line["seconds"])
            chains.append(line)
            with self._file(device).open("a") as file:
                file.write(json.dumps({"commit": self.commit, **line}) + "\n")
            say(_progress(chains, self.wanted))
        if not chains:
            raise BenchFailed(f"no chain was finished: give --stop-after {2 * _CHAIN_S:.0f} or more")
        return Result(
            bench="resumes",
            hardware=hardware_word(device),
            figures=figures_of(chains),
            runs=[{"seed": SEED}, *chains],
            versions=versions_here(**_machine()),
            commit=self.commit,
        )

    def check(self, result: Result) -> None:
        """BenchFailed where something was found, or some of it is still to be done."""
        if wrongs := wrongs_of(result.figures):
            raise BenchFailed(f"found {'; '.join(wrongs)}. What was done to each training is in {self.state}")
        if (there := result.figures["resumes_events"]) < self.wanted:
            raise BenchFailed(
                f"{there:g} of {self.wanted} events: run it again with --state {self.state} to go on"
            )

    def read(self, device: str) -> list[dict[str, Any]]:
        """The chains that were finished at this commit."""
        path = self._file(device)
        if not path.exists():
            return []
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [line for line in lines if line.pop("commit") == self.commit]

    def _file(self, device: str) -> Path:
        return self.state / f"chains-{device}.jsonl"

    def _run_chain(self, device: str, chains: list[dict[str, Any]], launcher: Launcher) -> dict[str, Any]:
        room = Room(ranks=torch.cuda.device_count(), cards=True) if device == "cuda" else Room()
        folder = self.state / f"chain-{device}-{len(chains)}"
        shutil.rmtree(folder, ignore_errors=True)  # begun, and broken off
        folder.mkdir()
        plan, chance = draw_plan(SEED, len(chains), room)
        begun = sum(len(chain["starts"]) for chain in chains)
        line = Runner(plan, chance, room, launcher, folder.absolute(), begun).run()
        if wrongs := wrongs_of(figures_of([line])):
            say(f"{folder.name}: {'; '.join(wrongs)}; its files are kept. {line['failed'] or ''}")
        else:
            shutil.rmtree(folder)
        return line


def count(chains: Sequence[Mapping[str, Any]]) -> int:
    """The events of these chains."""
    return sum(len(chain["events"]) for chain in chains)


def _progress(chains: Sequence[Mapping[str, Any]], wanted: int) -> str:
    figures = figures_of(chains)
    fell = ", ".join(
        f"{name.removeprefix('resumes_fell_')} {number:g}"
        for name, number in figures.items()
        if name.startswith("resumes_fell_") and number
    )
    return (
        f"{count(chains)} of {wanted} events, {len(chains)} chains, the last in {chains[-1]['seconds']:g} s; "
        f"fell in {fell}; lost {figures['resumes_lost']:g}, doubled {figures['resumes_doubled']:g}"
    )


def _machine() -> dict[str, str]:
    return {"cores": str(psutil.cpu_count()), "ram": f"{psutil.virtual_memory().total / 2**30:.1f} GiB"}
