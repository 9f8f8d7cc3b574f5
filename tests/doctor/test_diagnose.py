"""`stoker.diagnose()` on a loop of this process, in a Jupyter kernel and at a prompt."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

nbclient: Any = pytest.importorskip("nbclient")
nbformat: Any = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

SET_UP = """
import random, time, torch, stoker
from torch.utils.data import DataLoader, Dataset

class Naps(Dataset):
    def __len__(self): return 400
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((8,), float(index)) + random.random()

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = DataLoader(Naps(), batch_size=4, shuffle=True)

def train(batch):
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
"""


def run(folder: Path, text: str) -> "subprocess.CompletedProcess[str]":
    """A process in which the set-up stands before."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", SET_UP + text],
        cwd=folder, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


@pytest.mark.service
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # zmq's and jupyter's own, on the client's side
@pytest.mark.filterwarnings("ignore:unclosed event loop:ResourceWarning")
def test_a_cell_shows_the_report(tmp_path: Path) -> None:
    """After some steps, while the Watch goes on; before them it says what is missing."""
    cells = [
        SET_UP + "try:\n    stoker.diagnose()\nexcept stoker.errors.UsageError as error:\n    print(error)",
        "watch = stoker.Watch(loader)\nfor at, batch in enumerate(watch):\n    train(batch)\n"
        "    if at == 50: break",
        "stoker.diagnose()",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(
        book, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    first, _, shown = [cell.outputs for cell in book.cells]
    assert "nothing has been observed in this process yet" in first[0]["text"]
    page = shown[0]["data"]["text/html"]
    assert page.startswith('<div class="stoker-report">')
    assert "of every training step is lost" in page
    assert "From a record alone" in page
    assert "no-overlap" in shown[0]["data"]["text/plain"]


def test_a_diagnosis_leaves_the_training_as_it_was(tmp_path: Path) -> None:
    """The same weights and draws with and without one in the middle that drains the loader too."""
    done = run(
        tmp_path,
        """
def trained(asks):
    global model, optimizer
    torch.manual_seed(1); random.seed(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    watch = stoker.Watch(loader)
    for at, batch in enumerate(watch):
        train(batch)
        if at == 20 and asks:
            found = stoker.diagnose(drain=loader)
            assert 'loader alone' in repr(found)
            assert found.diagnosis.evidence.loader is not None
        if at == 40: break
    watch.close()
    steps = list(watch.record.ranks[0].steps())
    assert len(steps) == 41 and max(step.seconds for step in steps[1:]) < 1, steps
    return model.weight.tolist(), torch.rand(1).item(), random.random()

assert trained(asks=True) == trained(asks=False)

import numpy
class Buckets(torch.utils.data.Sampler):
    def __init__(self):
        self.torch = torch.Generator().manual_seed(1)
        self.python, self.numpy = random.Random(1), numpy.random.default_rng(1)
        self.old = numpy.random.RandomState(1)
    def __iter__(self):
        for _ in range(9):
            drawn = torch.randint(100, (1,), generator=self.torch).item(), self.python.randrange(100)
            yield [*drawn, int(self.numpy.integers(100)), self.old.randint(100)]
class Through(Buckets):
    def __init__(self): self.inner = Buckets()
    def __iter__(self): yield from self.inner

for kind in (Buckets, Through):
    class Noisy(Naps):
        noise = None
        def __getitem__(self, index):
            return torch.full((8,), float(index)) + self.noise.random()
    def drawn(asks):
        data = Noisy(); data.noise = random.Random(1)
        own = DataLoader(data, batch_sampler=kind())
        if asks: stoker.diagnose(drain=own)
        return [batch.tolist() for batch in own]
    assert drawn(asks=True) == drawn(asks=False), kind
""",
    )
    assert done.returncode == 0, done.stderr


def test_a_watch_that_has_ended_can_be_diagnosed_and_written(tmp_path: Path) -> None:
    """Of the last Watch, of one by itself, of a record by its name; what cannot be gets a clear answer."""
    done = run(
        tmp_path,
        """
def refused(said, *args, **kwargs):
    try:
        stoker.diagnose(*args, **kwargs)
    except stoker.errors.StokerError as error:
        assert said in str(error), error
    else:
        raise AssertionError(said)

refused('nothing has been observed in this process yet')
refused('nothing has been observed', stoker.Watch(loader))
refused('no record at absent', 'absent')
with stoker.Watch(torch.ones(4, 8) for _ in range(4)) as made:  # no loader was observed before
    for batch in made: train(batch)
    helped = DataLoader(torch.utils.data.TensorDataset(torch.ones(40, 8)), batch_size=4, num_workers=1)
    assert stoker.diagnose(drain=helped).diagnosis.evidence.loader is not None
with stoker.Watch(loader) as watch:
    refused('fewer than 2 steps')
    refused('drain takes a DataLoader, not list', drain=[1])
    for batch in watch: train(batch)
text = repr(stoker.diagnose())
assert 'no-overlap' in text, text
assert repr(stoker.diagnose(watch)).splitlines()[0] == text.splitlines()[0]
found = stoker.diagnose('latest')
print(found.write())
print(found.write('it.md'))
assert found.markdown().startswith('## ')
assert found.to_json()['verdict']['cause'] in text
""",
    )
    assert done.returncode == 0, done.stderr
    page, text = done.stdout.split()
    assert "of every training step is lost" in Path(page).read_text()
    assert (tmp_path / "it.md").samefile(text)


def test_a_watch_in_a_diagnosed_script_joins_its_session(tmp_path: Path) -> None:
    """The script may hold a Watch of its own; the doctor's is the one that observes."""
    done = run(
        tmp_path,
        "from pathlib import Path\nfrom stoker.watch.launcher import adopt\n"
        "from stoker.watch.session import Plan, Session\n"
        "session = Session(Plan(name='doctor', root=Path('elsewhere')))\nsession.start()\nadopt(session)\n"
        "watch = stoker.Watch(loader)\nfor batch in watch: train(batch)\n"
        "watch.close()\nsession.finish('done')\n"
        "assert watch.record.folder == session.folder\nprint(len(list(watch.record.ranks[0].steps())))\n",
    )
    assert (done.stdout, done.stderr) == ("100\n", "")
