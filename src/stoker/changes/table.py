"""The table of changes in `docs/tune.md`, made from the changes: `python -m stoker.changes.table`."""

import sys

from stoker.changes.catalogue import ALL
from stoker.changes.change import Change, Choice, Kind, Switch, Values, Whole

# How a kind is asked for.
_ASKED: dict[Kind, str] = {
    "same": "tried unasked",
    "redraw": "tried unasked, not with `--strict`",
    "numerics": "`--allow numerics`",
    "optimization": "by hand",
}
# What is never tried of a change, beside what its kind says.
_BY_HAND = {
    "autocast": '`--allow numerics`; `"fp16"` by hand',
    "compile": '`--allow numerics`; `"max-autotune"` and the last by hand',
    "feed": '`"vram"` and `"ram"` tried unasked, the others by hand',
    "micro_batch": "`--allow numerics`; with BatchNorm `--allow optimization` too",
}


def table() -> str:
    """Every change, in a row: what it may be, what it does, its kind, and how to ask for it."""
    rows = ["| change | value | what it does | kind | how to ask for it |", "|---|---|---|---|---|"]
    rows += [_row(one) for one in ALL.values()]
    return "\n".join(rows) + "\n"


def _row(one: Change) -> str:
    asked = _BY_HAND.get(one.id, _ASKED[one.kind])
    return f"| `{one.id}` | {_values(one.values)} | {one.text} | `{one.kind}` | {asked} |"


def _values(values: Values) -> str:
    if isinstance(values, Choice):
        return ", ".join(f'`"{word}"`' for word in values.words)
    if isinstance(values, Switch):
        return "`true`, `false`"
    if isinstance(values, Whole):
        return f"{values.least:,} to {values.most:,}"
    return "see its file"


if __name__ == "__main__":
    sys.stdout.write(table())
