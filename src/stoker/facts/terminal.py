"""The facts on a terminal: tables, then the warnings."""

from collections.abc import Sequence
from io import StringIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stoker.facts.values import Facts, Warned
from stoker.facts.view import Section, sections_of

# Columns whose cells may break; pids and figures may not.
_LONG = {"notebook or command", "notebook", "command", "why unknown"}


def show(facts: Facts, warnings: Sequence[Warned], console: Console | None = None) -> None:
    """Print the facts, and after them the warnings."""
    out = console if console is not None else Console()
    # A pipe has no width of its own, and 80 columns cut the tables to shreds.
    if not out.is_terminal and console is None:
        out = Console(width=140)
    for section in sections_of(facts):
        out.print(_draw(section))
    out.print(_draw_warnings(warnings))


def as_text(facts: Facts, warnings: Sequence[Warned], width: int = 140) -> str:
    """Return the same as plain text."""
    buffer = StringIO()
    # Inside a kernel rich would display the text itself instead of writing it.
    show(facts, warnings, Console(file=buffer, width=width, color_system=None, force_jupyter=False))
    return buffer.getvalue()


def _draw(section: Section) -> Group:
    parts: list[Text | Padding] = [Text(section.title, style="bold")]
    if section.rows:
        table = Table(box=SIMPLE_HEAD, show_header=bool(section.columns), pad_edge=False, show_edge=False)
        for name in section.columns or ("", ""):
            table.add_column(Text(name), overflow="fold", no_wrap=bool(section.columns) and name not in _LONG)
        for row in section.rows:
            # Text, not str: a path with brackets must not be taken for markup.
            first, rest = row[0], row[1:]
            table.add_row(Text(first, style="" if section.columns else "dim"), *(Text(cell) for cell in rest))
        parts.append(Padding(table, (0, 0, 0, 2), expand=False))
    if section.note:
        parts.append(
            Padding(Text(section.note, style="dim" if section.rows else ""), (0, 0, 0, 2), expand=False)
        )
    return Group(*parts, Text())


def _draw_warnings(warnings: Sequence[Warned]) -> Group:
    if not warnings:
        return Group(Text("Nothing here will hurt, as far as facts can tell.", style="green"))
    lines: list[Text | Padding] = [
        Text(f"{len(warnings)} warning{'s' if len(warnings) > 1 else ''}", style="bold yellow")
    ]
    for warning in warnings:
        head = Text.assemble((warning.cause, "bold yellow"), ": ", warning.text)
        lines.append(Padding(head, (0, 0, 0, 2), expand=False))
        lines.append(Padding(Text.assemble(("do: ", "dim"), warning.fix), (0, 0, 0, 6), expand=False))
    return Group(*lines)
