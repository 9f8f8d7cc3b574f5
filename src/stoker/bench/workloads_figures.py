"""What the turns of `stoker bench workloads` come to: its figures. Pure."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from stoker.bench.turns import as_figures, interval


@dataclass(kw_only=True)
class Spent:
    """One kind's stretches of one turn, together."""

    samples: float = 0.0
    steps: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.samples / self.seconds


# Of each turn that was whole, by kind.
Turns: TypeAlias = Sequence[Mapping[str, Spent]]
_RATES = {"fast": "", "synthetic": "_limit", "fed": "_feed", "note": "_note", "near": "_note_near"}


def figures_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Every figure of every system that was measured."""
    found: dict[str, float] = {}
    for setup in (run for run in runs if run["how"] == "setup"):
        name = setup["part"]
        turns = turns_of(runs, name)
        found |= {f"{name}_delay_ms": setup["delay_ms"], f"{name}_fill_s": setup["fed"]["fill_s"]}
        for kind, ends in _RATES.items():
            found |= _each(f"{name}_samples_s{ends}", turns, lambda turn, kind=kind: turn[kind].rate)
        found |= _each(f"{name}_step_ms", turns, lambda turn: 1e3 * _step_seconds(turn["synthetic"]))
        found |= _ratios(name, turns)
        found |= _each(f"{name}_cores", turns, _cores)
    return {key: float(f"{value:.5g}") for key, value in found.items()}


def turns_of(runs: Sequence[Mapping[str, Any]], part: str) -> Turns:
    """What each turn of a system came to; without a delay, the note's way is the near one too."""
    turns: dict[int, dict[str, Spent]] = defaultdict(lambda: defaultdict(Spent))
    for run in runs:
        if run["part"] == part and run["how"] == "turn":
            spent = turns[run["turn"]][run["kind"]]
            for name in ("samples", "steps", "seconds", "cpu_seconds"):
                setattr(spent, name, getattr(spent, name) + run[name])
    for turn in turns.values():
        turn.setdefault("near", turn["note"])
    return list(turns.values())


def _ratios(name: str, turns: Turns) -> dict[str, float]:
    """Each within its turn."""
    found: dict[str, float] = {}
    for key, ours, other in (
        ("fed", "fast", "synthetic"),
        ("speedup", "fast", "note"),
        ("speedup_feed", "fed", "note"),
        ("speedup_step", "fast", "fed"),
        ("speedup_near", "fast", "near"),
        ("speedup_feed_near", "fed", "near"),
    ):
        found |= _each(
            f"{name}_{key}", turns, lambda turn, ours=ours, other=other: turn[ours].rate / turn[other].rate
        )
    return found


def _cores(turn: Mapping[str, Spent]) -> float:
    """CPU time of the loop that is fed, less that of as many steps on one batch, for each second."""
    fast, alone = turn["fast"], turn["synthetic"]
    return (fast.cpu_seconds - alone.cpu_seconds * fast.steps / alone.steps) / fast.seconds


def _step_seconds(spent: Spent) -> float:
    return spent.seconds / spent.steps


def _each(key: str, turns: Turns, value: Callable[..., float]) -> dict[str, float]:
    return as_figures(key, interval([value(turn) for turn in turns]))
