"""The card's memory at sizes that the doctor did not try: `python -m stoker.ward.untried [--out DIR]`.

A 3D U-Net and a transformer, both with AdamW, are diagnosed at a batch of 16; then each is run by itself, in
a process for each, at sizes that were not tried. What was predicted, with its range, stands beside what
torch's allocator had reserved there at the most; the context is the same in both, and was measured by the
doctor.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from stoker.bench.page import origin, table, write_page
from stoker.bench.result import Result, commit_here, hardware_word, versions_here, write_result
from stoker.ward.surroundings import SCRIPTS

BENCH = "vram"
LIMIT = 0.03
_OWN = 16
# Of its own size; between those that the doctor runs in processes of their own, and beyond them.
_TIMES = (0.75, 1.5, 3, 6)
_STEPS = 8
# Seconds for a diagnosis, and for all the processes that it is compared with: they run at once.
_BUDGET, _PATIENCE = 55, 90
# Of the budget's JSON, kept as it is.
_TOLD = (
    "ran",
    "probed",
    "unlike",
    "not_measured",
    "fixed",
    "per_sample",
    "error",
    "context",
    "why",
    "by_batch",
)
_VOLUMES = ("--shape", "32", "64", "64", "--width", "32", "--adamw", "--workers", "2", "--ahead", "2")
_WORDS = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        made = torch.Generator().manual_seed(index)
        words = torch.randint(0, 8192, (257,), generator=made)
        return words[:-1], words[1:]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(8192, 768)
        layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.out = nn.Linear(768, 8192)

    def forward(self, words):
        return self.out(self.layers(self.words(words)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--patches", type=int, default=40_000)
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(Sentences(args.patches), args.batch, shuffle=True, num_workers=2, pin_memory=True)
    for epoch in range(args.epochs):
        for words, following in loader:
            words, following = words.cuda(non_blocking=True), following.cuda(non_blocking=True)
            loss = nn.functional.cross_entropy(model(words).flatten(0, 1), following.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
# Run as it stands; then what it had reserved and allocated at the most.
_PROBE = """
import json, runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
import torch
print(json.dumps([torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()]))
"""


@dataclass(frozen=True, kw_only=True)
class Untried:
    """A size: bytes that were predicted for it, from and to, and bytes that it took."""

    model: str
    batch: int
    predicted: int
    low: int
    high: int
    peak: int

    @property
    def error(self) -> float:
        """By how much it was off, as a share of the real peak."""
        return abs(self.predicted - self.peak) / self.peak

    @property
    def is_covered(self) -> bool:
        """Whether the range holds the real peak."""
        return self.low <= self.peak <= self.high

    def to_json(self) -> dict[str, Any]:
        """All of it, by name."""
        return {**asdict(self), "error": self.error, "covered": self.is_covered}


def compare(model: str, vram: Mapping[str, Any], reserved: Mapping[int, int]) -> tuple[Untried, ...]:
    """What a budget says of sizes that it did not run, beside what was reserved there. Pure."""
    told = {one["samples"]: one for one in vram["by_batch"]}
    if not told:
        raise ValueError(f"the doctor foretold nothing of the card's memory ({vram['why']}): see its JSON")
    return tuple(
        Untried(
            model=model,
            batch=batch,
            predicted=told[batch]["mid"],
            low=told[batch]["low"],
            high=told[batch]["high"],
            peak=peak + (vram["context"] or 0),
        )
        for batch, peak in reserved.items()
        if batch in told and batch not in vram["ran"]
    )


def figures_of(found: Sequence[Untried]) -> dict[str, float]:
    """The figures of a result. Pure."""
    return {
        "vram_error_max": max(one.error for one in found),
        "vram_error_median": median(one.error for one in found),
        "vram_error_limit": LIMIT,
        "vram_within_limit": sum(one.error <= LIMIT for one in found) / len(found),
        "vram_coverage": sum(one.is_covered for one in found) / len(found),
        "vram_sizes": len(found),
    }


def measure(folder: Path, commit: str | None = None) -> Result:
    """Diagnose, run the other sizes, and put both together; a card is needed."""
    (folder / "sentences.py").write_text(_WORDS)
    scripts = {
        "3D U-Net": (str(SCRIPTS / "volume_segments.py"), *_VOLUMES),
        "transformer": (str(folder / "sentences.py"),),
    }
    budgets = {name: _diagnose(folder, words) for name, words in scripts.items()}
    runs: list[dict[str, Any]] = []
    found: list[Untried] = []
    with ExitStack() as together:  # where one fails, the others are ended
        started = [
            (name, batch, together.enter_context(_run(folder, _probe(words, batch))))
            for name, words in scripts.items()
            for batch in (round(_OWN * times) for times in _TIMES)
        ]
        for name, batch, process in started:
            reserved, allocated = json.loads(_output(process).splitlines()[-1])
            rows = compare(name, budgets[name], {batch: reserved})
            found += rows
            runs += [{**row.to_json(), "reserved": reserved, "allocated": allocated} for row in rows]
    for name, vram in budgets.items():
        runs.append({"model": name, **{key: vram[key] for key in _TOLD}})
    return Result(
        bench=BENCH,
        hardware=hardware_word("cuda"),
        figures=figures_of(found),
        runs=runs,
        versions=versions_here(),
        commit=commit or commit_here(),
    )


def page(results: Sequence[Result]) -> str:
    """Predictions beside real peaks."""
    parts = [
        "# The card's memory at sizes that the doctor did not try\n",
        "Peak bytes of a process of its own, its context included, as predicted (with the range) by "
        f"`stoker doctor --fits vram=…` at a batch of {_OWN}, and as they were. The goal is {LIMIT:.0%}.\n",
        "`python -m stoker.ward.untried --out benchmarks`\n",
    ]
    for result in results:
        rows = [
            [f"{run['model']}, {run['batch']}", _gb(run["predicted"]),
             f"{_gb(run['low'])} to {_gb(run['high'])}", _gb(run["peak"]), f"{run['error']:.1%}",
             "yes" if run["covered"] else "no"]
            for run in result.runs if "batch" in run
        ]  # fmt: skip
        ran = ", ".join(f"{run['model']} {run['ran']}" for run in result.runs if "ran" in run)
        head = ["model, batch", "predicted GB", "range", "real GB", "error", "in the range"]
        parts += [f"## {result.hardware}\n", table(head, rows)]
        parts += [f"Sizes that the doctor had run: {ran}.\n"]
        if probed := [f"{run['model']} {run['probed']}" for run in result.runs if run.get("probed")]:
            parts += [f"Sizes at which it had run convolutions alone: {', '.join(probed)}.\n"]
        parts += [origin(result) + "\n"]
    return "\n".join(parts)


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f}"


def _diagnose(folder: Path, words: Sequence[str]) -> Any:
    """The card's part of the budget, with sizes run in processes of their own."""
    asked = ("doctor", "--json", "--no-report", "--budget", str(_BUDGET), "--fits", "vram=1000GB")
    with _run(folder, ["-m", "stoker", *asked, *words, "--batch", str(_OWN)]) as process:
        told = json.loads(_output(process))
        return {**told["budget"]["vram"], "not_measured": told["not_measured"]}


def _probe(words: Sequence[str], batch: int) -> list[str]:
    few = ("--batch", str(batch), "--patches", str(batch * _STEPS), "--epochs", "1")
    return ["-c", _PROBE, *words, *few]


@contextmanager
def _run(folder: Path, words: Sequence[str]) -> "Iterator[subprocess.Popen[str]]":
    """A Python that does not outlive the block."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, *words], cwd=folder, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def _output(process: "subprocess.Popen[str]") -> str:
    """What it printed; all the others have ended or go on meanwhile."""
    said, errors = process.communicate(timeout=_BUDGET + _PATIENCE)
    if process.returncode:
        raise RuntimeError(f"{process.args!r} ended with {process.returncode}: {errors[-2000:]}")
    return said.strip()


def main(words: list[str]) -> int:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(prog="python -m stoker.ward.untried", description=__doc__)
    parser.add_argument("--out", type=Path, help="a folder for the result and its page")
    parser.add_argument("--commit", help="what was measured, where there is no git")
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="untried-") as folder:
        result = measure(Path(folder), asked.commit)
    if asked.out is not None:
        write_result(result, asked.out)
        write_page(BENCH, page, asked.out)
    sys.stdout.write(page([result]))
    for run in result.runs:
        why = [f"{name}: {words}" for name, words in run.get("not_measured", {}).items()]
        sys.stdout.writelines(f"{run['model']}: {line}\n" for line in (*run.get("unlike", ()), *why))
    sys.stdout.write(json.dumps(result.figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
