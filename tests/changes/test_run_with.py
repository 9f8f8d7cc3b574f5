"""`stoker run --with`: a real script, not a line of it edited."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.cli import main

SCRIPT = """
import os, torch
from torch.utils.data import DataLoader, Dataset

class Readers(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, at):
        return torch.tensor([at, os.getpid()])

if __name__ == "__main__":
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    for _ in range(2):
        readers = set()
        for batch in DataLoader(Readers(), batch_size=4, multiprocessing_context=None):
            model(batch.float()).mean().backward()
            optimizer.step()
            readers |= set(batch[:, 1].tolist())
        print(len(readers), os.getpid() in readers)
"""


COMMAND = ["stoker", "run", "--with", "stoker.toml", "train.py"]


def write(folder: Path, settings: str) -> None:
    (folder / "train.py").write_text(SCRIPT)
    (folder / "stoker.toml").write_text(settings)


def test_a_script_runs_with_changes_put_over_it(tmp_path: Path) -> None:
    """Its loader has workers, the record says by which settings, and what was met is told once."""
    write(tmp_path, "[changes]\nnum_workers = 2\nautocast = 'bf16'\ngc_freeze = true\n")
    done = subprocess.run(
        [sys.executable, "-m", *COMMAND], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "2 False\n" * 2), done.stderr
    assert done.stderr.count("changed: DataLoader(Readers): num_workers 0 -> 2") == 1
    settings = {"num_workers": 2, "autocast": "bf16", "gc_freeze": True}
    (record,) = (tmp_path / ".stoker" / "runs").iterdir()
    assert json.loads((record / "run.json").read_text())["settings"] == settings
    about = json.loads((record / "rank0" / "rank.json").read_text())
    assert [loader["num_workers"] for loader in about["loaders"]] == [2]


def test_wrong_settings_end_it_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, one line, and no line of the script has run."""
    write(tmp_path, "[changes]\nnum_wrkers = 2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", COMMAND)
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert (ended.value.code, told.out, told.err.count("\n")) == (2, "", 1)
    assert "no change 'num_wrkers' (did you mean num_workers?)" in told.err
