"""A user's script or module, found as Python would find it.

Without torch, which takes 1.4 s of a process to import: a script in a scratch run may not need it.
"""

import importlib.util
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any

from stoker.errors import NotPermitted, ScriptNotFound


@dataclass(frozen=True, kw_only=True)
class Script:
    """What to run: code, and how its module and arguments look."""

    argv: list[str]
    code: Callable[[], types.CodeType]
    file: str
    spec: ModuleSpec | None
    loader: Any
    path0: str
    package: str | None

    @property
    def name(self) -> str:
        """What to call the run."""
        return self.spec.name if self.spec is not None else Path(self.file).stem


def find_script(path: str, args: list[str]) -> Script:
    """A script by its path, as `python path args`. A folder or zip with a `__main__.py` is not taken."""
    file = Path(path)
    if not file.exists():
        raise ScriptNotFound(
            f"no such script: {path} (looked in {Path.cwd()}); check the path, or use -m MODULE"
        )
    if file.is_dir():
        raise ScriptNotFound(f"{path} is a folder, not a script; name the file in it that trains")
    if not os.access(file, os.R_OK):
        raise NotPermitted(f"{path} may not be read: check its permissions")
    full = str(file.absolute())
    loader = SourceFileLoader("__main__", full)
    return Script(
        argv=[path, *args],
        code=lambda: compile(file.read_bytes(), full, "exec", dont_inherit=True),
        file=full,
        spec=None,
        loader=loader,
        path0=str(Path(full).resolve().parent),
        package=None,
    )


def find_module(name: str, args: list[str]) -> Script:
    """A module by its name, as `python -m name args`."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError:
        spec = None
    finally:
        sys.path.pop(0)
    if spec is None or spec.origin is None or not hasattr(spec.loader, "get_code"):
        raise ScriptNotFound(
            f"no module {name} to run (looked from {Path.cwd()}); check the name and the folder"
        )
    found, loader = spec, spec.loader

    def code() -> types.CodeType:
        made = loader.get_code(found.name)  # type: ignore[union-attr]
        if made is None:
            raise ScriptNotFound(f"module {name} has no Python code to run")
        return made  # type: ignore[no-any-return]

    return Script(
        argv=[str(spec.origin), *args],
        code=code,
        file=str(spec.origin),
        spec=spec,
        loader=loader,
        path0=str(Path.cwd()),
        package=spec.parent,
    )
