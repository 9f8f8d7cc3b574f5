"""`stoker doctor` on real scripts, as a new user would: the verdict, the user's files, and wrong requests."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from typer import BadParameter

from stoker.doctor.verb import check_seconds
from stoker.watch.record import Writer

HEAD = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
torch.set_num_threads(1)

class Items(Dataset):
    def __len__(self): return 4000
    def __getitem__(self, index):
        time.sleep({item})
        return torch.full((64,), float(index))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 1)
    def forward(self, x):
        time.sleep({forward})
        return self.layer(x)

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
"""
LOOP = """
if __name__ == "__main__":
    for epoch in range(50):
        for x in DataLoader(Items(), batch_size={batch}, num_workers={workers}):
            optimizer.zero_grad()
            net(x).pow(2).mean().backward()
            optimizer.step()
"""


def script(folder: Path, *, item: float, forward: float, batch: int, workers: int, tail: str = LOOP) -> Path:
    path = folder / "train.py"
    path.write_text((HEAD + tail).format(item=item, forward=forward, batch=batch, workers=workers))
    return path


def doctor(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "stoker", "doctor", "--json", *words],
        cwd=folder, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip


def refused(folder: Path, *words: str, verb: str = "doctor") -> str:
    """What is said of wrong use, in one line."""
    done = subprocess.run(
        [sys.executable, "-m", "stoker", verb, *words],
        cwd=folder, capture_output=True, text=True, timeout=150, check=False,
        env={**os.environ, "COLUMNS": "400"},
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    return " ".join(done.stderr.split())


def told(folder: Path, *words: str) -> dict[str, Any]:
    done = doctor(folder, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.quiet
def test_more_workers_are_named_where_they_help(tmp_path: Path) -> None:
    """Samples that take 5 ms off the CPU each, 2 workers; the rate grows with workers, and that is shown."""
    script(tmp_path, item=0.005, forward=0.003, batch=8, workers=2)
    found = told(tmp_path, "train.py")
    assert found["verdict"]["cause"] == "too-few-workers", found
    assert found["ceilings"]["compute"] > 2 * found["rate"]
    assert found["shield"] == "full" or found["notes"]


@pytest.mark.quiet
@pytest.mark.slow  # the ward's no-overlap cases show the same
def test_a_loop_that_makes_its_own_batches_is_told_of_overlap(tmp_path: Path) -> None:
    """Loader and model take about as long; one after the other they take the sum."""
    script(tmp_path, item=0.001, forward=0.012, batch=8, workers=0)
    found = told(tmp_path, "train.py")
    assert found["verdict"]["cause"] == "no-overlap", found
    assert found["verdict"]["share"] == pytest.approx(0.4, abs=0.15)


@dataclass(frozen=True, kw_only=True)
class Examined:
    """What was told of a script, and the files beside it before and after."""

    found: dict[str, Any]
    before: dict[str, str]
    after: dict[str, str]


@pytest.fixture(scope="module")
def without_a_loader(tmp_path_factory: pytest.TempPathFactory) -> Examined:
    """A loop that makes its own batches, saves by `open` and torch.save, and removes a folder."""
    folder = tmp_path_factory.mktemp("loop")
    (folder / "old").mkdir()
    (folder / "old/best.pt").write_bytes(b"the best weights of last week")
    # Saved now and then: of 200 steps of 5 ms, it is no part of what the loop's time goes to.
    tail = (
        "import shutil\nshutil.rmtree('old')\nopen('log.txt', 'w').write('x')\n"
        "for step in range(20000):\n    optimizer.zero_grad()\n"
        "    net(torch.ones({batch}, 64)).mean().backward()\n    optimizer.step()\n"
        "    if step % 200 == 0: torch.save(net.state_dict(), 'latest.pt')\n"
    )
    script(folder, item=0, forward=0.005, batch=8, workers=0, tail=tail)
    before = tree(folder)
    found = told(folder, "--budget", "20", "train.py")
    return Examined(found=found, before=before, after=tree(folder))


def test_a_folder_of_the_user_s_beside_the_runs_is_shielded(tmp_path: Path) -> None:
    """Also one that is called `doctor`, as Stoker's own is; no board and no empty folder is left in it."""
    (tmp_path / "doctor").mkdir()
    (tmp_path / "doctor/notes.txt").write_text("mine")
    tail = (
        "open('doctor/notes.txt', 'w').write('overwritten')\nopen('doctor/new.txt', 'w').write('x')\n"
        "for step in range(100):\n    optimizer.zero_grad()\n"
        "    net(torch.ones({batch}, 64)).mean().backward()\n    optimizer.step()\n"
    )
    script(tmp_path, item=0, forward=0.001, batch=8, workers=0, tail=tail)
    found = told(tmp_path, "--runs", "runs", "--budget", "15", "--no-report", "train.py")
    record = Path(found["record"])
    assert (tmp_path / "doctor/notes.txt").read_text() == "mine"
    assert {path.name for path in (tmp_path / "doctor").iterdir()} == {"notes.txt", record.name}
    assert (record / "run.json").exists()


def test_offline_nothing_is_sent_and_a_script_that_must_is_told_so(tmp_path: Path) -> None:
    """A server of this machine is not reached either; the error says what to leave out."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        tail = f"import socket\nsocket.create_connection({server.getsockname()}).send(b'INSERT')\n"
        script(tmp_path, item=0, forward=0, batch=8, workers=0, tail=tail)
        done = doctor(tmp_path, "--offline", "--budget", "60", "train.py")
        with pytest.raises(BlockingIOError):
            server.accept()
    assert done.returncode == 1, done.stdout
    assert "leave out --offline" in done.stderr


@pytest.mark.quiet
def test_a_loop_without_a_loader_is_observed_and_nothing_more(without_a_loader: Examined) -> None:
    """There is nothing to replay or drain; that is said, and no cause rests on it."""
    found = without_a_loader.found
    assert found["verdict"]["cause"] in ("healthy", "compute-bound"), found
    assert found["ceilings"] == {"compute": None, "loader": None, "copy": None}
    assert "no DataLoader was drawn from" in found["notes"]


@pytest.mark.quiet
def test_nothing_that_the_script_writes_lasts(without_a_loader: Examined) -> None:
    """A script that saves and removes leaves all as it was."""
    assert without_a_loader.found["shield"] == "full"
    assert without_a_loader.after == without_a_loader.before


def tree(folder: Path) -> dict[str, str]:
    """Every file's hash, Stoker's own folder apart."""
    return {
        str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".stoker" not in path.parts and "__pycache__" not in path.parts
    }


@pytest.mark.quiet
def test_a_record_alone_gets_a_verdict_too(tmp_path: Path) -> None:
    """With less certainty: what would need an experiment is told as such.

    Batches take long to collate: what waits in samples may be told as reading, on a machine that is short of
    memory even as reading from the disk.
    """
    tail = "def collate(items):\n    time.sleep(0.016)\n    return torch.stack(items)\n" + LOOP.replace(
        "range(50)", "range(1)"
    ).replace("Items()", "torch.utils.data.Subset(Items(), range(400))").replace(
        "batch_size=", "collate_fn=collate, batch_size="
    )
    script(tmp_path, item=0, forward=0.002, batch=8, workers=0, tail=tail)
    subprocess.run(
        [sys.executable, "-m", "stoker", "run", "--quiet", "train.py"], cwd=tmp_path, check=True, timeout=100
    )
    found = told(tmp_path, "latest")
    assert found["verdict"]["cause"] == "no-overlap"
    assert found["ceilings"]["compute"] is None
    assert found["not_measured"]["replay"] == "a record alone"


@pytest.mark.parametrize(
    ("text", "said", "code"),
    [
        (
            "raise ValueError('no data there: postgresql://u:hunter2@db/x')",
            "no data there: postgresql://u:***@db/x",
            1,
        ),
        ("print('nothing to train')", "made no step", 1),
    ],
)
def test_a_script_that_does_not_train_gets_a_clear_answer(
    tmp_path: Path, text: str, said: str, code: int
) -> None:
    """What it said itself, and what the doctor needs."""
    (tmp_path / "train.py").write_text(text)
    done = doctor(tmp_path, "train.py")
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stderr


def test_no_such_script(tmp_path: Path) -> None:
    """Wrong use, with the name; it may be meant for a record, so the newest are named. Nothing is made."""
    said = refused(tmp_path, "absent.py")
    assert "no such script: absent.py" in said
    assert "No record has that name either" in said
    assert ".stoker/runs (newest there: none)" in said
    assert [one.name for one in tmp_path.iterdir()] == []
    for name in ("first", "second"):
        Writer(tmp_path / ".stoker/runs" / name, rank=0).describe_run({"id": name})
    os.utime(tmp_path / ".stoker/runs/first/run.json", (1, 1))
    said = refused(tmp_path, "secnod", "--budget", "20")
    assert "(newest there: second, first); `latest` names the newest" in said
    assert not (tmp_path / ".stoker/doctor").exists()


def test_a_folder_that_is_no_record_is_said_to_be_neither(tmp_path: Path) -> None:
    """By its path or by its name among the records."""
    (tmp_path / ".stoker/runs/half/rank0").mkdir(parents=True)
    for word in ("half", ".stoker/runs/half"):
        assert "The folder .stoker/runs/half is no record: there is no run.json in it" in refused(
            tmp_path, word
        )
    assert "is a folder, not a script" in refused(tmp_path, ".stoker/runs/half")


@pytest.mark.parametrize("verb", ["doctor", "tune"])
def test_a_budget_that_is_no_number_is_refused_by_its_option(tmp_path: Path, verb: str) -> None:
    """Before anything is run; whether the range refuses it is the command line's own business."""
    (tmp_path / "train.py").write_text("raise SystemExit('it was run')")
    assert "'--budget'" in refused(tmp_path, "--budget", "nan", "train.py", verb=verb)
    assert [one.name for one in tmp_path.iterdir()] == ["train.py"]
    with pytest.raises(BadParameter, match="nan is no number of seconds"):
        check_seconds(float("nan"))
    assert check_seconds(15.0) == 15.0
