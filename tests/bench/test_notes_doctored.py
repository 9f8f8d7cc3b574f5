"""The doctor on the notes' slow scripts: it names the true cause of each, as the notes did not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.bench.workloads_systems import NOTES, SYSTEMS, System
from stoker.ward.surroundings import tenant

# What each note's way suffers from, by the catalogue of causes.
CAUSES = {"imagenet": "storage-latency", "vesuvius": "read-amplification", "heimdall": "query-per-sample"}


def doctor(folder: Path, *words: str) -> dict[str, Any]:
    """What `stoker doctor --json` says of a script."""
    command = [sys.executable, "-m", "stoker", "doctor", "--json", "--no-report", "--budget", "75"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, cwd=folder, timeout=170)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def examine(name: str, folder: Path, device: str) -> dict[str, Any]:
    """The doctor on a system's note, with the delay of its storage."""
    system: System = SYSTEMS[name](folder / "data", torch.device(device))
    system.folder.mkdir()
    system.make()
    with system.script(delayed=True) as note:
        return doctor(folder, str(note.script), *note.words)


@pytest.mark.slow
@pytest.mark.quiet
@pytest.mark.parametrize("name", CAUSES)
def test_the_true_cause_is_named(name: str, tmp_path: Path) -> None:
    """On a CPU, on little data."""
    assert examine(name, tmp_path, "cpu")["verdict"]["cause"] == CAUSES[name]


@pytest.mark.gpu
@pytest.mark.parametrize("name", CAUSES)
def test_the_true_cause_is_named_on_a_card(name: str, tmp_path: Path) -> None:
    """At the sizes of the notes."""
    assert examine(name, tmp_path, "cuda")["verdict"]["cause"] == CAUSES[name]


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    """Some patches of 256 x 256."""
    from stoker.workloads.sar.shards import make_shards

    return make_shards(tmp_path / "shards", samples=256, files=4)


@pytest.mark.gpu
def test_a_batch_that_overflows_the_card_is_the_script_s_own_doing(patches: Path) -> None:
    """Notes 000 and 001: base 64 at batch 32 on a card of 8 GB, and nobody else on it."""
    words = ("--data", str(patches), "--base", "64", "--batch", "32", "--card-gb", "8")
    told = doctor(patches.parent, str(NOTES / "sar.py"), *words)
    assert told["verdict"]["cause"] == "vram-overflow"
    assert "gpu-contention" not in [other["cause"] for other in told["verdict"]["also"]]


@pytest.mark.gpu
def test_memory_that_another_process_holds_is_not_the_script_s_doing(patches: Path) -> None:
    """Note 000's first theory: the same script, on a card of which another process leaves 4 GB."""
    words = ("--data", str(patches), "--base", "64", "--batch", "32")
    with tenant("card_tenant.py", "--leave-gb", "4"):
        told = doctor(patches.parent, str(NOTES / "sar.py"), *words)
    assert told["verdict"]["cause"] == "gpu-contention"
    assert "vram-overflow" not in [other["cause"] for other in told["verdict"]["also"]]
