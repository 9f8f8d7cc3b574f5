"""Curves of several trainings in one picture: inline SVG that stretches with the page."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TypeAlias

from stoker.doctor.report.markup import Html, tag

Points: TypeAlias = Sequence[tuple[float, float]]

# Apart in light, in dark and for most who see few colours (Okabe and Ito).
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
_WIDE, _TALL = 100.0, 100.0
# Of the span, left free above and below.
_MARGIN = 0.05


def draw(curves: Mapping[str, Points], *, label: str, across: str, digits: int = 2) -> Html | None:
    """One line for each name; None where there is no point to draw."""
    kept = {name: [(x, y) for x, y in points if isfinite(y)] for name, points in curves.items()}
    xs = [x for points in kept.values() for x, _ in points]
    ys = [y for points in kept.values() for _, y in points]
    if not xs:
        return None
    (left, right), (low, high) = _span(xs), _span(ys)
    margin = _MARGIN * (high - low)
    low, high = low - margin, high + margin
    lines = []
    for number, points in enumerate(kept.values()):
        places = [
            (_WIDE * (x - left) / (right - left), _TALL * (high - y) / (high - low))
            for x, y in sorted(points)
        ]
        if len(places) == 1:  # a dot: a line of some length, since one of none is not drawn everywhere
            places.append((places[0][0] + 0.5, places[0][1]))
        path = "M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in places) if places else ""
        lines.append(
            tag("path", d=path, fill="none", stroke=COLOURS[number % len(COLOURS)],
                style="stroke-width:2;vector-effect:non-scaling-stroke;shape-rendering:auto")
        )  # fmt: skip
    picture = tag(
        "svg", lines, viewBox=f"0 0 {_WIDE:g} {_TALL:g}", preserveAspectRatio="none", class_="plot",
        role="img", aria_label=f"{label} over {across}: {', '.join(_said(*one) for one in kept.items())}",
    )  # fmt: skip
    scale = tag(
        "div", [tag("span", f"{y:.{digits}f}") for y in (high, (high + low) / 2, low)], class_="scale"
    )
    axis = tag("div", [tag("span", f"{x:g}") for x in (left, (left + right) / 2, right)], class_="axis")
    names = [
        tag("span", tag("span", class_="key", style=f"background:{COLOURS[number % len(COLOURS)]}"), name)
        for number, name in enumerate(kept)
    ]
    legend = tag("div", names, tag("span", f"{label} over {across}"), class_="legend soft")
    return tag("div", scale, tag("div", legend, picture, axis), class_="time")


def _said(name: str, points: Points) -> str:
    return f"{name} ends at {points[-1][1]:.4g}" if points else f"{name} has none"


def _span(values: Sequence[float]) -> tuple[float, float]:
    """The least and the greatest, never equal."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)
