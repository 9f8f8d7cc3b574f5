"""`stoker doctor RUN --scale`: from a record of known content to tables, Markdown and JSON."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stoker.cli import app
from stoker.doctor import command
from stoker.doctor.scale_load import load_of, machine_of
from stoker.errors import DiagnosisFailed, RecordNotFound, UsageError
from stoker.watch import Record, Step
from stoker.watch.phases import Batch
from stoker.watch.record import LineWriter, Writer

LOADER = {"id": 0, "name": "L", "fed": 60, "num_workers": 2, "batch_size": 8, "epochs": 1, "length": 100}
HOST = {"memory_free_bytes": 8 * 10**9, "usable_cores": 4}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where records are kept."""
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path))
    return tmp_path


def record(runs: Path, *, ranks: int = 1, steps: int = 60, size: int | None = 80_000, **about: Any) -> Record:
    """Steps of 100 ms, 60 of them waiting; batches of 8 samples, received from somewhere."""
    for rank in range(ranks):
        writer = Writer(runs / "it", rank=rank)
        writer.describe_run({"id": "it", "world_size": ranks, "facts": {"host": HOST, "gpus": []}})
        writer.describe_rank(
            {"rank": rank, "host": "here", "loaders": [LOADER], "gradient_bytes": 4_000_000, **about}
        )
        lines = LineWriter(writer.rank_folder)
        for number in range(steps):
            step = Step(
                step=number, t=100 + number / 10, samples=8, loader=0, wait=0.06, copy=0.0, forward=0.01,
                backward=0.02, update=0.005, other=0.005, startup=0.0,
            )  # fmt: skip
            lines.add("steps", step.to_line())
            batch = Batch(
                loader=0, worker=number % 2, seq=number, t=100 + number / 10, samples=8, read=0.08,
                transform=0.008, collate=0.008, handoff=0.001, pin=None, cpu=0.016, queued=0.0, bytes=size,
                disk=0, faults=0, calls={"recv": 8, "item": 8},
            )  # fmt: skip
            lines.add("batches", json.dumps(asdict(batch)))
            if number % 10 == 0:  # a core's quarter for the loop, a quarter for both workers
                spent = {
                    "cpu_s": number / 40,
                    "processes": [{"pid": pid, "cpu_s": number / 80} for pid in (1, 2)],
                }
                lines.add("resources", json.dumps({"t": 100 + number / 10, **spent}))
        lines.close()
    return Record.open(runs / "it")


def ask(*words: str) -> Any:
    done = CliRunner().invoke(app, ["doctor", *words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_a_record_tells_what_a_rank_asks_for(runs: Path) -> None:
    """Times without waits, bytes and CPU time a sample, and what the machine has."""
    it = record(runs)
    load = load_of(it, {})
    assert load.alone == pytest.approx(8 / 0.04)
    assert (load.sample_bytes, load.gradient_bytes, load.workers) == (10_000, 4_000_000, 2)
    assert load.set_bytes == 100 * 8 * 10_000
    assert load.read == pytest.approx(0.01)
    assert load.prepare == pytest.approx(0.002)
    assert load.from_network is True
    assert load.make_cpu == pytest.approx(0.002)
    assert load.cpu == pytest.approx(0.5 * 0.1 - 0.016, rel=0.02)
    assert machine_of(it) == {"per_node": None, "cores": 4, "ram_room": 8e9, "vram_room": None}


def test_ranks_of_a_record_are_those_of_its_machine(runs: Path) -> None:
    """Two ranks on one host are two to a node, and share an epoch between them."""
    it = record(runs, ranks=2)
    assert machine_of(it)["per_node"] == 2
    assert load_of(it, {}).set_bytes == 2 * 100 * 8 * 10_000


def test_what_the_record_cannot_tell_is_not_a_number(runs: Path) -> None:
    """Bytes that the kernel did not count, gradients of no optimizer: None, with what to do."""
    load = load_of(record(runs, size=None, gradient_bytes=None), {})
    assert (load.sample_bytes, load.set_bytes, load.gradient_bytes) == (None, None, None)
    assert "--link sample=" in load.missing["sample_bytes"]
    assert "--link gradients=" in load.missing["gradient_bytes"]
    told = load_of(record(runs, size=0), {"sample": 5000, "gradients": 1e6})
    assert (told.sample_bytes, told.gradient_bytes) == (5000, 1e6)
    assert "sample_bytes" not in told.missing


def test_the_json_has_every_input_with_its_origin_and_every_outlook(runs: Path) -> None:
    """8, 64 and 1,024 GPUs in five ways each; options stand after the record too."""
    record(runs)
    told = json.loads(ask("it", "--scale", "--link", "store=1GB/s", "--json").output)
    assert {(one["gpus"], one["way"]) for one in told["outlooks"]} == {
        (gpus, way) for gpus in (8, 64, 1024) for way in ("store", "cache", "disk", "ram", "vram")
    }
    origins = {one["name"]: (one["origin"], one["value"]) for one in told["inputs"]}
    assert origins["store"] == ("told", 1e9)
    assert origins["sample"] == ("measured", 10_000)
    assert origins["disk"][0] == "assumed"
    assert origins["vram_room"] == ("n/a", None)
    far = next(one for one in told["outlooks"] if (one["gpus"], one["way"]) == (1024, "store"))
    assert far["limit"] == "gets"
    assert (far["nodes"], far["batch"]) == (128, 1024 * 8)
    assert origins["per_node"] == ("assumed", 8)
    assert far["rate"]["mid"] == pytest.approx(5500)
    assert far["rate"]["low"] < 5500 < far["rate"]["high"]
    assert next(one for one in told["outlooks"] if one["way"] == "vram")["rate"] is None


def test_a_terminal_and_an_issue_tracker_are_told_the_same(runs: Path) -> None:
    """What it waits for, what is assumed, and n/a where nothing can be told."""
    record(runs)
    for words in (["--scale", "it"], ["it", "--scale", "--markdown"]):
        text = ask(*words, "--gpus", "16").output if words[0] == "it" else ask("--gpus", "16", *words).output
        assert "Which ceiling comes first" in text
        assert "Assumed, not measured: per_node, cores, nic" in text
        plain = " ".join(text.split())
        assert "Nodes of 8 GPUs (assumed): 16 GPUs are 2 nodes." in plain
        assert "A rank's step stays at 8 samples, so the global batch grows with the GPUs." in plain
        assert "vram_room not known" in " ".join(text.split())
    assert "| GPUs | global batch | fed by |" in text
    assert "| 16 | 128 | vram | n/a | n/a | n/a | n/a |" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["it", "--scale", "--json", "--markdown"], "both want stdout"),
        (["--scale"], "starts from one record, not from nothing"),
        (["it", "--link", "nic=1GB/s"], "give --scale too"),
        (["it", "--scale", "--link", "nic=fast"], "nic is 'fast'"),
    ],
)
def test_wrong_use_is_told(runs: Path, words: list[str], said: str) -> None:
    """Before anything is worked out."""
    record(runs)
    with pytest.raises(UsageError) as told:
        ask(*words)
    assert said in str(told.value)


def test_a_run_that_is_not_there_or_too_short_is_told(runs: Path) -> None:
    """Nothing is predicted from a few steps."""
    with pytest.raises(RecordNotFound):
        ask("--scale", "nowhere")
    record(runs, steps=12)
    with pytest.raises(DiagnosisFailed, match="holds 11 steps after its loaders had started"):
        ask("it", "--scale")


def test_what_follows_a_script_is_still_the_script_s_own(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its --scale is no question to the doctor; nor is that of a script named as a run is."""
    asked: list[list[str]] = []
    monkeypatch.setattr(command, "diagnose", lambda words, **_: asked.append(words))
    monkeypatch.chdir(tmp_path)
    record(runs)
    Path("latest").write_text("")
    for script in ("train.py", "latest"):
        ask("--json", script, "--scale", "--link", "5")
    assert asked == [[script, "--scale", "--link", "5"] for script in ("train.py", "latest")]


SCRIPT = """
import sys
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __init__(self): self.paths = sorted(Path(sys.argv[1]).iterdir())
    def __len__(self): return len(self.paths)
    def __getitem__(self, index):
        return torch.frombuffer(bytearray(self.paths[index].read_bytes()), dtype=torch.uint8).float()

if __name__ == "__main__":
    model = nn.Linear(50_000, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    for epoch in range(4):
        for x in DataLoader(Files(), batch_size=4):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
"""


def test_a_real_run_tells_its_bytes(tmp_path: Path) -> None:
    """Files of 50 KB that a script reads are the sample's bytes, its parameters' the gradients'."""
    data = tmp_path / "data"
    data.mkdir()
    for number in range(64):
        (data / f"{number}").write_bytes(bytes(50_000))
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [sys.executable, "-m", "stoker", "run", "-q", "--run-id", "it", "train.py", "data"]
    subprocess.run(words, cwd=tmp_path, check=True, timeout=120)
    load = load_of(Record.open(tmp_path / ".stoker/runs/it"), {})
    assert load.sample_bytes == pytest.approx(50_000, rel=0.1)
    assert load.set_bytes == pytest.approx(64 * 50_000, rel=0.1)
    assert load.gradient_bytes == 4 * (4 * 50_000 + 4)
    assert (load.workers, load.from_network) == (0, False)
