"""`stoker tune --lr`: a sweep of a script's learning rate."""

import json
import sys

from rich.console import Console

from stoker.errors import UsageError
from stoker.tune.lr import find_lr
from stoker.tune.lr_curve import HIGH, LOW, STEPS
from stoker.tune.lr_words import show


def sweep(
    words: list[str],
    *,
    module: bool = False,
    within: str | None = None,
    steps: int | None = None,
    budget: float = 300.0,
    offline: bool = False,
    as_json: bool = False,
) -> None:
    """Sweep, and print what was found."""
    if not words:
        raise UsageError("nothing to sweep: give a script (stoker tune --lr train.py)")
    low, high = _range(within)
    with Console(stderr=True).status("the learning rate rises from step to step"):
        curve = find_lr(
            ["-m", *words] if module else words,
            low=low,
            high=high,
            steps=STEPS if steps is None else steps,
            seconds=budget,
            offline=offline,
        )
    if as_json:
        json.dump(curve.to_json(), sys.stdout)
        sys.stdout.write("\n")
    else:
        show(curve, Console())


def _range(within: str | None) -> tuple[float, float]:
    if within is None:
        return LOW, HIGH
    low, _, high = within.partition(":")
    try:
        return float(low), float(high)
    except ValueError:
        raise UsageError(f"--lr-range {within}: give two rates, as in 1e-6:1") from None
