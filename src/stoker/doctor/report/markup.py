"""HTML put together from values: whatever is not HTML already is escaped."""

from collections.abc import Iterable
from html import escape
from typing import TypeAlias

_VOID = frozenset({"meta", "br", "img"})


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = "str | Iterable[Child] | None"


def tag(name: str, /, *children: Child, **attributes: str | float | None) -> Html:
    """An element. `class_` and `for_` lose their underscore, others have it as a hyphen; None is left out."""
    named = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_figure(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{named}>")
    return Html(f"<{name}{named}>{join(children)}</{name}>")


def join(children: Child) -> Html:
    """Children one after the other."""
    if children is None:
        return Html("")
    if isinstance(children, Html):
        return children
    if isinstance(children, str):
        return Html(escape(children))
    return Html("".join(join(child) for child in children))


def _figure(value: str | float) -> str:
    # Coordinates: a hundredth of a unit is finer than a screen, and a picture has thousands of them.
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
