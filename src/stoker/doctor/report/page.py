"""The report as one HTML file: no script, no font, no picture from elsewhere, so that it works offline.

The same content without the frame of a document is what a notebook shows.
"""

import time
from collections.abc import Mapping
from typing import Any

from stoker import __version__
from stoker.doctor.examination import Diagnosis
from stoker.doctor.finding import Cure
from stoker.doctor.plan import Option, Step
from stoker.doctor.report import frame, pictures, proposal, story
from stoker.doctor.report.markup import Child, Html, tag
from stoker.doctor.report.readings import ranks_beside, readings
from stoker.doctor.report.series import Series
from stoker.doctor.verdict import Named
from stoker.watch.words import duration, percent, rate


def document(diagnosis: Diagnosis, about: Mapping[str, Any], series: Series | None) -> str:
    """A whole page. `about` is the record's `run.json`, `series` its steps over time."""
    title = f"{diagnosis.verdict.cause}: {story.title(diagnosis)}"
    return frame.document(title, fragment(diagnosis, about, series))


def fragment(diagnosis: Diagnosis, about: Mapping[str, Any], series: Series | None) -> Html:
    """The page's content with its style, for a page or a notebook's cell."""
    return frame.styled(
        _header(diagnosis, about),
        _verdict(diagnosis),
        _where(diagnosis, series),
        _ceilings(diagnosis),
        _plan(diagnosis),
        _evidence(diagnosis),
        _eliminated(diagnosis),
        _untold(diagnosis),
        _budget(diagnosis),
        _facts(diagnosis, about),
        _method(diagnosis),
        _footer(),
    )


def _header(diagnosis: Diagnosis, about: Mapping[str, Any]) -> Html:
    started = about.get("started")
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(started)) if started else "at an unknown time"
    return tag("header", tag("p", "Stoker's diagnosis of ", tag("code", story.title(diagnosis)), f", {when}"))


def _verdict(diagnosis: Diagnosis) -> Html:
    verdict = diagnosis.verdict
    tiles: list[tuple[str | None, str]] = [
        (rate(story.now(diagnosis), "step"), f"now; a step takes {duration(story.step_seconds(diagnosis))}"),
        (percent(verdict.share) if verdict.named else None, f"of the step is lost to {verdict.cause}"),
        story.gain(diagnosis),
        (story.certainty(verdict.certainty), "how sure the doctor is, by its own rule"),
    ]
    cures = verdict.named[0].cures if verdict.named else ()
    return tag(
        "section",
        tag("h1", story.sentence(diagnosis)),
        tag("p", tag("span", verdict.cause, class_="tag"), class_="soft"),
        frame.tiles(tiles),
        tag("p", tag("b", doubt)) if (doubt := story.caveat(diagnosis)) else None,
        tag("div", tag("b", "What to do"), tag("ul", [_cure(cure) for cure in cures]), class_="do")
        if cures
        else None,
        [
            tag("p", "Also ", tag("b", one.cause), f", {percent(one.share)} of the step: {one.evidence[0]}",
                f"; {after}." if after is not None else ".")
            for one, after in list(zip(verdict.named, story.after_cures(diagnosis), strict=True))[1:]
        ],
        tag("p", "A step is one update of the model's weights: get a batch, compute, update.", class_="soft"),
    )  # fmt: skip


def _cure(cure: Cure) -> Html:
    return tag(
        "li",
        _upper(cure.text.replace("`", "")),
        f". Mind: {cure.risk}" if cure.risk else "",
        ". ",
        tag("span", story.KIND_MEANINGS[cure.kind], class_="tag"),
    )


def _where(diagnosis: Diagnosis, series: Series | None) -> Html:
    rows = []
    for name, spent, share, what in story.phases(diagnosis).rows:
        key = tag("span", class_=f"key phase-{name}")
        rows.append(
            tag("tr", tag("th", key, name), tag("td", spent, class_="figure inline"),
                tag("td", share, class_="figure inline"), tag("td", what))
        )  # fmt: skip
    shown: Child = tag("p", "The record holds too few steps for a picture over time.", class_="soft")
    if series is not None:
        told = f"How long a step took; a column is the mean of those that ended in {duration(series.width)}."
        shown = (
            pictures.over_time(series, diagnosis.method),
            tag("p", told, " ", _parts_told(diagnosis), class_="soft"),
        )
    return tag(
        "section",
        tag("h2", "Where the step goes"),
        tag("div", pictures.total(diagnosis.evidence.shares), class_="total"),
        tag("table", tag("tbody", rows), class_="stack phases"),
        tag("h3", "Over time"),
        shown,
    )


def _parts_told(diagnosis: Diagnosis) -> str:
    parts = [part.name for part in diagnosis.method if part.began is not None]
    if not parts:
        return ""
    told = "Above it: which part of the diagnosis the loop was in. The shares are of “observe” alone"
    return told + (", and in “replay” batches cost nothing." if "replay" in parts else ".")


def _ceilings(diagnosis: Diagnosis) -> Html:
    return tag(
        "section",
        tag("h2", "How fast it could be"),
        tag("p", "Each bar is the rate if one part had to do all the work alone, as measured. "
            "The part whose bar is nearest to the actual rate is what the loop waits for.", class_="soft"),
        pictures.compare(story.bars(diagnosis)),
    )  # fmt: skip


def _evidence(diagnosis: Diagnosis) -> Html:
    verdict = diagnosis.verdict
    # What to do about the first stands above.
    told: Child = [
        _named(one, after, with_cures=at > 0)
        for at, (one, after) in enumerate(zip(verdict.named, story.after_cures(diagnosis), strict=True))
    ]
    if not verdict.named:
        told = tag("ul", [tag("li", line) for line in verdict.why])
    making, given = story.making(diagnosis), readings(diagnosis.evidence)
    ranks = ranks_beside(diagnosis.evidence)
    return tag(
        "section",
        tag("h2", "What speaks for it"),
        told,
        (tag("h3", "The ranks beside one another"), frame.table(ranks)) if ranks.rows else None,
        (tag("h3", "How a batch is made"), tag("p", "Means of a batch.", class_="soft"), frame.pairs(making))
        if making.rows
        else None,
        (tag("h3", "What the experiments gave"), frame.pairs(given)) if given.rows else None,
    )


def _named(one: Named, after: str | None, *, with_cures: bool) -> Html:
    return tag(
        "div",
        tag("h3", one.cause, " ", tag("span", f"{percent(one.share)} of the step", class_="tag"), " ",
            tag("span", story.certainty(one.certainty), class_="tag")),
        tag("p", story.meaning(one.cause), class_="soft"),
        tag("ul", [tag("li", line) for line in one.evidence]),
        tag("p", f"{after[:1].upper()}{after[1:]}.") if after is not None else None,
        tag("ul", [_cure(cure) for cure in one.cures]) if with_cures else None,
    )  # fmt: skip


def _eliminated(diagnosis: Diagnosis) -> Html | None:
    table = story.eliminated(diagnosis)
    if not table.rows:
        return None
    return tag("section", tag("h2", "What it is not"), frame.table(table))


def _untold(diagnosis: Diagnosis) -> Html | None:
    untold, missing = story.untold(diagnosis), story.missing(diagnosis)
    if not untold.rows and not missing.rows and not diagnosis.notes:
        return None
    return tag(
        "section",
        tag("h2", "What could not be told"),
        tag("p", "No verdict rests on these, for or against.", class_="soft"),
        tag("ul", [tag("li", note) for note in diagnosis.notes]) if diagnosis.notes else None,
        frame.table(missing) if missing.rows else None,
        frame.table(untold) if untold.rows else None,
    )


def _plan(diagnosis: Diagnosis) -> Html | None:
    plan = diagnosis.plan
    if plan is None:
        return None
    return tag(
        "section",
        tag("h2", "Plan"),
        tag("p", f"{_upper(plan.summary.rstrip('.'))}."),
        tag("p", "Rates and times of the options are predictions; nine in ten should lie in the interval.",
            class_="soft"),
        frame.table(proposal.options(plan), "options") if plan.options else None,
        tag("ul", [tag("li", _upper(note)) for note in plan.notes]) if plan.notes else None,
        [_option(option) for option in plan.options if option.alike is None],
    )  # fmt: skip


def _option(option: Option) -> Html:
    return tag(
        "div",
        tag("h3", _upper(option.name)),
        tag("p", proposal.about(option), class_="soft"),
        [_change(step) for step in option.changes],
    )


def _change(step: Step) -> Html:
    said = [line for line in (step.consequences, step.mind and f"Mind: {step.mind}") if line]
    return tag(
        "div",
        tag("p", tag("b", step.change), " ", tag("span", story.KIND_MEANINGS[step.kind], class_="tag"),
            " ", _upper(step.text), "."),
        tag("pre", tag("code", "\n".join(step.apply))) if step.apply else None,
        [tag("p", _upper(line), class_="soft") for line in said],
    )  # fmt: skip


def _budget(diagnosis: Diagnosis) -> Html | None:
    budget = diagnosis.budget
    if budget is None:
        return None
    return tag(
        "section",
        tag("h2", "Memory"),
        tag(
            "div",
            tag("div", tag("h3", "On the card"), frame.pairs(proposal.vram(budget))),
            tag("div", tag("h3", "On the host"), frame.pairs(proposal.ram(budget))),
            class_="grid",
        ),
    )


def _facts(diagnosis: Diagnosis, about: Mapping[str, Any]) -> Html:
    loader = story.loader(diagnosis)
    return tag(
        "section",
        tag("h2", "Machine and script"),
        tag(
            "div",
            tag("div", tag("h3", "This machine"), frame.pairs(story.facts(diagnosis, about))),
            tag("div", tag("h3", "The script's loader"), frame.pairs(loader)) if loader.rows else None,
            class_="grid",
        ),
    )


def _method(diagnosis: Diagnosis) -> Html:
    table = story.method(diagnosis)
    return tag(
        "section",
        tag("h2", "How this was found out"),
        tag("p", story.how_held(diagnosis)),
        frame.table(table) if table.rows else None,
        tag("p", story.overhead(diagnosis)),
        tag("p", "The record: ", tag("code", str(diagnosis.record))),
    )


def _footer() -> Html:
    return tag(
        "footer",
        f"Made by Stoker {__version__}. Every figure was measured in this run or worked out from "
        "such figures, unless it is called a prediction; n/a was not measured.",
    )


def _upper(text: str) -> str:
    """A sentence's beginning; a name of code keeps its own."""
    first = text.partition(" ")[0].rstrip(",:;")
    return text[:1].upper() + text[1:] if first.isalpha() else text
