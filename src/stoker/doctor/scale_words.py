"""An outlook on many GPUs as a reader sees it: a terminal's tables, Markdown, JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stoker.doctor.report.markdown import code
from stoker.doctor.scale import WAYS, Load, Outlook, caches_needed, first_ceiling, foresee
from stoker.doctor.scale_links import ASSUMED, MEASURED, TELLABLE, TOLD, Links
from stoker.watch.words import NA, duration, figure, percent

_OF_THE_LOAD = (
    ("sample_bytes", "sample", "bytes", "a sample as it is stored"),
    ("set_bytes", "set", "bytes", "all samples as they are stored"),
    ("gradient_bytes", "gradients", "bytes", "the gradients of a step"),
)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """All that is told of a record: what goes in, and what comes out for each number of GPUs."""

    run: str
    load: Load
    links: Links
    told: frozenset[str]
    outlooks: tuple[Outlook, ...]
    first: tuple[tuple[str, int | None, str | None], ...]
    caches: tuple[tuple[int, int | None], ...]

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it: bytes, seconds, samples a second."""
        return {
            "schema": 1,
            "run": self.run,
            "inputs": [
                dict(zip(("name", "value", "unit", "origin", "text"), row, strict=True))
                for row in inputs(self)
            ],
            "outlooks": [one.to_json() for one in self.outlooks],
            "first": [{"way": way, "gpus": gpus, "limit": limit} for way, gpus, limit in self.first],
            "cache_nodes_needed": [{"gpus": gpus, "nodes": nodes} for gpus, nodes in self.caches],
            "not_measured": dict(self.load.missing),
        }


def scale_of(run: str, load: Load, links: Links, told: Sequence[str], gpus: Sequence[int]) -> Scale:
    """Everything, for these numbers of GPUs."""
    first = []
    for way in WAYS:
        met = first_ceiling(load, links, way)
        first.append((way, *(met or (None, None))))
    return Scale(
        run=run,
        load=load,
        links=links,
        told=frozenset(told),
        outlooks=tuple(foresee(load, links, way, count) for count in gpus for way in WAYS),
        first=tuple(first),
        caches=tuple((count, caches_needed(load, links, count)) for count in gpus),
    )


Row = tuple[str, float | None, str, str, str]


def inputs(scale: Scale) -> list[Row]:
    """Everything that the predictions rest on: its value, unit, and where it comes from."""
    load = scale.load
    rows: list[Row] = [
        ("ranks", load.ranks, "count", MEASURED, "ranks in the record"),
        ("samples", load.samples, "count", MEASURED, "samples in a rank's step"),
        ("step", load.samples / load.alone, "seconds", MEASURED, "a rank's step that waits for no data"),
        ("alone", load.alone, "samples/s", MEASURED, "what such a rank trains on"),
        ("spread", load.spread, "share", _origin(load.spread), "by what its mean may be off"),
        ("backward", load.backward, "seconds", MEASURED, "its backward pass"),
        ("workers", load.workers, "count", _origin(load.workers), "worker processes a rank"),
        ("read", load.read, "seconds", _origin(load.read), "reading a sample, where it is made"),
        ("prepare", load.prepare, "seconds", _origin(load.prepare), "preparing it there"),
        ("cpu", load.cpu, "seconds", _origin(load.cpu), "CPU time of a step, making batches apart"),
        ("make_cpu", load.make_cpu, "seconds", _origin(load.make_cpu), "CPU time of making a sample"),
    ]
    for field, name, unit, text in _OF_THE_LOAD:
        value = getattr(load, field)
        rows.append((name, value, unit, TOLD if name in scale.told else _origin(value), text))
    for name, where in scale.links.origin.items():
        value = getattr(scale.links, name)
        rows.append((name, value, TELLABLE[name].unit, NA if value is None else where, TELLABLE[name].text))
    return rows


def _origin(value: object) -> str:
    return NA if value is None else MEASURED


# --- text ---------------------------------------------------------------------------------------------------


def show(scale: Scale, console: Console) -> None:
    """Print it."""
    console.print()
    for title, head, rows in tables(scale):
        console.print(title, style="bold")
        table = Table(box=None, pad_edge=False)
        for at, name in enumerate(head):
            table.add_column(name, justify="right" if name in _NUMBERS else "left", no_wrap=at < 3)
        for row in rows:
            table.add_row(*(escape(cell) for cell in row))
        console.print(table)
        console.print()
    for line in notes(scale):
        console.print(escape(line), style="dim", highlight=False, soft_wrap=True)


def markdown_of(scale: Scale) -> str:
    """The same for an issue tracker."""
    parts = [f"## What many GPUs would be fed by: {code(scale.run)}"]
    for title, head, rows in tables(scale):
        lines = [head, ["---:" if name in _NUMBERS else "---" for name in head], *rows]
        cells = "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
        )
        parts += [f"**{title}**", cells]
    return "\n\n".join([*parts, *notes(scale)]) + "\n"


_NUMBERS = ("GPUs", "global batch", "samples/s", "low to high", "of linear", "value")
_HEAD = ["GPUs", "global batch", "fed by", "samples/s", "low to high", "of linear", "waits for", "how"]


def tables(scale: Scale) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, head and rows of each."""
    first = [[way, NA if limit is None else f"{gpus:,}", limit or NA] for way, gpus, limit in scale.first]
    going_in = [
        [name, value_of(value, unit), origin, text] for name, value, unit, origin, text in inputs(scale)
    ]
    return [
        ("Predicted", _HEAD, [_row(one) for one in scale.outlooks]),
        ("Which ceiling comes first", ["fed by", "GPUs", "waits for"], first),
        ("What this rests on", ["input", "value", "origin", "what"], going_in),
    ]


def _row(one: Outlook) -> list[str]:
    asked = [f"{one.gpus:,}", figure(one.batch), one.way]
    if one.rate is None:
        return [*asked, NA, NA, NA, NA, one.how]
    between = f"{figure(one.rate.low)} to {figure(one.rate.high)}"
    return [*asked, figure(one.rate.mid), between, percent(one.of_linear), one.limit or NA, one.how]


def notes(scale: Scale) -> list[str]:
    """What must be said beside the tables."""
    assumed = [name for name, where in scale.links.origin.items() if where == ASSUMED]
    known = [name for name in assumed if getattr(scale.links, name) is not None]
    lines = [
        "Rates are predictions. `n/a` in place of GPUs: no ceiling but computing up to 65,536, or that way "
        "cannot be told.",
        _nodes(scale),
        f"A rank's step stays at {figure(scale.load.samples)} samples, so the global batch grows with the "
        "GPUs.",
        f"Assumed, not measured: {', '.join(known)}. Tell your own: --link nic=100Gbit/s --link store=5GB/s",
    ]
    needed = [f"{nodes:,} for {gpus:,} GPUs" for gpus, nodes in scale.caches if nodes is not None]
    if needed:
        lines.append(f"Cache nodes that hold the set and that no GPU waits for: {', '.join(needed)}.")
    lines += [f"{name} was not measured: {why}" for name, why in scale.load.missing.items()]
    return lines


def _nodes(scale: Scale) -> str:
    """The cluster that is predicted for."""
    links, counts = scale.links, {one.gpus: one.nodes for one in scale.outlooks}
    each = f"{links.per_node:,} GPU{'s' if links.per_node > 1 else ''}"
    told = ", ".join(
        f"{gpus:,} GPU{'s are' if gpus > 1 else ' is'} {nodes:,} node{'s' if nodes > 1 else ''}"
        for gpus, nodes in counts.items()
    )
    return f"Nodes of {each} ({links.origin['per_node']}): {told}."


def value_of(value: float | None, unit: str) -> str:
    """A figure in its unit."""
    if value is None:
        return NA
    if unit in ("bytes", "bytes/s"):
        return _decimal(value) + ("/s" if unit == "bytes/s" else "")
    if unit == "seconds":
        return duration(value)
    if unit == "share":
        return percent(value)
    return figure(value) + ("" if unit == "count" else f" {unit}")


def _decimal(value: float) -> str:
    """Bytes by thousands, as links are sold."""
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
