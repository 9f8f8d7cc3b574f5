"""Hooks of these tests, imported in the script's process."""

import itertools
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stoker.scratch import Child


def give_child(child: Child, argument: Any) -> None:
    """Let the script itself report: `import steps; steps.child.progress(1)`."""
    steps = ModuleType("steps")
    steps.child = child  # type: ignore[attr-defined]
    steps.argument = argument  # type: ignore[attr-defined]
    sys.modules["steps"] = steps


def count_updates(child: Child, argument: Any) -> None:
    """Report every optimizer update as a step."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    numbers = itertools.count(1)
    register_optimizer_step_post_hook(lambda *_: child.progress(next(numbers)))


def start_program(child: Child, argument: Any) -> None:
    """Start a program of the hook's own, as the observer does for the process that writes a record."""
    done = subprocess.run([sys.executable, "-c", "print('ours')"], capture_output=True, text=True, check=True)
    child.report("program", said=done.stdout.strip())


def run_itself(child: Child, argument: Any) -> Callable[[Any], None]:
    """Take the running of the script over."""
    return lambda script: child.report("ran", name=script.name)


def break_down(child: Child, argument: Any) -> None:
    """A hook with a fault of its own."""
    raise RuntimeError(f"hook broke: {argument}")
