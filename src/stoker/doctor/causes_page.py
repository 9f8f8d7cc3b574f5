"""`docs/causes.md`, made from the cause files: `python -m stoker.doctor.causes_page > docs/causes.md`."""

import sys

from stoker.doctor.causes import ALL


def page() -> str:
    """Every cause that is judged: what it is, how that is told, what cures it."""
    parts = [
        "# The causes that the doctor judges\n",
        "Made from `src/stoker/doctor/causes/` by `python -m stoker.doctor.causes_page`; do not edit."
        " [How a verdict is reached](doctor.md).\n",
    ]
    for cause in sorted(ALL, key=lambda one: str(one.ID)):
        parts.append(f"## {cause.ID}\n\n{(cause.__doc__ or '').strip()}\n")
        parts.append(f"Told {_lower((cause.judge.__doc__ or '').strip())}\n")
        for cure in cause.CURES:
            risk = f" Mind: {cure.risk}." if cure.risk else ""
            kind = "" if cure.kind == "same" else f" (kind: {cure.kind})"
            parts.append(f"- `{cure.change}`{kind}: {cure.text}.{risk}")
        parts.append("")
    return "\n".join(parts)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


if __name__ == "__main__":
    sys.stdout.write(page())
