"""What the rounds came to: figures, and a table of causes put there against causes named."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from stoker.bench.page import origin, table
from stoker.bench.result import Result
from stoker.ward.case import NO_ALARM, Case
from stoker.ward.cures import Tried, score_of
from stoker.ward.results import NOT_RUN, Seen

_COLUMNS = ("case", "change", "by", "seen", "again", "predicted", "interval", "measured", "error", "others")


def figures_of(seen: Sequence[Seen], cases: Sequence[Case]) -> dict[str, float]:
    """Shares of right answers among the cases that could be run here, and how many those were."""
    by_id = {case.id: case for case in cases}
    run = [one for one in seen if one.right is not None]
    sick = [one for one in run if one.truth not in NO_ALARM]
    well = [one for one in run if one.truth in NO_ALARM]
    alike = [one for one in run if by_id[one.case].lookalikes]
    not_run = sum(one.reason == NOT_RUN for one in seen)
    found = {"cases": float(len(run)), "cases_not_injectable": float(len(seen) - len(run) - not_run)}
    if not_run:
        found["cases_not_run"] = float(not_run)
    for name, some in (("top1", sick), ("lookalikes", alike)):
        if some:
            found[name] = sum(bool(one.right) for one in some) / len(some)
            found[f"{name}_cases"] = float(len(some))
    if well:
        found["healthy_alarms"] = float(sum(not one.right for one in well))
        found["healthy_cases"] = float(len(well))
    two = [one for one in run if one.second_named is not None]
    if two:
        found["second_named"] = float(sum(bool(one.second_named) for one in two))
        found["second_cases"] = float(len(two))
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
            "### Wrong, and not run\n",
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
    if "second_named" in figures:
        rows.insert(2, ["a second cause named too", _of(figures, "second_named", "second_cases")])
    if "cases_not_run" in figures:
        rows.append(["cases that were not run", f"{figures['cases_not_run']:.0f}"])
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

    The intervals are those that the doctor told before: none is made wider or narrower by what came of it.
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
            told = [score for one in some if one.low is not None and (score := score_of(one)) is not None]
            if told:
                found[f"coverage{name}"] = sum(score.covered for score in told) / len(told)
            found[f"predictions{name}"] = float(len(some))
    return found


def page_of_cures(results: Sequence[Result]) -> str:
    """Every cure that was tried, as Markdown."""
    parts = [
        "# How good the doctor's predictions are\n",
        "The rate that the doctor predicts for a cure, beside the rate measured with the cure applied. A"
        " setting is put over the script's own; a rewriting is the same script as somebody wrote it without"
        " the cause. Rates are steps a second: `seen` is the script as it is, by the doctor, `again` the same"
        " in turns with the cure; `others` are cores that other processes may have taken while the doctor"
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
                _number(run.get("again")),
                f"{run['predicted']:.1f}",
                "n/a" if run["low"] is None else f"{run['low']:.1f} to {run['high']:.1f}",
                f"{run['measured']:.1f}",
                f"{run['error']:+.1%}",
                _number(run["foreign"]),
            ]
            for run in sorted(scored, key=lambda one: abs(one["error"]))
        ]
        parts += [
            f"## {result.hardware}, {result.date}\n",
            table(["", "number", "median error", "in the 90% interval"], _by_way(result.figures)),
            table([*_COLUMNS], rows),
            *_not_tried(result.runs),
            origin(result) + "\n",
        ]
    return "\n".join(parts)


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1f}"


def _not_tried(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Changes that were predicted and not measured, and why."""
    predicted = [run for run in runs if run["error"] is None and run["change"] is not None]
    if not predicted:
        return []
    rows = [[run["case"], run["change"], str(run["reason"])] for run in predicted]
    return ["Predicted, and not measured:\n", table(["case", "change", "why"], rows)]


def _by_way(figures: Mapping[str, float]) -> list[list[str]]:
    return [
        [
            words,
            f"{figures[f'predictions{name}']:.0f}",
            f"{figures[f'prediction_median_error{name}']:.1%}",
            f"{figures[f'coverage{name}']:.0%}" if f"coverage{name}" in figures else "n/a",
        ]
        for name, words in (("", "all"), ("_settings", "settings"), ("_scripts", "rewritten scripts"))
        if f"predictions{name}" in figures
    ]
