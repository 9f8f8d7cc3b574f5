"""`stoker doctor NOTEBOOK`: its cells as a script, magics, and notebooks that cannot be diagnosed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.doctor import command, notebook
from stoker.doctor.cells import run_cells
from stoker.doctor.notebook import as_script, read_cells
from stoker.errors import CellFailed, DiagnosisFailed, NotebookBroken, ScriptNotFound, StokerError


def write(folder: Path, *cells: str, name: str = "train.ipynb", **more: Any) -> Path:
    """A notebook with those code cells, and text between them."""
    made: list[dict[str, Any]] = [{"cell_type": "markdown", "source": ["# A *title*"]}]
    made += [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    path = folder / name
    path.write_text(json.dumps({"nbformat": 4, "metadata": {}, "cells": made, **more}))
    return path


def run_script(path: Path) -> "subprocess.CompletedProcess[str]":
    with as_script(path) as script:
        return subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False
        )


def test_cells_share_a_namespace_and_the_notebooks_folder(tmp_path: Path) -> None:
    """As in a kernel: modules and files beside the notebook are found, and there is no `__file__`."""
    (tmp_path / "beside.py").write_text("value = 6")
    path = write(
        tmp_path,
        "from __future__ import annotations\nimport beside, os\nx = beside.value",
        "def f(a: Undefined): return a * 7",
        "import asyncio\nawait asyncio.sleep(0)\nprint(f(x), os.getcwd(), '__file__' in globals(), __name__)",
    )
    done = run_script(path)
    assert (done.stdout, done.stderr) == (f"42 {tmp_path} False __main__\n", "")


def test_nothing_is_written_beside_the_notebook(tmp_path: Path) -> None:
    """And what was written elsewhere goes."""
    path = write(tmp_path, "x = 1")
    with as_script(path) as script:
        assert script.exists()
        assert tmp_path not in script.parents
    assert not script.parent.exists()
    assert [one.name for one in tmp_path.iterdir()] == ["train.ipynb"]


def test_magics_run_as_ipython_runs_them(tmp_path: Path) -> None:
    """Line magics, cell magics and shell commands see and change the cells' names."""
    pytest.importorskip("IPython")
    path = write(
        tmp_path,
        "%env STOKER_SAID=yes\n!echo from the shell",
        "%%capture taken\nx = 5\nprint('hidden')",
        "import os\nprint(os.environ['STOKER_SAID'], x, taken.stdout.strip())\ndisplay('shown')",
    )
    done = run_script(path)
    assert done.returncode == 0, done.stderr
    assert "from the shell" in done.stdout
    assert "yes 5 hidden" in done.stdout
    assert "shown" in done.stdout


def test_magics_without_ipython_are_told_by_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which cell, which line, and what to do."""
    monkeypatch.setattr(notebook, "find_spec", lambda name: None)
    path = write(tmp_path, "x = 1", "%matplotlib inline\ny = 2")
    with pytest.raises(NotebookBroken, match=r"cell 2 of .*'%matplotlib inline'.*pip install ipython"):
        read_cells(path)


def test_an_error_names_its_cell(tmp_path: Path) -> None:
    """In the message and in the traceback; and its code can be looked up, as what compiles it does."""
    path = write(
        tmp_path,
        "import inspect",
        "def fails():\n    raise ValueError('no data there')",
        "print(inspect.getsource(fails))\nfails()",
    )
    done = run_script(path)
    assert "CellFailed: cell 3 of train.ipynb: ValueError: no data there" in done.stderr
    assert "train.ipynb, cell 2" in done.stderr
    assert "raise ValueError('no data there')" in done.stdout


def test_a_cell_that_leaves_is_no_failed_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SystemExit is the script's own end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    told = tmp_path / "cells.json"
    cell = {"number": 1, "code": "raise SystemExit(3)", "shell": False}
    told.write_text(json.dumps({"notebook": str(tmp_path / "x.ipynb"), "cells": [cell]}))
    with pytest.raises(SystemExit):
        run_cells(str(told), {})
    told.write_text(json.dumps({"notebook": str(tmp_path / "x.ipynb"), "cells": [{**cell, "code": "1 / 0"}]}))
    with pytest.raises(CellFailed, match=r"cell 1 of x\.ipynb: ZeroDivisionError"):
        run_cells(str(told), {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read as a notebook"),
        ("[]", "has no cells"),
        ('{"nbformat": 3, "worksheets": []}', "nbformat 3.*--nbformat 4"),
        ('{"cells": [], "metadata": {}}', "has no code cells"),
        ('{"cells": [], "metadata": {"kernelspec": {"language": "R"}}}', "is a notebook in r;"),
        ('{"cells": [{"cell_type": "code", "source": "x = ="}]}', r"cell 1 of .* is not Python \(line 1"),
        (
            '{"cells": [{"cell_type": "code", "source": 5}]}',
            "cell 1 of .* has the source 5, which is no text",
        ),
        ('{"cells": [{"cell_type": "code", "source": ["x", 5]}]}', "which is no text: the file was changed"),
        ('{"cells": [{"cell_type": "code", "source": {}}, 5]}', "cell 2 of .* is 5, not an object"),
        ('{"cells": [], "metadata": [1]}', r"metadata of .* is \[1\], not an object"),
        ('{"cells": [], "metadata": {"kernelspec": "python3"}}', "kernelspec of .*, not an object"),
    ],
)
def test_what_is_no_notebook_gets_a_clear_answer(tmp_path: Path, text: str, said: str) -> None:
    """Before anything is run."""
    path = tmp_path / "train.ipynb"
    path.write_text(text)
    with pytest.raises(NotebookBroken, match=said):
        command.diagnose([str(path)], runs=tmp_path / "runs")


@pytest.mark.slow
@pytest.mark.quiet
def test_a_notebook_gets_a_verdict_and_stays_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All experiments are held on its loop, which is called by the notebook's name."""
    path = write(
        tmp_path,
        "import time, torch\nfrom torch.utils.data import DataLoader, Dataset\n"
        "class Naps(Dataset):\n    def __len__(self): return 4000\n"
        "    def __getitem__(self, index):\n        time.sleep(0.005)\n        return torch.ones(8)",
        "model = torch.nn.Linear(8, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        "%%time\nfor epoch in range(20):\n    for batch in DataLoader(Naps(), batch_size=8, num_workers=2):\n"
        "        optimizer.zero_grad(); model(batch).mean().backward(); optimizer.step()",
    )
    before = path.read_bytes()
    command.diagnose([str(path)], runs=tmp_path / ".stoker" / "runs", as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"]["cause"] == "too-few-workers", told
    assert told["ceilings"]["compute"] > 2 * told["rate"]
    page = Path(told["report"]).read_text()
    assert "train.ipynb" in page
    assert "stoker-notebook" not in page
    assert path.read_bytes() == before


def test_no_such_notebook(tmp_path: Path) -> None:
    """With its name."""
    with pytest.raises(ScriptNotFound, match=r"no such notebook: .*absent.ipynb"):
        command.diagnose([str(tmp_path / "absent.ipynb")], runs=tmp_path / "runs")


def test_a_notebook_that_does_not_train_gets_a_clear_answer(tmp_path: Path) -> None:
    """It is called by its own name, and by the cell that failed; no scratch file is named."""
    path = write(tmp_path, "x = 1", "raise ValueError('no data there')")
    with pytest.raises(StokerError) as told:
        command.diagnose([str(path)], runs=tmp_path / "runs", budget=15)
    assert isinstance(told.value, DiagnosisFailed)
    assert str(told.value).startswith(f"{path} made no step")
    assert "cell 2 of train.ipynb: ValueError: no data there" in str(told.value)
    assert "stoker-notebook" not in str(told.value)
