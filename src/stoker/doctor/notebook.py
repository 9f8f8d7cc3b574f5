"""A notebook as a script: its code cells, in a folder of their own, run one after the other (`cells.py`)."""

import ast
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stoker.errors import NotebookBroken, ScriptNotFound

# Lines that are IPython's and no Python: magics, shell commands, questions.
_MAGIC = re.compile(r"^\s*(%|!|\?)|\?\s*$")
# Characters of what is wrong in a file, as it is shown.
_SHOWN = 60
_SCRIPT = """from stoker.doctor.cells import run_cells

run_cells({cells!r}, globals())
"""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A code cell as Python. `number` counts code cells from 1, as a notebook run from the top does.

    `shell`: it needs IPython's.
    """

    number: int
    code: str
    shell: bool


@contextmanager
def as_script(path: Path) -> Iterator[Path]:
    """The notebook as a script, for as long as this lasts; nothing is written beside it."""
    cells = read_cells(path)
    with tempfile.TemporaryDirectory(prefix="stoker-notebook-") as folder:
        told = Path(folder) / "cells.json"
        told.write_text(
            json.dumps({"notebook": str(path.absolute()), "cells": [asdict(cell) for cell in cells]})
        )
        script = Path(folder) / f"{path.stem}.py"
        script.write_text(_SCRIPT.format(cells=str(told)))
        yield script


def read_cells(path: Path) -> list[Cell]:
    """A notebook's code cells, magics put into Python where IPython is there to do it."""
    sources = _sources(path)
    cells = [_cell(number, source, path) for number, source in enumerate(sources, 1) if source.strip()]
    if not cells:
        raise NotebookBroken(f"{path} has no code cells: there is nothing to diagnose in it")
    return cells


def _sources(path: Path) -> list[str]:
    if not path.exists():
        raise ScriptNotFound(f"no such notebook: {path} (looked in {Path.cwd()}); check the path")
    try:
        told: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NotebookBroken(
            f"{path} cannot be read as a notebook ({error}): open and save it again"
        ) from error
    if not isinstance(told, dict) or not isinstance(told.get("cells"), list):
        raise NotebookBroken(
            f"{path} has no cells (nbformat {told.get('nbformat') if isinstance(told, dict) else None}): "
            "the doctor reads nbformat 4; convert it with jupyter nbconvert --to notebook --nbformat 4"
        )
    language = _language(told, path)
    if language != "python":
        raise NotebookBroken(f"{path} is a notebook in {language}; the doctor runs Python")
    cells = [_object(cell, f"cell {number}", path) for number, cell in enumerate(told["cells"], 1)]
    return [
        _source(cell.get("source"), number, path)
        for number, cell in enumerate(cells, 1)
        if cell.get("cell_type") == "code"
    ]


def _object(told: Any, name: str, path: Path) -> dict[str, Any]:
    """A part of the file that is one by the format; none of it is none of what it may hold."""
    if told is not None and not isinstance(told, dict):
        raise NotebookBroken(
            f"{name} of {path} is {json.dumps(told)[:_SHOWN]}, not an object: the file was changed or "
            "damaged; open the notebook and save it again"
        )
    return told or {}


def _source(told: Any, number: int, path: Path) -> str:
    """A cell's text: a string, or lines."""
    lines = told if isinstance(told, list) else [told or ""]
    if not all(isinstance(line, str) for line in lines):
        raise NotebookBroken(
            f"cell {number} of {path} has the source {json.dumps(told)[:_SHOWN]}, which is no text: the file "
            "was changed or damaged; open the notebook and save it again"
        )
    return "".join(lines)


def _language(told: dict[str, Any], path: Path) -> str:
    about = _object(told.get("metadata"), "metadata", path)
    info = _object(about.get("language_info"), "language_info", path)
    kernel = _object(about.get("kernelspec"), "kernelspec", path)
    return str(info.get("name") or kernel.get("language") or "python").lower()


def _cell(number: int, source: str, path: Path) -> Cell:
    wrong = _syntax_error(source)
    if wrong is None:
        # Names that a kernel gives and Python does not.
        needs = "get_ipython" in source or "display(" in source
        return Cell(number=number, code=source, shell=needs and find_spec("IPython") is not None)
    magic = next((line.strip() for line in source.splitlines() if _MAGIC.search(line)), None)
    if magic is not None and find_spec("IPython") is None:
        raise NotebookBroken(
            f"cell {number} of {path} has the line {magic!r}, which IPython runs and Python does not: "
            "pip install ipython, or take it out"
        )
    if magic is not None:
        from IPython.core.inputtransformer2 import TransformerManager

        code = str(TransformerManager().transform_cell(source))
        wrong = _syntax_error(code)
        if wrong is None:
            return Cell(number=number, code=code, shell=True)
    raise NotebookBroken(
        f"cell {number} of {path} is not Python (line {wrong.lineno}: {wrong.msg}): "
        "correct it, or make it a Markdown cell"
    )


def _syntax_error(source: str) -> SyntaxError | None:
    try:
        compile(source, "cell", "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        return error
    return None
