"""The page of `stoker bench workloads`, made from its result files. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.bench.page import number, origin, table
from stoker.bench.result import Result

_INTRODUCTION = """\
# Four systems before and after

Each system as its field note describes it, then on Stoker's feed with the note's own step and batch, then
with Stoker's batch and precision as well, beside the same step on one batch that stays on the device
(synthetic). Samples a second are medians over turns in one run, with 95% bootstrap intervals in brackets;
ratios are taken within each turn. Made by `stoker bench workloads`, whose module docstring tells the method;
do not edit.
"""
_RATES = (
    ("the note's way", "_samples_s_note"),
    ("the note's way, no added delay", "_samples_s_note_near"),
    ("Stoker's feed, the note's step and batch", "_samples_s_feed"),
    ("Stoker's feed, batch and precision", "_samples_s"),
    ("synthetic", "_samples_s_limit"),
)
_SHARES = (
    ("of synthetic", "_fed", 4),
    ("cores that feeding takes", "_cores", 2),
    ("times the note's way", "_speedup", 1),
    ("of it by the feed alone", "_speedup_feed", 1),
    ("of it by batch or precision", "_speedup_step", 2),
    ("times the note's way, no added delay", "_speedup_near", 1),
    ("of it by the feed alone", "_speedup_feed_near", 1),
    ("a step on one batch, ms", "_step_ms", 2),
    ("filling what the feed holds, s", "_fill_s", 1),
)


def page(results: Sequence[Result]) -> str:
    """The benchmark's page in Markdown."""
    return "\n".join([_INTRODUCTION, *(_section(result) for result in results)])


def _section(result: Result) -> str:
    figures = result.figures
    setups = [run for run in result.runs if run["how"] == "setup"]
    names = [run["part"] for run in setups]
    parts = [f"## {result.hardware}, {result.date}\n"]
    if result.hardware == "cpu":
        parts.append("Sizes as small as they can be, to see that it works: the figures mean nothing.\n")
    rates = [[label, *(number(figures, name + key, 1) for name in names)] for label, key in _RATES]
    shares = [
        [label, *(number(figures, name + key, digits) for name in names)] for label, key, digits in _SHARES
    ]
    parts += [table(["samples/s", *names], rates), table(["", *names], shares)]
    parts += [_told(run) for run in setups]
    return "\n".join([*parts, origin(result) + "\n"])


def _told(setup: Mapping[str, Any]) -> str:
    delay = "No delay is added" if not setup["delay_ms"] else f"{setup['delay_ms']:g} ms a sample are added"
    return (
        f"**{setup['part']}**: {setup['stands_for']}. {delay} ({setup['delay_from']}). The note's batch is "
        f"{setup['batch']} with {_how(setup['fed'])}, Stoker's {setup['fast_batch']} with "
        f"{_how(setup['fast'])}. Where its samples are held: {setup['fast']['why']}.\n"
    )


def _how(way: Mapping[str, Any]) -> str:
    words = {"tf32": "TF32", "channels_last": "channels last", "cudnn_benchmark": "cuDNN's search"}
    told = [way["precision"], *(text for key, text in words.items() if way[key])]
    return ", ".join([*told, "compiled" if way["compile"] else "not compiled"])
