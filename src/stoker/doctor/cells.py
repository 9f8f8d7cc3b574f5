"""In a notebook's scratch run: its cells one after the other in one namespace; an error names its cell.

As in a kernel: the working folder is the notebook's, `__file__` is not set, `from __future__` lasts from cell
to cell, `await` may stand outside of functions. No picture is shown, and nothing is asked.
"""

import ast
import asyncio
import inspect
import json
import linecache
import os
import sys
from codeop import Compile
from pathlib import Path
from typing import Any

from stoker.errors import CellFailed


def run_cells(told: str, namespace: dict[str, Any]) -> None:
    """Run those that a file tells of."""
    plan = json.loads(Path(told).read_text())
    notebook = Path(plan["notebook"])
    os.chdir(notebook.parent)
    sys.path[0] = str(notebook.parent)
    namespace.pop("__file__", None)
    os.environ.setdefault("MPLBACKEND", "agg")  # a window would wait for somebody to close it
    if any(cell["shell"] for cell in plan["cells"]):
        _start_shell(namespace)
    compiler = Compile()
    compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    for cell in plan["cells"]:
        _run(cell, notebook.name, compiler, namespace)


def _run(cell: dict[str, Any], notebook: str, compiler: Compile, namespace: dict[str, Any]) -> None:
    name, code = f"{notebook}, cell {cell['number']}", cell["code"]
    # So that tracebacks and `inspect.getsource` show its lines.
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    try:
        value = eval(compiler(code, name, "exec"), namespace)
        if inspect.iscoroutine(value):
            asyncio.run(value)
    except Exception as error:
        said = f"cell {cell['number']} of {notebook}: {type(error).__name__}: {error}"
        raise CellFailed(said) from error


def _start_shell(namespace: dict[str, Any]) -> None:
    """IPython's shell over this namespace: what magics and `display` need."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.display import display
    from traitlets.config import Config

    quiet = Config()
    quiet.HistoryManager.enabled = False
    InteractiveShell.instance(config=quiet, user_module=sys.modules["__main__"], user_ns=namespace)
    namespace["display"] = display
