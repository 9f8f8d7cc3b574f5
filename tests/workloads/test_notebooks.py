"""The example notebooks run headless, from the check to the picture."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[2] / "examples"


def outputs(notebook: Any) -> str:
    """All that was printed or returned, and the kinds of what was drawn."""
    told: list[str] = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            told.append(output.get("text", ""))
            for kind, data in output.get("data", {}).items():
                told += [kind, data if kind == "text/plain" else ""]
    return "\n".join(told)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["residual", "attention"])
def test_a_notebook_runs_from_check_to_picture(tmp_path: Path, model: str) -> None:
    """It tells the rate as it trains, goes on from its checkpoint when it is asked again, and learns."""
    notebook = nbformat.read(EXAMPLES / f"train_{model}.ipynb", as_version=4)
    client = NotebookClient(
        notebook, timeout=170, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    told = outputs(notebook)
    assert "samples/s" in told
    assert "goes on from step 180 of 180" in told
    assert "went on from step 180 of 180" in told
    assert "image/png" in told
    psnr, mean = (float(told.partition(mark)[2].split()[0]) for mark in ("\nPSNR ", "predicting the mean: "))
    assert psnr > mean + 1
    assert (tmp_path / "runs" / f"{model}_v1_c16" / "reconstructions.png").exists()


def test_the_notebooks_hold_no_outputs() -> None:
    """They are kept as they are before they are run."""
    for path in EXAMPLES.glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
