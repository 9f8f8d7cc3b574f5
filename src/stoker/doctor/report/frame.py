"""What every report's page has: one file, with nothing loaded from elsewhere; tables; how it is written."""

import contextlib
import os
from pathlib import Path

from stoker.doctor.report.markup import Child, Html, tag
from stoker.doctor.report.story import Table
from stoker.errors import NotPermitted

_STYLE = Path(__file__).with_name("page.css")
# Nothing may be loaded, and nothing runs; what is inline is style alone.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_INLINE_PICTURES = "; img-src data:"


def document(title: str, content: Html, *, pictures: bool = False) -> str:
    """A whole page; `pictures` lets it show images that stand in it as data."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY + _INLINE_PICTURES * pictures),
        tag("title", title),
        tag("style", Html("html { background: Canvas; } body { margin: 0; }")),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', content), lang='en')}\n"


def styled(*sections: Child) -> Html:
    """Sections with the style that they need, for a page or a notebook's cell."""
    return tag("div", tag("style", Html(_STYLE.read_text())), sections, class_="stoker-report")


def table(value: Table, kind: str = "") -> Html:
    """The first column names the row; on a narrow screen a row's cells come below each other."""
    named = value.columns
    rows = [
        tag("tr", tag("th", row[0]),
            [tag("td", cell, data_name=name if len(row) > 3 and cell else None)
             for name, cell in zip(named[1:], row[1:], strict=True)])
        for row in value.rows
    ]  # fmt: skip
    head = tag("thead", tag("tr", [tag("th", name) for name in named]))
    return tag("div", tag("table", head, tag("tbody", rows), class_=f"stack {kind}".strip()), class_="wide")


def pairs(value: Table) -> Html:
    """Names with what they are."""
    rows = [tag("tr", tag("th", name), tag("td", told)) for name, told in value.rows]
    return tag("table", tag("tbody", rows), class_="pairs")


def tiles(told: list[tuple[str | None, str]]) -> Html:
    """The few figures that count, large; one that is None is left out."""
    shown = [tag("div", tag("b", one), tag("span", what), class_="tile") for one, what in told if one]
    return tag("div", shown, class_="tiles")


def put(place: Path, text: str, *, advice: str) -> Path:
    """Write it whole or not at all; `advice` is what to do where that cannot be."""
    draft = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        # Names of files need not be UTF-8, and stand in a report all the same.
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")
        draft.replace(place)
    except OSError as error:
        with contextlib.suppress(OSError):  # the error above tells what is wrong with that folder
            draft.unlink(missing_ok=True)
        raise NotPermitted(f"the report cannot be written to {place}: {error.strerror}; {advice}") from error
    return place
