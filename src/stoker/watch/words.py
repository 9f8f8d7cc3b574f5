"""Figures as a reader sees them; what was not measured reads `n/a`."""

from math import isfinite

NA = "n/a"


def duration(seconds: float | None) -> str:
    """`1.2 ms`, `3.4 s`, `2 m 05 s`, `3 h 07 m`, `2 d 04 h`; `n/a` for what never came to an end."""
    if seconds is None or not isfinite(seconds):
        return NA
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if hours < 1:
        return f"{minutes} m {int(seconds) % 60:02d} s"
    if hours < 24:
        return f"{hours} h {minutes % 60:02d} m"
    return f"{hours // 24} d {hours % 24:02d} h"


def percent(share: float | None) -> str:
    """A share of 1 as `41%`; small ones with a digit."""
    if share is None:
        return NA
    return f"{share * 100:.1f}%" if 0 < share < 0.0995 else f"{share * 100:.0f}%"


def figure(value: float) -> str:
    """Three digits, and never a power of ten: `7,430`, `58.3`, `0.125`."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def rate(per_second: float | None, unit: str) -> str:
    """`14.2 steps/s`; `9.1 s/step` where that reads better."""
    if per_second is None:
        return f"{NA} {unit}s/s"
    if 0 < per_second < 0.5:
        return f"{1 / per_second:.1f} s/{unit}"
    digits = 0 if per_second >= 1000 else 1 if per_second >= 10 else 2
    return f"{per_second:,.{digits}f} {unit}s/s"
