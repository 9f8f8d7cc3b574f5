"""`stoker.Watch` in a real Jupyter kernel: cells, their output, and what is left when a cell fails."""

import re
from pathlib import Path
from typing import Any

import pytest

from stoker.watch import Record

nbclient: Any = pytest.importorskip("nbclient")
nbformat: Any = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

pytestmark = [
    pytest.mark.service,
    # zmq's and jupyter's own, on the client's side.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:unclosed event loop:ResourceWarning"),
]

SET_UP = """
import time, torch, stoker
from torch.utils.data import DataLoader, Dataset

class Naps(Dataset):
    def __len__(self): return 60
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.ones(8)

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(batch):
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
    time.sleep(0.02)
"""


def run_cells(folder: Path, *cells: str, allow_errors: bool = False) -> list[Any]:
    """Execute the cells in one kernel; return each one's outputs."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (SET_UP, *cells)])
    client = nbclient.NotebookClient(
        notebook,
        timeout=60,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        allow_errors=allow_errors,
    )
    client.execute()
    return [cell.outputs for cell in notebook.cells[1:]]


def test_a_loop_in_a_cell_is_observed_and_shown(tmp_path: Path) -> None:
    """Two epochs over Watch(loader): the cell's value is a table whose wait is the naps' share."""
    _, shown, closed = run_cells(
        tmp_path,
        "watch = stoker.Watch(DataLoader(Naps(), batch_size=4))\n"
        "for _ in range(2):\n"
        "    for batch in watch:\n"
        "        train(batch)\n",
        "time.sleep(1.1)  # the recorder writes twice a second\nwatch",
        "watch.close()",
    )
    assert closed == []
    html = shown[0]["data"]["text/html"]
    share = re.search(r">wait</th><td>(\d+)%", html)
    assert share is not None, html
    assert 45 <= int(share.group(1)) <= 56  # 20 ms of naps against 20 ms of the loop
    assert "epoch" in html or "step 30" in html
    record = Record.open("latest", root=tmp_path / ".stoker" / "runs")
    assert (record.ranks[0].about["steps"], record.ranks[0].about["outcome"]) == (30, "done")
    assert len(list(record.ranks[0].steps())) == 30


def test_a_cell_that_fails_leaves_a_record_and_the_next_watch_works(tmp_path: Path) -> None:
    """A cell's error ends a `with` as failed; another Watch in the same kernel starts afresh."""
    first, _ = run_cells(
        tmp_path,
        "with stoker.Watch(model=model, optimizer=optimizer, name='first'):\n"
        "    for at, batch in enumerate(DataLoader(Naps(), batch_size=4)):\n"
        "        train(batch)\n"
        "        if at == 4: raise RuntimeError('stopped in the cell')\n",
        "with stoker.Watch(DataLoader(Naps(), batch_size=4), name='second') as second:\n"
        "    for batch in second:\n"
        "        train(batch)\n",
        allow_errors=True,
    )
    assert first[0]["ename"] == "RuntimeError"
    runs = tmp_path / ".stoker" / "runs"
    by_name = {record.about["name"]: record for record in map(Record.open, runs.iterdir())}
    assert by_name["first"].ranks[0].about["outcome"] == "failed"
    assert by_name["first"].ranks[0].about["error"] == "RuntimeError: stopped in the cell"
    assert by_name["second"].ranks[0].about["outcome"] == "done"
    assert {name: record.ranks[0].about["steps"] for name, record in by_name.items()} == {
        "first": 5,
        "second": 15,
    }


def test_a_loop_that_makes_its_own_batches_is_timed_by_loading(tmp_path: Path) -> None:
    """Without a DataLoader, `watch.loading()` is the wait; before it begins, the Watch says so."""
    shown, html = run_cells(
        tmp_path,
        "watch = stoker.Watch(model=model, optimizer=optimizer)\nwatch",
        "with watch:\n"
        "    for _ in range(15):\n"
        "        with watch.loading(samples=4):\n"
        "            time.sleep(0.02); batch = torch.ones(4, 8)\n"
        "        train(batch)\n"
        "watch",
    )
    assert "not begun" in shown[0]["data"]["text/html"]
    share = re.search(r">wait</th><td>(\d+)%", html[0]["data"]["text/html"])
    assert share is not None
    assert 45 <= int(share.group(1)) <= 56


def test_what_lies_between_cells_is_not_the_run_s_time(tmp_path: Path) -> None:
    """A pause between two cells of one loop is in no step, and does not slow the sustained rate."""
    epoch = "for batch in watch:\n    train(batch)\n"
    *_, shown = run_cells(
        tmp_path,
        f"watch = stoker.Watch(DataLoader(Naps(), batch_size=4))\n{epoch}",
        "time.sleep(3)",
        epoch,
        "watch.close()\n"
        "tally = watch._session.account.tally\n"
        "print(max(step.seconds for step in watch.record.ranks[0].steps()), tally.sustained / tally.burst)",
    )
    longest, ratio = map(float, shown[0]["text"].split())
    assert longest < 2
    assert ratio > 0.7
