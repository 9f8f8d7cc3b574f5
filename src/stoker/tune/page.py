"""A search as one HTML file, in the style of the doctor's report and as offline as that."""

import time
from pathlib import Path
from statistics import median

from stoker import __version__
from stoker.doctor.calibration import Score
from stoker.doctor.report import frame, story
from stoker.doctor.report.markup import Html, tag
from stoker.doctor.report.story import Table
from stoker.tune import pictures
from stoker.tune.finding import Found, score_of
from stoker.tune.settings_file import as_lines, as_words, use
from stoker.tune.tuned import Tried
from stoker.tune.words import by_reason, told_last
from stoker.watch.words import NA, duration, percent, rate

NAME = "report.html"


def write(found: Found, settings: Path | None = None) -> Path:
    """Put the report into the search's folder. `settings` is the file that was written, if one was."""
    advice = "all else was kept: make room there, or the folder writable"
    return frame.put(found.folder / NAME, document(found, settings), advice=advice)


def document(found: Found, settings: Path | None = None) -> str:
    """The whole page."""
    return frame.document(
        f"tuned: {' '.join(found.command)}",
        frame.styled(
            _header(found),
            _result(found, settings),
            _search(found),
            _predictions(found),
            _not_tried(found),
            _method(found),
            _footer(),
        ),
    )


def _header(found: Found) -> Html:
    when = time.strftime("%Y-%m-%d %H:%M")
    return tag("header", tag("p", "Stoker's search for ", tag("code", as_words(found.command)), f", {when}"))


def _result(found: Found, settings: Path | None) -> Html:
    tuned, ratio = found.tuned, found.tuned.ratio
    said = "Nothing that was tried is faster beyond doubt: the script stays as it is."
    if ratio is not None:
        said = f"{ratio.mid:.2f} times as fast, measured ({ratio.within})"
    compute = None if found.ceiling is None else rate(found.ceiling * tuned.baseline, tuned.unit)
    return tag(
        "section",
        tag("h1", said),
        None if tuned.last_pair is None else tag("p", f"{told_last(tuned.last_pair)}.", class_="soft"),
        frame.tiles(
            [
                (rate(tuned.baseline, tuned.unit), "before: the script as it is"),
                (rate(tuned.best, tuned.unit) if ratio is not None else None, "after: with what is kept"),
                (compute, "computing alone, by the diagnosis: what no feeding can pass"),
                (f"{tuned.runs} runs", f"in {duration(found.seconds)}; stopped: {tuned.stopped}"),
            ]
        ),
        _use(found, settings) if tuned.settings else None,
    )


def _use(found: Found, settings: Path | None) -> Html:
    place = "stoker.toml" if settings is None else str(settings)
    put = "To be put into" if settings is None else "Written to"
    lines = "\n".join(as_lines(found.tuned))
    run = use(str(place), as_words(found.command), found.ranks)
    return tag(
        "div",
        tag("b", "What is kept"),
        tag("p", f"{put} ", tag("code", place), ", which is undone by removing it:"),
        tag("pre", tag("code", lines)),
        tag("pre", tag("code", run)),
        class_="do",
    )


def _search(found: Found) -> Html | None:
    if not found.tuned.tried:
        return None
    return tag(
        "section",
        tag("h2", "The search"),
        tag("p", "The changes in the order in which they were tried, each over what was kept before it. "
            "Every figure is a ratio to the script as it is, from whole runs of both.", class_="soft"),
        pictures.search(found.tuned, found.ceiling),
    )  # fmt: skip


def _predictions(found: Found) -> Html | None:
    tried = found.tuned.tried
    if not tried:
        return None
    scores = [score for one in tried if (score := _score(one, found)) is not None]
    summary = "Nothing that was measured had been predicted."
    if scores:
        inside = sum(score.covered for score in scores)
        off = median(abs(score.error) for score in scores)
        summary = (
            f"{inside} of {len(scores)} measured ratios lie in the interval that was predicted; the median "
            f"prediction is off by {percent(off)}. Each is corrected by what was measured before it; the "
            "scores of the model by itself, of all searches so far: stoker doctor --calibration."
        )
    columns = ("change", "runs", "rate", "measured", "predicted", "off by", "outcome")
    rows = tuple(_predicted(one, found) for one in tried)
    return tag(
        "section",
        tag("h2", "Predicted and measured"),
        tag("p", summary, class_="soft"),
        frame.table(Table(columns=columns, rows=rows)),
    )


def _predicted(one: Tried, found: Found) -> tuple[str, ...]:
    score = _score(one, found)
    off = NA if score is None else f"{score.error:+.0%}" + ("" if score.covered else ", outside")
    return (
        one.candidate.name,
        str(one.runs),
        NA if one.rate is None else rate(one.rate, found.tuned.unit),
        pictures.measured(one.total),
        pictures.predicted(one.candidate.predicted),
        off,
        one.outcome,
    )


def _score(one: Tried, found: Found) -> Score | None:
    """Of the prediction that is shown."""
    return score_of(one.candidate.predicted, one, found.diagnosis.verdict.rate)


def _not_tried(found: Found) -> Html | None:
    if not found.tuned.not_tried:
        return None
    return tag(
        "section",
        tag("h2", "Not tried, and why"),
        tag("ul", [tag("li", line) for line in by_reason(found.tuned.not_tried)]),
    )


def _method(found: Found) -> Html:
    verdict = found.diagnosis.verdict
    return tag(
        "section",
        tag("h2", "How this was found out"),
        tag("p", f"It began with a diagnosis: {story.sentence(found.diagnosis)} ",
            tag("span", verdict.cause, class_="tag")),
        tag("ul", [tag("li", note) for note in found.diagnosis.notes]) if found.diagnosis.notes else None,
        tag("p", "Each run was the script's own loop in a process of its own; its first steps do not count. "
            f"{story.shield(found.diagnosis)} A change is kept where the 90% interval of its ratio lies "
            "above 1.02, by two runs of it with one without it between or after (by one run, above 1.25), "
            "and a probe of the first steps shows that it means what it says."),
        tag("p", "The trials: ", tag("code", str(found.folder)), ". The diagnosis: ",
            tag("code", str(found.diagnosis.record))),
    )  # fmt: skip


def _footer() -> Html:
    return tag(
        "footer",
        f"Made by Stoker {__version__}. Every figure was measured, unless it is called predicted.",
    )
