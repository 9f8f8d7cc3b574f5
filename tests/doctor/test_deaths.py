"""Workers that die for real, told of by the process that they made batches for."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, os, signal, sys
import torch
from torch.utils.data import DataLoader, Dataset, dataloader
from stoker.doctor.deaths import tell_of_deaths, telling

class Ends(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if index == 20:
            os.kill(os.getpid(), getattr(signal, sys.argv[1]))
        return torch.zeros(4)

class Child:
    def report(self, kind, **body):
        os.write(1, json.dumps({"kind": kind, **body}).encode() + b"\\n")

child = Child()
tell_of_deaths(child)
kind = dataloader._BaseDataLoaderIter
kind.__next__ = telling(child, kind.__next__)
for batch in DataLoader(Ends(), 4, num_workers=1):
    pass
"""


@pytest.mark.parametrize(("name", "word"), [("SIGKILL", "Killed"), ("SIGBUS", "Bus error")])
def test_the_death_of_a_worker_is_told_with_its_signal(name: str, word: str) -> None:
    """By torch's own words, or by the exit code of the process: whoever notices first."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name], capture_output=True, text=True, timeout=60, check=False
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode
    assert {one["kind"] for one in told} == {"death"}
    number = {"SIGKILL": 9, "SIGBUS": 7}[name]
    assert any(word in one["text"] or number in one["signals"] for one in told)
