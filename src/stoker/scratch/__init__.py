"""A child process that harms nothing: a user's script, bounded, guarded, behind a write shield.

plan = Plan(command=("train.py",), hook="my.hooks:count_steps", limits=Limits(steps=300, seconds=90))
result = run(plan)
print(result.outcome, result.reason, result.shield)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["Child", "Guards", "Limits", "Message", "Plan", "Result", "Running", "Shield", "run", "start"]

if TYPE_CHECKING:
    from stoker.scratch.child import Child
    from stoker.scratch.launch import Running, run, start
    from stoker.scratch.values import Guards, Limits, Message, Plan, Result, Shield

_HOMES = {
    "Child": "child",
    "Running": "launch",
    "run": "launch",
    "start": "launch",
    **dict.fromkeys(("Guards", "Limits", "Message", "Plan", "Result", "Shield"), "values"),
}


def __getattr__(name: str) -> Any:
    # Lazily: the supervisor imports this package and needs none of them.
    if name not in _HOMES:
        raise AttributeError(
            f"module 'stoker.scratch' has no attribute {name!r}; it offers {', '.join(__all__)}"
        )
    return getattr(import_module(f"stoker.scratch.{_HOMES[name]}"), name)
