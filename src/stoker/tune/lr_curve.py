"""A loss by learning rate: when a sweep has gone too far, and which rate it suggests. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, isfinite, log
from statistics import fmean, median, pstdev
from typing import Any

from stoker.errors import UsageError

LOW, HIGH, STEPS = 1e-7, 10.0, 100
# Fewer points say nothing about where a loss falls fastest.
LEAST_POINTS = 20
# Of the sweep, on each side of a point: what the curve is averaged over, so that it does not lag behind.
_HALF_WINDOW = 0.06
# Of the running average that decides whether a loss has left for good: what stays at each step.
_MEMORY = 0.9
# A loss is gone at so many times the best, as in fastai and Lightning; and above where it began.
_GONE = 4.0
# Of its fall: where a loss has begun to fall.
_BEGUN = 0.1


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """From a low rate to a high one, each step by the same factor."""

    low: float = LOW
    high: float = HIGH
    steps: int = STEPS

    def __post_init__(self) -> None:
        if not (isfinite(self.low) and isfinite(self.high) and 0 < self.low < self.high):
            raise UsageError(
                f"learning rates from {self.low:g} to {self.high:g}: give numbers above 0, the lower first"
            )
        if self.steps < LEAST_POINTS:
            raise UsageError(f"{self.steps} steps: a sweep needs {LEAST_POINTS} at the least")

    def at(self, step: int) -> float:
        """The rate of a step, counted from 0."""
        share = step / (self.steps - 1)
        return exp(log(self.low) + share * (log(self.high) - log(self.low)))


@dataclass
class Running:
    """The loss as it comes; tells when it is gone for good."""

    average: float = 0.0
    seen: int = 0
    first: float | None = None
    best: float = float("inf")

    def gone(self, loss: float) -> str | None:
        """Why the sweep ends with this loss; None while it goes on."""
        if not isfinite(loss):
            return f"the loss is {loss}"
        self.seen += 1
        self.average = _MEMORY * self.average + (1 - _MEMORY) * loss
        smooth = self.average / (1 - _MEMORY**self.seen)
        self.first = smooth if self.first is None else self.first
        self.best = min(self.best, smooth)
        rise = max((_GONE - 1) * abs(self.best), self.first - self.best)
        return f"the loss rose to {smooth:.3g}, from {self.best:.3g}" if smooth - self.best > rise else None


@dataclass(frozen=True, kw_only=True)
class Curve:
    """What a sweep found. Rates are the first group's; `ratios` are the groups' to it.

    `lr` is where the loss falls fastest, `low` to `high` where it falls at all; None where it does not.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    stopped: str
    ratios: tuple[float, ...] = (1.0,)
    notes: tuple[str, ...] = ()
    smooth: tuple[float, ...] = field(init=False)
    lr: float | None = field(init=False)
    low: float | None = field(init=False)
    high: float | None = field(init=False)
    why: str = field(init=False)

    def __post_init__(self) -> None:
        rates, losses = self._finite()
        smooth = _averaged(losses)
        found = (tuple(smooth), *_suggest(rates, losses, smooth))
        for name, value in zip(("smooth", "lr", "low", "high", "why"), found, strict=True):
            object.__setattr__(self, name, value)

    def _finite(self) -> tuple[list[float], list[float]]:
        pairs = [pair for pair in zip(self.rates, self.losses, strict=True) if isfinite(pair[1])]
        return [rate for rate, _ in pairs], [loss for _, loss in pairs]

    def to_json(self) -> dict[str, Any]:
        """As `stoker tune --lr --json` prints it; `points` are for a plot, null where there is no number."""
        smooth = [*self.smooth, *[None] * (len(self.losses) - len(self.smooth))]
        return {
            "schema": 1,
            "lr": self.lr,
            "low": self.low,
            "high": self.high,
            "why": self.why,
            "stopped": self.stopped,
            "ratios": list(self.ratios),
            "notes": list(self.notes),
            "points": [
                {"lr": rate, "loss": loss if isfinite(loss) else None, "smooth": average}
                for rate, loss, average in zip(self.rates, self.losses, smooth, strict=True)
            ],
        }


def _half(count: int) -> int:
    return max(1, round(count * _HALF_WINDOW))


def _averaged(losses: Sequence[float]) -> list[float]:
    """Each with its neighbours on both sides: an average of what came before would lag."""
    half = _half(len(losses))
    return [fmean(losses[max(0, at - half) : at + half + 1]) for at in range(len(losses))]


_Suggestion = tuple[float | None, float | None, float | None, str]


def _suggest(rates: Sequence[float], losses: Sequence[float], smooth: Sequence[float]) -> _Suggestion:
    if len(rates) < LEAST_POINTS:
        return None, None, None, f"{len(rates)} losses are too few: {LEAST_POINTS} are needed"
    half = _half(len(rates))
    bottom = min(range(len(smooth)), key=smooth.__getitem__)
    level = median(smooth[: max(2 * half, bottom // 3)])
    fall = level - smooth[bottom]
    noise = pstdev([loss - average for loss, average in zip(losses, smooth, strict=True)][: bottom + 1])
    if bottom < 2 or fall <= noise:
        return None, None, None, f"the loss never falls by more than it varies ({fall:.2g}, {noise:.2g})"
    # Back from the bottom: noise dips before the fall begins, too.
    begun = next((at for at in range(bottom, -1, -1) if smooth[at] > level - _BEGUN * fall), 0)
    slopes = {at: _slope(rates, smooth, at, half) for at in range(begun, bottom)}
    steepest = min(slopes, key=slopes.__getitem__)
    why = f"the loss falls fastest there: from {level:.3g} at {rates[begun]:.1e}, to {smooth[bottom]:.3g}"
    return rates[steepest], rates[begun], rates[bottom], f"{why} at {rates[bottom]:.1e}"


def _slope(rates: Sequence[float], smooth: Sequence[float], at: int, half: int) -> float:
    """Over as much as was averaged."""
    low, high = max(0, at - half), min(len(rates) - 1, at + half)
    return (smooth[high] - smooth[low]) / (log(rates[high]) - log(rates[low]))
