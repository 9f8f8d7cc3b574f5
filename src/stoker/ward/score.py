"""What the rounds came to: figures, and a table of causes put there against causes named."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import exp, hypot
from statistics import median
from typing import Any

from stoker.bench.page import origin, table
from stoker.bench.result import Result
from stoker.doctor.calibration import errors_of
from stoker.doctor.model import untried
from stoker.ward.case import NO_ALARM, Case
from stoker.ward.cures import Tried, score_of
from stoker.ward.rounds import Seen


def figures_of(seen: Sequence[Seen], cases: Sequence[Case]) -> dict[str, float]:
    """Shares of right answers among the cases that could be run here, and how many those were."""
    by_id = {case.id: case for case in cases}
    run = [one for one in seen if one.right is not None]
    sick = [one for one in run if one.truth not in NO_ALARM]
    well = [one for one in run if one.truth in NO_ALARM]
    alike = [one for one in run if by_id[one.case].lookalikes]
    found = {"cases": float(len(run)), "cases_not_injectable": float(len(seen) - len(run))}
    for name, some in (("top1", sick), ("lookalikes", alike)):
        if some:
            found[name] = sum(bool(one.right) for one in some) / len(some)
            found[f"{name}_cases"] = float(len(some))
    if well:
        found["healthy_alarms"] = float(sum(not one.right for one in well))
        found["healthy_cases"] = float(len(well))
    took = [one.seconds for one in run if one.said is not None and one.seconds is not None]
    if took:
        found["verdict_seconds_max"] = max(took)
    return found


def page(results: Sequence[Result]) -> str:
    """The tables as Markdown."""
    parts = [
        "# How often the doctor is right\n",
        "Scripts with a known cause, put there on purpose, and healthy ones; the doctor is told the command"
        " alone. Made by `stoker ward`; do not edit.\n",
    ]
    for result in results:
        figures = result.figures
        parts += [
            f"## {result.hardware}, {result.date}\n",
            table(["", ""], _summary(figures)),
            "### Put there, and named\n",
            _confusion(result.runs),
            "### Wrong, and not to be run here\n",
            table(["case", "put there", "named"], _others(result.runs)),
            origin(result) + "\n",
        ]
    return "\n".join(parts)


def _summary(figures: Mapping[str, float]) -> list[list[str]]:
    rows = [
        ["the right cause first", _share(figures, "top1")],
        ["look-alikes told apart", _share(figures, "lookalikes")],
        ["healthy runs with an alarm", _of(figures, "healthy_alarms", "healthy_cases")],
        ["cases that cannot be run here", f"{figures.get('cases_not_injectable', 0):.0f}"],
    ]
    if "verdict_seconds_max" in figures:
        rows.append(["the longest verdict", f"{figures['verdict_seconds_max']:.0f} s"])
    return rows


def _share(figures: Mapping[str, float], name: str) -> str:
    if name not in figures:
        return "n/a"
    return f"{figures[name]:.1%} of {figures[f'{name}_cases']:.0f}"


def _of(figures: Mapping[str, float], name: str, among: str) -> str:
    return "n/a" if name not in figures else f"{figures[name]:.0f} of {figures[among]:.0f}"


def _confusion(runs: Sequence[Mapping[str, Any]]) -> str:
    run = [one for one in runs if one["right"] is not None]
    rows = []
    for truth in sorted({one["truth"] for one in run}):
        said = Counter(one["said"] or "no verdict" for one in run if one["truth"] == truth)
        rows.append([truth, ", ".join(f"{name} {count}" for name, count in said.most_common())])
    return table(["put there", "named"], rows)


def _others(runs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    return [
        [one["case"], one["truth"], one["said"] or str(one["reason"])]
        for one in runs
        if one["right"] is not True
    ]


# --- predictions ------------------------------------------------------------------------------------------


def figures_of_cures(tried: Sequence[Tried]) -> dict[str, float]:
    """How far off predictions were, and how many of their intervals held what was measured.

    Each interval is as wide as the other cases' errors make it, so that none is judged by itself.
    """
    found: dict[str, float] = {}
    scored = [one for one in tried if one.error is not None]
    for name, some in (
        ("", scored),
        ("_settings", [one for one in scored if one.way == "setting"]),
        ("_scripts", [one for one in scored if one.way == "script"]),
    ):
        if some:
            found[f"prediction_median_error{name}"] = median(abs(one.error or 0.0) for one in some)
            found[f"coverage{name}"] = sum(_is_covered(one, scored) for one in some) / len(some)
            found[f"predictions{name}"] = float(len(some))
    return found


def _is_covered(tried: Tried, scored: Sequence[Tried]) -> bool:
    others = [score_of(one) for one in scored if one is not tried]
    errors = errors_of(one for one in others if one is not None)
    change = tried.change or ""
    wrong = errors.get(change, untried(change))
    half = hypot(tried.spread or 0.0, wrong)
    mid, measured = tried.predicted or 0.0, tried.measured or 0.0
    return mid * exp(-half) <= measured <= mid * exp(half)


def page_of_cures(results: Sequence[Result]) -> str:
    """Every cure that was tried, as Markdown."""
    parts = [
        "# How good the doctor's predictions are\n",
        "The rate that the doctor predicts for a cure, beside the rate measured with the cure applied. A"
        " setting is put over the script's own; a rewriting is the same script as somebody wrote it without"
        " the cause. Rates are steps a second; `others` are cores that other processes used while the doctor"
        " looked. Made by `stoker ward --cures`; do not edit.\n",
    ]
    for result in results:
        scored = [run for run in result.runs if run["error"] is not None]
        rows = [
            [
                run["case"],
                run["change"] if run["value"] is None else f"{run['change']}={run['value']}",
                str(run["way"]),
                f"{run['before']:.1f}",
                f"{run['predicted']:.1f}",
                f"{run['measured']:.1f}",
                f"{run['error']:+.1%}",
                "n/a" if run["foreign"] is None else f"{run['foreign']:.1f}",
            ]
            for run in sorted(scored, key=lambda one: abs(one["error"]))
        ]
        parts += [
            f"## {result.hardware}, {result.date}\n",
            table(["", "number", "median error", "in the 90% interval"], _by_way(result.figures)),
            table(["case", "change", "by", "as it is", "predicted", "measured", "error", "others"], rows),
            origin(result) + "\n",
        ]
    return "\n".join(parts)


def _by_way(figures: Mapping[str, float]) -> list[list[str]]:
    return [
        [
            words,
            f"{figures[f'predictions{name}']:.0f}",
            f"{figures[f'prediction_median_error{name}']:.1%}",
            f"{figures[f'coverage{name}']:.0%}",
        ]
        for name, words in (("", "all"), ("_settings", "settings"), ("_scripts", "rewritten scripts"))
        if f"predictions{name}" in figures
    ]
