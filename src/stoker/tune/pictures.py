"""The search as a picture: a row for each change that was tried, in order, all on one scale of ratios.

Inline SVG that stretches with the page, as the doctor's pictures do; its dots are lines of no length with
round ends, which stay round however wide the page is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from stoker.doctor.model import Interval
from stoker.doctor.report.markup import Child, Html, tag
from stoker.tune.comparison import Ratio
from stoker.tune.tuned import Tried, Tuned
from stoker.watch.words import rate

_WIDE, _TALL = 100.0, 10.0
# An interval is drawn no further than so many times its middle: an unbounded one has no scale.
_FURTHEST = 1.6
# A ceiling so many times the rest is told and not drawn: the rest must stay apart.
_OUT_OF_SIGHT = 10.0
# Of the scale, left free at both ends.
_MARGIN = 0.05
_TICKS = (
    (0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2, 1.25),
    (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0),
    (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0),
    (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0),
    (0.01, 0.1, 1.0, 10.0, 100.0, 1_000.0, 10_000.0),
)
_MOST_TICKS, _LEAST_TICKS = 7, 3
_ONE = Ratio(low=1.0, mid=1.0, high=1.0)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Ratios across the picture: twice as fast is as far to the right as half as fast is to the left."""

    low: float
    high: float

    def at(self, ratio: float) -> float:
        """Where a ratio lies, from 0 to 100; what lies beyond is at the edge."""
        if ratio <= self.low:
            return 0.0
        if ratio >= self.high:
            return _WIDE
        return _WIDE * log(ratio / self.low) / log(self.high / self.low)

    @property
    def ticks(self) -> tuple[float, ...]:
        """Round ratios, a few."""
        inside = [tuple(one for one in ticks if self.low <= one <= self.high) for ticks in _TICKS]
        few = [ticks for ticks in inside if _LEAST_TICKS <= len(ticks) <= _MOST_TICKS]
        return max(few, key=lambda ticks: ticks[-1] / ticks[0], default=(1.0,))


def scale_of(tuned: Tuned, ceiling: float | None) -> Scale:
    """One that holds all that was measured and predicted, and the ceiling where that is not far off."""
    ends = [0.95, 1.1]
    for one in tuned.tried:
        for interval in (one.total, one.candidate.predicted):
            if interval is not None:
                ends += _drawn(interval)
    if ceiling is not None and ceiling <= _OUT_OF_SIGHT * max(ends):
        ends.append(ceiling)
    span = log(max(ends) / min(ends))
    return Scale(low=min(ends) * exp(-_MARGIN * span), high=max(ends) * exp(_MARGIN * span))


def search(tuned: Tuned, ceiling: float | None) -> Html:
    """The script as it is with the scale, then a row each, and what the marks mean."""
    scale = scale_of(tuned, ceiling)
    as_it_is = _row("as it is", rate(tuned.baseline, tuned.unit), _track(scale, ceiling, Mark(measured=_ONE)))
    rows = [_tried(number, one, scale, ceiling) for number, one in enumerate(tuned.tried, 1)]
    axis = [tag("span", f"{tick:g}x", style=f"left:{scale.at(tick):.2f}%") for tick in scale.ticks]
    return tag(
        "div", as_it_is, tag("div", axis, class_="ticks"), rows, _legend(scale, ceiling), class_="search"
    )


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What stands in a row."""

    measured: Ratio | None = None
    predicted: Interval | None = None
    outcome: str = "plain"


def measured(ratio: Ratio | None) -> str:
    """`2.31x (2.10 to 2.55)`; an end that is not known is said."""
    return "no rate" if ratio is None else f"{ratio.mid:.2f}x ({ratio.within})"


def predicted(told: Interval | None) -> str:
    """The same of a prediction."""
    return "not predicted" if told is None else f"{told.mid:.2f}x ({told.low:.2f} to {told.high:.2f})"


def _tried(number: int, one: Tried, scale: Scale, ceiling: float | None) -> Html:
    told = one.candidate.predicted
    mark = Mark(measured=one.total, predicted=told, outcome=one.outcome.replace(" ", "-"))
    said = f"measured {measured(one.total)}, " + (
        "not predicted" if told is None else f"predicted {predicted(told)}"
    )
    return _row(
        f"{number}. {one.candidate.name}",
        measured(one.total),
        _track(scale, ceiling, mark, f"{one.candidate.name}: {said}; {one.outcome}"),
        tag("span", one.outcome, class_=f"outcome {mark.outcome}"),
        _why(one),
    )  # fmt: skip


def _why(one: Tried) -> str:
    if one.reason:
        return f": {one.reason}"
    beside = " than what was kept before it" if one.outcome == "not faster" else ""
    return f"{beside}; tried because {one.candidate.why}"


def _row(name: str, figure: str, track: Html, *why: Child) -> Html:
    return tag(
        "div",
        tag("div", tag("b", name), tag("span", figure, class_="figure"), class_="label"),
        track,
        tag("div", why, class_="why") if why else None,
        class_="row",
    )


def _track(scale: Scale, ceiling: float | None, mark: Mark, label: str = "the script as it is: 1x") -> Html:
    middle = _TALL / 2
    shapes = [_upright(scale.at(tick), "tick") for tick in scale.ticks]
    shapes.append(_upright(scale.at(1.0), "one"))
    if ceiling is not None and ceiling <= scale.high:
        shapes.append(_upright(scale.at(ceiling), "limit"))
    if mark.predicted is not None:
        low, high = (scale.at(end) for end in _drawn(mark.predicted))
        shapes.append(tag("rect", x=low, y=1.5, width=max(high - low, 0.3), height=_TALL - 3, class_="guess"))
        shapes.append(_upright(scale.at(mark.predicted.mid), "guessed"))
    if mark.measured is not None:
        low, high = (scale.at(end) for end in _drawn(mark.measured))
        shapes.append(tag("path", d=f"M{low:.2f} {middle}H{high:.2f}", class_=f"whisker {mark.outcome}"))
        dot = f"M{scale.at(mark.measured.mid):.2f} {middle}h.001"
        shapes.append(tag("path", d=dot, class_=f"dot {mark.outcome}"))
    return tag(
        "svg", shapes, viewBox=f"0 0 {_WIDE:g} {_TALL:g}", preserveAspectRatio="none", class_="track",
        role="img", aria_label=label,
    )  # fmt: skip


def _upright(x: float, kind: str) -> Html:
    return tag("path", d=f"M{x:.2f} 0V{_TALL:g}", class_=kind)


def _drawn(interval: Ratio | Interval) -> tuple[float, float]:
    return max(interval.low, interval.mid / _FURTHEST), min(interval.high, interval.mid * _FURTHEST)


def _legend(scale: Scale, ceiling: float | None) -> Html:
    keys: Sequence[tuple[str, str]] = (
        ("key dot-key", "measured, with its 90% interval"),
        ("key guess-key", "predicted, with its interval"),
    )
    told = [tag("span", tag("span", class_=kind), text) for kind, text in keys]
    if ceiling is None:
        told.append(tag("span", "computing alone was not measured"))
    elif ceiling <= scale.high:
        text = f"computing alone: {ceiling:.2f}x, which no feeding can pass"
        told.append(tag("span", tag("span", class_="key limit-key"), text))
    else:
        told.append(tag("span", f"computing alone, {ceiling:,.0f}x, lies beyond the right edge"))
    return tag("div", told, class_="legend soft")
