"""The report as Markdown that GitHub renders: tables, and what is long folded away."""

import re
from collections.abc import Mapping
from typing import Any

from stoker import __version__
from stoker.doctor.examination import Diagnosis
from stoker.doctor.plan import Plan
from stoker.doctor.report import proposal, story
from stoker.doctor.report.readings import ranks_beside, readings
from stoker.doctor.report.story import Table
from stoker.doctor.verdict import Named
from stoker.watch.words import duration, percent, rate

# What Markdown takes for more than text; a backslash before it makes it text again.
_SPECIAL = re.compile(r"([\\`*_\[\]#|~<>@])")


def text_of(diagnosis: Diagnosis, about: Mapping[str, Any]) -> str:
    """The whole text. `about` is the record's `run.json`."""
    verdict = diagnosis.verdict
    gain, what = story.gain(diagnosis)
    parts = [
        f"## {escape(story.sentence(diagnosis))}",
        f"{code(story.title(diagnosis))}: **{verdict.cause}**, {percent(verdict.share)} of the step, "
        f"{story.certainty(verdict.certainty)}. Now {rate(story.now(diagnosis), 'step')} "
        f"({duration(story.step_seconds(diagnosis))} a step)" + (f"; {gain} {what}." if gain else "."),
        escape(story.caveat(diagnosis) or ""),
        _lines(verdict.why),
    ]
    if verdict.named:
        parts += ["**What to do**", _lines([_cure(cure.text, cure.risk) for cure in verdict.named[0].cures])]
        after = story.after_cures(diagnosis)
        parts += [escape(_sentence(after[0]))] if after[0] is not None else []
        parts += [_also(one, then) for one, then in zip(verdict.named[1:], after[1:], strict=True)]
    parts += ["### Where the step goes", table(story.phases(diagnosis))]
    ranks = ranks_beside(diagnosis.evidence)
    parts += ["### The ranks beside one another", table(ranks)] if ranks.rows else []
    parts += ["### How fast it could be", table(story.ceilings(diagnosis))]
    parts += _plan(diagnosis.plan)
    parts += _folded(
        f"What it is not ({len(verdict.eliminated)} causes ruled out)", story.eliminated(diagnosis)
    )
    parts += _folded(f"What could not be told ({len(verdict.untold)} causes)", story.untold(diagnosis))
    parts += _folded("Not measured, and why", story.missing(diagnosis))
    parts += _folded("How a batch is made", story.making(diagnosis))
    parts += _folded("What the experiments gave", readings(diagnosis.evidence))
    if diagnosis.budget is not None:
        parts += _folded("Memory on the card", proposal.vram(diagnosis.budget))
        parts += _folded("Memory on the host", proposal.ram(diagnosis.budget))
    parts += _folded("Machine", story.facts(diagnosis, about))
    parts += _folded("The script's loader", story.loader(diagnosis))
    parts += _folded("How this was found out", story.method(diagnosis))
    parts += [escape(note) for note in diagnosis.notes]
    parts += [escape(story.how_held(diagnosis)), escape(story.overhead(diagnosis))]
    parts.append(
        f"<sub>Made by Stoker {__version__}; every figure was measured or worked out from such figures, "
        "unless it is called a prediction; n/a was not measured.</sub>"
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def table(value: Table) -> str:
    """Rows as GitHub's tables; one without names for its columns has an empty head."""
    if not value.rows:
        return ""
    columns = value.columns or ("",) * len(value.rows[0])
    lines = [_row(columns), _row(["---"] * len(columns), plain=True)]
    return "\n".join([*lines, *(_row(row) for row in value.rows)])


def escape(text: str) -> str:
    """Text as text, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split())).replace("&", "&amp;")


def code(text: str) -> str:
    """Text as code, whatever is in it."""
    one_line = " ".join(text.split())
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", one_line)), default=0))
    pad = " " if one_line.startswith("`") or one_line.endswith("`") else ""
    return f"{fence}{pad}{one_line}{pad}{fence}"


def _row(cells: tuple[str, ...] | list[str], *, plain: bool = False) -> str:
    return "| " + " | ".join(cell if plain else escape(cell) for cell in cells) + " |"


def _lines(lines: tuple[str, ...] | list[str]) -> str:
    return "\n".join(f"- {escape(line)}" for line in lines)


def _cure(text: str, risk: str) -> str:
    return f"{text} (mind: {risk})" if risk else text


def _also(one: Named, after: str | None) -> str:
    """A further cause, what cures it by their ids, and the rate then."""
    parts = [f"Also **{one.cause}**, {percent(one.share)} of the step: {escape(one.evidence[0])}."]
    if one.cures:
        parts.append(f"Cures: {', '.join(map(code, one.changes))}.")
    if after is not None:
        parts.append(escape(_sentence(after)))
    return " ".join(parts)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _folded(title: str, value: Table) -> list[str]:
    """A table behind its title. GitHub reads Markdown inside only after an empty line."""
    if not value.rows:
        return []
    return [f"<details><summary>{escape(title)}</summary>", table(value), "</details>"]


def _plan(plan: Plan | None) -> list[str]:
    if plan is None:
        return []
    parts = ["### Plan", escape(plan.summary)]
    if plan.options:
        parts += ["Rates and times are predictions, with the interval in which nine of ten should lie.",
                  table(proposal.options(plan))]  # fmt: skip
    parts.append(_lines(plan.notes))
    for option in [one for one in plan.options if one.alike is None]:
        parts.append(f"**{escape(option.name)}**: {escape(proposal.about(option))}")
        for step in option.changes:
            said = " ".join(line for line in (step.consequences, step.mind and f"Mind: {step.mind}") if line)
            kind = story.KIND_MEANINGS[step.kind]
            parts.append(f"- **{escape(step.change)}** ({kind}): {escape(f'{step.text}. {said}'.rstrip())}")
            parts += [f"  {code(line)}" for line in step.apply]
    return parts
