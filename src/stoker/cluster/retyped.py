"""A command as it was typed, for a child process: its words made again from what was parsed."""

from collections.abc import Collection
from typing import Any


def retype(context: Any, *, without: Collection[str] = (), **other: Any) -> tuple[str, ...]:
    """The words after `stoker VERB`, without some of its parameters, with other values for some.

    Options come first: what follows a script is the script's own.
    """
    options: list[str] = []
    arguments: list[str] = []
    for one in context.command.params:
        value = other.get(one.name, context.params.get(one.name))
        if one.name in without or value is None:
            continue
        if isinstance(value, bool):
            names = one.opts if value else one.secondary_opts
            options += names[:1]
            continue
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        if one.param_type_name == "argument":
            arguments += [str(word) for word in values]
        else:
            # In one word: a value may begin with a dash.
            options += [f"{one.opts[0]}={word}" for word in values]
    return (*options, *arguments)
