"""`stoker.check()`: the facts as an object that a notebook draws as a table and a prompt as text."""

from dataclasses import dataclass
from html import escape
from pathlib import Path

from stoker.facts.nvml import GpuSource
from stoker.facts.snapshot import collect, to_json
from stoker.facts.terminal import as_text
from stoker.facts.values import Facts, Warned
from stoker.facts.view import Section, sections_of
from stoker.facts.warnings import warnings_of


@dataclass(frozen=True, kw_only=True, repr=False)
class Checked:
    """The facts and what they warn of.

    checked = stoker.check()
    checked.facts.gpus[0].holders
    checked.warnings
    """

    facts: Facts
    warnings: tuple[Warned, ...]

    def to_json(self) -> dict[str, object]:
        """Return the same object as `stoker check --json`."""
        return to_json(self.facts, self.warnings)

    def __repr__(self) -> str:
        return as_text(self.facts, self.warnings, width=120)

    def _repr_html_(self) -> str:
        return "".join(
            [*(_draw(section) for section in sections_of(self.facts)), _draw_warnings(self.warnings)]
        )


def check(data: Path | str | None = None, *, source: GpuSource | None = None) -> Checked:
    """Tell what is true of this machine now, and warn of what will hurt.

    In a notebook the result draws itself. `data` is where the training data lies: it is measured too.
    """
    found = collect(data=None if data is None else Path(data), source=source)
    return Checked(facts=found, warnings=warnings_of(found))


def _draw(section: Section) -> str:
    parts = [f"<h4 style='margin:0.8em 0 0.2em'>{escape(section.title)}</h4>"]
    if section.rows:
        head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in section.columns)
        body = "".join(
            "<tr>" + "".join(f"<td style='text-align:left'>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in section.rows
        )
        header = f"<thead><tr>{head}</tr></thead>" if head else ""
        parts.append(f"<table>{header}<tbody>{body}</tbody></table>")
    if section.note:
        parts.append(f"<div style='opacity:0.7'>{escape(section.note)}</div>")
    return "".join(parts)


def _draw_warnings(warnings: tuple[Warned, ...]) -> str:
    if not warnings:
        return "<p><b>Nothing here will hurt, as far as facts can tell.</b></p>"
    rows = "".join(
        "<tr style='vertical-align:top'>"
        f"<td style='text-align:left'><code>{escape(one.cause)}</code></td>"
        f"<td style='text-align:left'>{escape(one.text)}<br>do: <code>{escape(one.fix)}</code></td></tr>"
        for one in warnings
    )
    title = f"{len(warnings)} warning{'s' if len(warnings) > 1 else ''}"
    return f"<h4 style='margin:0.8em 0 0.2em'>{title}</h4><table><tbody>{rows}</tbody></table>"
