"""What is done to a module right after the script first imports it."""

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Change = Callable[[ModuleType], None]
Changes = Mapping[str, Change]


def install(changes: Changes) -> None:
    """Apply each change once its module is imported; at once where it is already."""
    late = {}
    for name, change in changes.items():
        if name in sys.modules:
            change(sys.modules[name])
        else:
            late[name] = change
    if late:
        sys.meta_path.insert(0, _Finder(late))


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the others find the module, and puts the change behind its execution."""

    def __init__(self, changes: dict[str, Change]) -> None:
        self._changes = changes

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        change = self._changes.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            self._changes[name] = change
            return None
        spec.loader = _Loader(spec.loader, change)
        return spec


class _Loader(importlib.abc.Loader):
    """The module's own loader, with a change after it."""

    def __init__(self, own: Any, change: Change) -> None:
        self._own = own
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        # Its own loader is what the module shows: some read resources through it.
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        self._own.exec_module(module)
        self._change(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)
