"""Pictures as inline SVG. They stretch with the page; their labels are HTML beside them, so that they do not.

Colours come from the page's style, by phase, so that a picture is right in light, in dark and on paper.
"""

from collections.abc import Mapping, Sequence
from statistics import quantiles

from stoker.doctor.method import Stretch
from stoker.doctor.report.markup import Html, tag
from stoker.doctor.report.series import Column, Series
from stoker.doctor.report.story import Bar
from stoker.watch.phases import PHASES
from stoker.watch.words import NA, duration, percent, rate

_HIGH = 100.0
# Of the columns, one in twenty may stick out by so much before the scale is cut.
_STICKS_OUT = 2.5
# A ceiling so many times the actual rate is drawn cut off: the actual bar must stay visible.
_LONGEST = 12.0
# Of the picture, for a part's name to fit over it.
_ROOM_FOR_NAME = 0.12


def total(shares: Mapping[str, float | None]) -> Html:
    """The mean step as one bar."""
    parts, at = [], 0.0
    for name in PHASES:
        share = shares.get(name) or 0.0
        parts.append(
            tag("rect", tag("title", f"{name} {percent(share)}"), x=at, y=0, width=share * _HIGH, height=10,
                class_=f"phase-{name}")
        )  # fmt: skip
        at += share * _HIGH
    said = ", ".join(f"{name} {percent(shares.get(name))}" for name in PHASES)
    return _svg(parts, width=_HIGH, height=10, class_="bar", label=f"where the step goes: {said}")


def over_time(series: Series, parts: Sequence[Stretch]) -> Html:
    """The mean step over time, phases on top of each other, and what the script was given meanwhile."""
    span = max(series.ended - series.began, series.width)
    top, cut = _top(series.columns)
    shapes = [
        tag("path", d=" ".join(_areas(series, at, top, span)), class_=f"phase-{name}")
        for at, name in enumerate(PHASES)
    ]
    bands, names = _bands(series, parts, span)
    picture = _svg(
        [bands, shapes], width=_HIGH, height=_HIGH, class_="plot",
        label=f"the mean step over {duration(span)}, up to {duration(top)}",
    )  # fmt: skip
    axis = tag(
        "div", tag("span", "0 s"), tag("span", duration(span / 2)), tag("span", duration(span)), class_="axis"
    )
    scale = tag(
        "div", tag("span", duration(top)), tag("span", duration(top / 2)), tag("span", "0"), class_="scale"
    )
    told = tag("p", "Columns that reach the top are cut off there.", class_="soft") if cut else None
    plot = tag("div", tag("div", names, class_="names"), picture, axis, told)
    return tag("div", scale, plot, class_="time")


def compare(bars: Sequence[Bar]) -> Html:
    """The actual rate, and the ceilings beside it."""
    measured = [bar.rate for bar in bars if bar.rate is not None]
    now, longest = bars[0].rate, max(measured, default=1.0)
    if now is not None:
        longest = min(longest, _LONGEST * now)
    rows = []
    for at, bar in enumerate(bars):
        share = 0.0 if bar.rate is None else min(1.0, bar.rate / longest)
        cut = bar.rate is not None and bar.rate > longest
        line = _svg(
            tag("rect", x=0, y=0, width=max(share * _HIGH, 0.4) if share else 0, height=10,
                class_="actual" if at == 0 else "ceiling"),
            width=_HIGH, height=10, class_="bar", label=f"{bar.name}: {rate(bar.rate, 'step')}",
        )  # fmt: skip
        told = NA if bar.rate is None else rate(bar.rate, "step") + (" (bar cut off)" if cut else "")
        rows.append(
            tag(
                "div",
                tag("div", tag("b", bar.name), tag("span", told, class_="figure"), class_="label"),
                line,
                tag("div", bar.why, class_="why"),
                class_="row",
            )
        )
    return tag("div", rows, class_="bars")


def _top(columns: Sequence[Column]) -> tuple[float, bool]:
    """Where the scale ends, and whether some columns go beyond it."""
    heights = [column.seconds for column in columns]
    highest = max(heights)
    usual = quantiles(heights, n=20)[-1] if len(heights) > 1 else highest
    top = min(highest, _STICKS_OUT * usual)
    return (top or 1.0), highest > 1.001 * top


def _areas(series: Series, phase: int, top: float, span: float) -> list[str]:
    """One phase's columns as rectangles in one path."""
    found, end = [], series.began
    for column in series.columns:
        right = min(column.began + series.width, series.ended)
        # A step that took longer than a column is wide began before it: that time is its own.
        spent = column.steps * column.seconds
        left = end if right - end <= spent + series.width else min(column.began, right - spent)
        end = max(end, right)
        heights = list(column.phases.values())
        low = min(1.0, sum(heights[:phase]) / top)
        high = min(1.0, sum(heights[: phase + 1]) / top)
        if high > low and right > left:
            x, end_x = _across(left - series.began, span), _across(right - series.began, span)
            # Where it ends and not how wide it is: one column's end is rounded as the next one's beginning.
            bottom, upper = _HIGH * (1 - low), _HIGH * (1 - high)
            found.append(f"M{x:.2f} {bottom:.1f}H{end_x:.2f}V{upper:.1f}H{x:.2f}z")
    return found


def _across(seconds: float, span: float) -> float:
    return _HIGH * seconds / span


def _bands(series: Series, parts: Sequence[Stretch], span: float) -> tuple[list[Html], list[Html]]:
    """The parts of a diagnosis behind the columns, and their names above."""
    bands, names = [], []
    for at, part in enumerate(parts):
        if part.began is None or part.ended is None:
            continue
        left, right = max(part.began, series.began), min(part.ended, series.ended)
        if right <= left:
            continue
        x, width = _across(left - series.began, span), _across(right - left, span)
        bands.append(tag("rect", x=x, y=0, width=width, height=_HIGH, class_=f"band{at % 2}"))
        if width >= _HIGH * _ROOM_FOR_NAME:
            names.append(tag("span", part.name, title=part.name, style=f"left:{x:.1f}%;width:{width:.1f}%"))
    return bands, names


def _svg(children: object, *, width: float, height: float, class_: str, label: str) -> Html:
    return tag(
        "svg", children, viewBox=f"0 0 {width:g} {height:g}", preserveAspectRatio="none", class_=class_,  # type: ignore[arg-type]
        role="img", aria_label=label,
    )  # fmt: skip
