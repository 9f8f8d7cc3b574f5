"""What the rounds came to: figures, and a table of causes put there against causes named."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.bench.page import origin, table
from stoker.bench.result import Result
from stoker.ward.case import NO_ALARM, Case
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
