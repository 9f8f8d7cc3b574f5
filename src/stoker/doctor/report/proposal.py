"""The plan and the memory budget in words and tables. Every rate and time in a plan is a prediction. Pure."""

from collections.abc import Callable
from math import isfinite
from typing import Any

from stoker.doctor.budget import Budget, Ram, Vram
from stoker.doctor.model import Interval
from stoker.doctor.plan import Need, Option, Plan
from stoker.doctor.report.story import KIND_MEANINGS, Table
from stoker.facts.words import size
from stoker.watch.words import NA, duration, rate


def options(plan: Plan) -> Table:
    """The options side by side, beside the run as it is."""
    measured = f"{rate(plan.rate, 'step')} (measured)" if plan.rate else NA
    now = ("as it is", measured, *(duration(_finite(value)) for value in (plan.epoch, plan.total)))
    rows = [
        (
            option.name,
            interval(option.predicted, lambda value: rate(value, "step")),
            interval(option.epoch, duration),
            interval(option.total, duration),
            need(option.vram),
            need(option.ram),
            KIND_MEANINGS[option.kind],
        )
        if option.alike is None
        else (option.name, f"as {option.alike}", "", "", "", "", "")
        for option in plan.options
    ]
    columns = ("option", "predicted rate", "an epoch", "in total", "VRAM", "RAM", "the maths")
    return Table(columns=columns, rows=((*now, "", "", ""), *rows))


def interval(value: Interval | None, words: Callable[[float | None], str]) -> str:
    """A prediction with its bounds."""
    if value is None:
        return NA
    mid, low, high = (words(figure).split() for figure in (value.mid, value.low, value.high))
    if len(mid) == len(low) == len(high) == 2 and mid[1] == low[1] == high[1]:
        low, high = low[:1], high[:1]  # the unit is said once
    return f"{' '.join(mid)} (90%: {' '.join(low)} to {' '.join(high)})"


def need(value: Need) -> str:
    """What an option takes, beside what is free."""
    fits = {True: "fits", False: "does not fit", None: ""}[value.fits]
    told = f"{size(value.need)} of {size(value.free)} free"
    return NA if value.need is None else f"{told}, {fits}" if fits else told


def about(option: Option) -> str:
    """What else is to be known of an option, in a line."""
    parts = []
    if option.limit is not None:
        parts.append(f"Then it waits for: {option.limit}.")
    if option.risk:
        parts.append(f"Risk: {option.risk}.")
    return " ".join(parts)


def vram(budget: Budget) -> Table:
    """Memory on the card."""
    card = budget.vram
    rows = _known(
        card,
        ("peak", "peak of this run"),
        ("fixed", "fixed"),
        ("per_sample", "for each sample"),
        ("context", "driver's context"),
        ("others", "other processes"),
        ("free", "free"),
        ("total", "on the card"),
    )
    if card.largest is not None:
        rows.append(("largest micro-batch that fits", f"{card.largest} samples (prediction)"))
    if card.error is not None:
        rows.append(("a size that ran was missed by", f"{card.error:.1%}"))
    return Table(rows=(*rows, *_why(card.why)))


def ram(budget: Budget) -> Table:
    """Memory of the host."""
    host = budget.ram
    part = "" if host.ranks == 1 else f", for each of {host.ranks} ranks"
    rows = _known(
        host,
        ("main", "the loop's process"),
        ("each_worker", "each worker" + ("" if host.tried is None else f", of {host.tried} that were tried")),
        ("workers", "all workers"),
        ("queue", "batches that wait"),
        ("pinned", "pinned"),
        ("need", "in all" if host.ranks == 1 else "in all, for each rank"),
        ("free", f"free{part}"),
        ("limit", "limit of the group"),
        ("shm_free", f"free in /dev/shm{part}"),
    )
    if host.most_workers is not None:
        by = f", limited by {host.limited_by}" if host.limited_by else ""
        rows.append(("workers that fit", f"{host.most_workers}{by} (prediction)"))
    return Table(rows=(*rows, *_why(host.why)))


def _known(value: Vram | Ram, *names: tuple[str, str]) -> list[tuple[str, str]]:
    """Sizes by name; none of them where not one was measured, and why is told."""
    told: dict[str, Any] = vars(value)
    if value.why is not None and all(told[name] is None for name, _ in names):
        return []
    return [(words, size(told[name])) for name, words in names]


def _finite(value: float | None) -> float | None:
    """Of a run that died before its first step there is none."""
    return value if value is not None and isfinite(value) else None


def _why(why: str | None) -> tuple[tuple[str, str], ...]:
    return () if why is None else (("n/a", why),)
