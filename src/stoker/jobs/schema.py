"""A config's JSON schema, from its dataclass: types, defaults, choices, bounds, and the comments as help.

Nested configs are nested objects, with nothing referred to, so that a form can be made by walking it.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from stoker.errors import UsageError
from stoker.train.config_file import to_values

_TYPES: dict[Any, str] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    Path: "string",
    type(None): "null",
}


def schema_of(config: Any) -> dict[str, Any]:
    """The schema of a config, whose own values are the defaults."""
    kind = type(config)
    hints, help_texts, defaults = get_type_hints(kind), comments_of(kind), to_values(config)
    properties = {}
    for entry in dataclasses.fields(config):
        value = getattr(config, entry.name)
        if dataclasses.is_dataclass(value):
            told = schema_of(value)
        else:
            told = {**_of_type(hints[entry.name]), "default": defaults[entry.name]}
            told |= _bounds(config, entry.name, hints[entry.name])
        if entry.name in help_texts:
            told["description"] = help_texts[entry.name]
        properties[entry.name] = told
    return {
        "type": "object",
        "title": kind.__name__,
        "description": inspect.cleandoc(kind.__doc__ or "").partition("\n")[0],
        "properties": properties,
        "additionalProperties": False,
    }


def comments_of(kind: type[Any]) -> dict[str, str]:
    """What the comment above each field of a dataclass says, or the string below it."""
    source = textwrap.dedent(inspect.getsource(kind))
    lines = source.splitlines()
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for node, after in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            told = " ".join(reversed(list(_comment_above(lines, node.lineno - 1))))
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                told = str(after.value.value)
            if told:
                found[node.target.id] = told
    return found


def _comment_above(lines: list[str], at: int) -> Iterator[str]:
    """The lines of a comment that ends above a line, last one first."""
    while at > 0 and (line := lines[at - 1].strip()).startswith("#"):
        yield line.lstrip("# ")
        at -= 1


def _of_type(kind: Any) -> dict[str, Any]:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_of_type(one) for one in inner]}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is tuple:
        if inner[-1] is Ellipsis:
            return {"type": "array", "items": _of_type(inner[0])}
        return {"type": "array", "items": _of_type(inner[0]), "minItems": len(inner), "maxItems": len(inner)}
    return {"type": _TYPES[kind]}


def _bounds(config: Any, name: str, kind: Any) -> dict[str, Any]:
    """The least number that the config's own checks let through, found by asking them."""
    if kind is int:
        if _refuses(config, name, 0):
            return {} if _refuses(config, name, 1) else {"minimum": 1}
        return {"minimum": 0} if _refuses(config, name, -1) else {}
    if kind is float:
        if _refuses(config, name, 0.0):
            return {} if _refuses(config, name, 1e-9) else {"exclusiveMinimum": 0}
        return {"minimum": 0} if _refuses(config, name, -1.0) else {}
    return {}


def _refuses(config: Any, name: str, value: float) -> bool:
    """Whether a value is wrong by itself; a refusal that names another setting too bounds neither."""
    try:
        dataclasses.replace(config, **{name: value})
    except UsageError as error:
        return bool(re.match(rf"(\w+\.)*{name} is \S+: ", str(error)))
    return False
