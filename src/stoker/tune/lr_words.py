"""A sweep as text for a terminal."""

from math import isfinite

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stoker.tune.lr_curve import Curve

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH, _ROWS = 60, 9


def show(curve: Curve, console: Console) -> None:
    """Print it."""
    if curve.lr is None:
        console.print(f"[bold]no learning rate is suggested[/]: {escape(curve.why)}", highlight=False)
    else:
        within = f"{curve.low:.1e} to {curve.high:.1e}"
        console.print(
            f"[bold]learning rate {curve.lr:.2g}[/] ({within}): {escape(curve.why)}", highlight=False
        )
    if len(curve.ratios) > 1:
        ratios = ", ".join(f"{ratio:.3g}" for ratio in curve.ratios)
        console.print(f"of the first group; all groups, as they stand to it: {ratios}", highlight=False)
    console.print(f"{sparkline(curve.smooth)}  the loss, averaged", highlight=False)
    console.print(f"{curve.rates[0]:<{min(_WIDTH, len(curve.smooth)) - 7}.1e}{curve.rates[-1]:.1e}")
    console.print(_table(curve))
    console.print(f"stopped: {escape(curve.stopped)}; {len(curve.rates)} steps", highlight=False)
    for note in curve.notes:
        console.print(f"note: {escape(note)}", style="dim", highlight=False, soft_wrap=True)


def sparkline(values: tuple[float, ...], width: int = _WIDTH) -> str:
    """A bar for each value, or for as many of them as fit; what is far above the first is cut off there."""
    if not values:
        return ""
    step = max(1.0, len(values) / width)
    chosen = [values[int(at * step)] for at in range(min(width, len(values)))]
    low = min(chosen)
    top = max(values[0], low) + 0.2 * abs(values[0] - low)
    span = (top - low) or 1.0
    return "".join(_BARS[min(7, int(7.99 * (value - low) / span))] for value in chosen)


def _table(curve: Curve) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("rate", "loss", "averaged"):
        table.add_column(name, justify="right")
    last = len(curve.rates) - 1
    for at in sorted({round(last * row / (_ROWS - 1)) for row in range(_ROWS)}):
        loss = curve.losses[at]
        averaged = f"{curve.smooth[at]:.4g}" if at < len(curve.smooth) else "n/a"
        table.add_row(f"{curve.rates[at]:.1e}", f"{loss:.4g}" if isfinite(loss) else str(loss), averaged)
    return table
