"""Figures in words, for warnings and views. What was not measured reads n/a."""

NOT_MEASURED = "n/a"


def size(count: int | float | None) -> str:
    """Say a number of bytes: 1536 is "1.5 KiB"."""
    if count is None:
        return NOT_MEASURED
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def ago(seconds: float | None) -> str:
    """Say a span of time in its one largest unit: 7300 s is "2 h"."""
    if seconds is None:
        return NOT_MEASURED
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def shorten(text: str, width: int) -> str:
    """Put a command on one line, and cut it where it is long: scripts stand whole in `python -c`."""
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= width else f"{one_line[: width - 1]}…"


def number(value: float | None, unit: str = "", digits: int = 0) -> str:
    """Say a number with its unit."""
    if value is None:
        return NOT_MEASURED
    return f"{value:.{digits}f} {unit}".rstrip()


def yes(value: bool | None) -> str:
    """Say a truth."""
    return NOT_MEASURED if value is None else ("yes" if value else "no")
