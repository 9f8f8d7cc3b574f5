"""What a campaign of kills came to: a line to read, and with STOKER_KILLS=FILE one of JSON for the results.

STOKER_KILLS=kills.jsonl pytest -m slow -s tests/feed -k a_hundred_kills
PYTHONPATH=tests python -m feed.kill_campaign kills.jsonl benchmarks
"""

import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from stoker.bench.page import number, origin, table, write_page
from stoker.bench.result import Result, commit_here, versions_here, write_result

COMMAND = "STOKER_KILLS=kills.jsonl pytest -m slow -s tests/feed -k a_hundred_kills"
NAMES = ("packing", "staging", "training")
COUNTS = ("kills", "inside", "resumed", "lost", "doubled", "partial")
PAGE = f"""# Killed while packing, staging and training

`kill -9` at moments drawn over the measured time of the writes (of training, a fifth anywhere in the run).
`inside` fell into a write; after `resumed` the next start went on to the end. Samples (of a staging: files)
that were `lost` or `doubled` over the whole life of a job, and `partial` ones, read or named as whole: all
must be 0. The losses of killed training are bit by bit those of a run left alone, while the tier and the
number of ranks change from start to start.

`{COMMAND}`
"""


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """Kills of one kind of process.

    `inside` of them fell into a write, after `resumed` of them the next start went on; samples (of a
    staging: files) `lost` were not there in the end, `doubled` ones were there twice, `partial` ones were
    read or named as whole and were not.
    """

    name: str
    part: str
    kills: int
    inside: int
    resumed: int
    lost: int
    doubled: int
    partial: int
    writes_s: dict[str, float]

    @classmethod
    def of(cls, seen: Counter[str], *, name: str, part: str, writes_s: dict[str, float]) -> "Campaign":
        """From what was counted."""
        return cls(name=name, part=part, writes_s=writes_s, **{what: seen[what] for what in COUNTS})

    def tell(self) -> None:
        """Print it, and keep it where the environment says."""
        print(
            f"\n{self.name} {self.part}: {self.kills} kills, {self.inside} inside a write, "
            f"{self.resumed} resumed, {self.lost} lost, {self.doubled} doubled, {self.partial} partial"
        )
        if kept := os.environ.get("STOKER_KILLS"):
            with Path(kept).open("a") as file:
                line = asdict(self) | {"commit": commit_here()}
                file.write(json.dumps(line) + "\n")


def collect(lines: list[dict[str, Any]]) -> Result:
    """One result of all campaigns: their sums, and the parts as its runs."""
    figures: dict[str, float] = defaultdict(int)
    for line in lines:
        for what in COUNTS:
            figures[f"{line['name']}_{what}"] += line[what]
    commits = sorted({str(line.pop("commit")) for line in lines})
    machine = {"cores": str(os.cpu_count()), "ram": f"{psutil.virtual_memory().total / 2**30:.1f} GiB"}
    return Result(
        bench="kills",
        hardware="cpu",
        figures=dict(figures),
        runs=[{"command": COMMAND}, *lines],
        versions=versions_here(**machine),
        commit=" ".join(commits),
    )


def make_page(results: Sequence[Result]) -> str:
    """The page of these results."""
    parts = [PAGE]
    for result in results:
        rows = [[name, *(number(result.figures, f"{name}_{what}") for what in COUNTS)] for name in NAMES]
        parts += [
            f"\n## {result.hardware}\n\n",
            table(["killed while", *COUNTS], rows),
            f"\n{origin(result)}\n",
        ]
    return "".join(parts)


if __name__ == "__main__":
    told = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    print(write_result(collect(told), Path(sys.argv[2])))
    print(write_page("kills", make_page, Path(sys.argv[2])))
