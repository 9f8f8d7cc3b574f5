"""`stoker bench workloads`: figures from recorded turns, its page, the notes' scripts, small real runs."""

import importlib.util
import json
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from stoker.bench import Options, run
from stoker.bench.children import StayingChild
from stoker.bench.result import Result, read_result
from stoker.bench.workloads import PARTS
from stoker.bench.workloads_figures import figures_of
from stoker.bench.workloads_page import page
from stoker.bench.workloads_step import How, Step
from stoker.bench.workloads_systems import NOTES, SYSTEMS, Vesuvius
from stoker.errors import BenchFailed, UsageError
from stoker.workloads.heimdall.locator import Locator
from stoker.workloads.imagenet.model import ResNet50
from stoker.workloads.sar.models import ResidualAutoencoder
from stoker.workloads.sar.similarity import ReconstructionLoss, structural_similarity
from stoker.workloads.vesuvius.loss import segmentation_losses
from stoker.workloads.vesuvius.unet import UNet3d

WAY = {"precision": "bf16", "tf32": True, "channels_last": True, "cudnn_benchmark": True, "compile": True,
       "tier": "vram", "why": "vram: 3 GB fits", "fill_s": 4.5}  # fmt: skip
SETUP = {"part": "heimdall", "how": "setup", "kind": "heimdall", "stands_for": "a server far away",
         "delay_ms": 1.6, "delay_from": "the note", "batch": 128, "fast_batch": 2048,
         "fed": {**WAY, "precision": "fp32", "compile": False}, "fast": WAY}  # fmt: skip


def turn(number: int, kind: str, samples: float, cpu: float = 0.0, steps: int = 10) -> dict[str, Any]:
    """A stretch of a second."""
    return {"part": "heimdall", "how": "turn", "turn": number, "kind": kind, "samples": samples,
            "steps": steps, "seconds": 1.0, "cpu_seconds": cpu}  # fmt: skip


RUNS = [
    SETUP,
    *(
        one
        for number in range(3)
        for one in (
            turn(number, "synthetic", 1000, cpu=0.2), turn(number, "fast", 980, cpu=0.5, steps=20),
            turn(number, "fast", 1000, cpu=0.5, steps=20), turn(number, "synthetic", 1000, cpu=0.2),
            turn(number, "fed", 400), turn(number, "note", 20), turn(number, "near", 100),
        )
    ),
]  # fmt: skip


def script(name: str) -> Any:
    """One of the notes' scripts as a module."""
    spec = importlib.util.spec_from_file_location(f"note_{name}", NOTES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_share_is_taken_over_both_stretches_of_a_turn() -> None:
    """Fed and synthetic come twice in a turn; their samples and their time are put together."""
    figures = figures_of(RUNS)
    assert figures["heimdall_fed"] == 0.99
    assert figures["heimdall_samples_s"] == 990
    assert figures["heimdall_samples_s_limit"] == 1000
    assert figures["heimdall_step_ms"] == 100


def test_a_speed_up_is_split_into_the_feed_and_the_step() -> None:
    """The two multiply to the whole; each is there without the delay too."""
    figures = figures_of(RUNS)
    assert figures["heimdall_speedup"] == 49.5
    assert figures["heimdall_speedup_feed"] == 20
    assert figures["heimdall_speedup_step"] == 2.475
    assert figures["heimdall_speedup_near"] == 9.9
    assert figures["heimdall_speedup_feed_near"] == 4
    assert figures["heimdall_delay_ms"] == 1.6


def test_cores_are_what_steps_on_one_batch_do_not_take() -> None:
    """1 s of CPU in 40 steps of 2 s, less the 0.8 s that 40 steps take by themselves."""
    assert figures_of(RUNS)["heimdall_cores"] == 0.1


def test_without_a_delay_the_note_s_way_is_the_near_one() -> None:
    """It is measured once, and stands under both names."""
    runs = [{**run, "delay_ms": 0.0} if run["how"] == "setup" else run for run in RUNS]
    figures = figures_of([run for run in runs if run.get("kind") != "near"])
    assert figures["heimdall_speedup_near"] == figures["heimdall_speedup"] == 49.5


def test_the_page_tells_what_stood_for_what() -> None:
    """Rates, shares, the delay and where it comes from, and how each step was made."""
    made = Result(bench="workloads", hardware="h200", figures=figures_of(RUNS), runs=RUNS, versions={})
    text = page([made])
    assert "| the note's way | 20.0 (20.0 to 20.0) |" in text
    assert "| of synthetic | 0.9900 (0.9900 to 0.9900) |" in text
    assert "a server far away. 1.6 ms a sample are added (the note)." in text
    assert "128 with fp32, TF32, channels last, cuDNN's search, not compiled" in text


@pytest.mark.parametrize("options", [Options(parts=["tape"]), Options(device="tpu")], ids=["part", "device"])
def test_what_there_is_not_is_refused_at_once(options: Options, tmp_path: Path) -> None:
    """Before anything is made."""
    with pytest.raises(UsageError):
        run("workloads", options, tmp_path)


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    """Parts that lie in the state are in the result; for others, or of another commit, there is no time."""
    (tmp_path / "heimdall_cpu.json").write_text(json.dumps({"commit": "abc", "runs": RUNS}))
    (tmp_path / "sar_cpu.json").write_text(json.dumps({"commit": "abd", "runs": RUNS}))
    options = Options(device="cpu", parts=["heimdall", "sar"], state=tmp_path, stop_after=0, commit="abc")
    with pytest.raises(BenchFailed, match=r"sar .*too few to begin.*--state"):
        run("workloads", options, tmp_path / "out")
    (written,) = (tmp_path / "out").glob("*.json")
    assert read_result(written).figures["heimdall_fed"] == 0.99


def test_a_paused_child_stands_still_and_ends_all_the_same(tmp_path: Path) -> None:
    """What it has started is stopped with it; it answers when it goes on, and can be closed while stopped."""
    code = """
import subprocess, sys
below = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
print("{}", flush=True)
for line in sys.stdin:
    print(line, end="", flush=True)
"""
    before = set(psutil.Process().children(recursive=True))
    child = StayingChild([sys.executable, "-c", code], what="echo", log=tmp_path / "log", patience_s=60)
    # Told by when they came: right after its start the kernel does not show a process's words yet.
    started = [one for one in psutil.Process().children(recursive=True) if one not in before]
    child.pause()
    while {process.status() for process in started} != {psutil.STATUS_STOPPED}:
        time.sleep(0.01)
    child.resume()
    assert child.ask({"seconds": 1}) == {"seconds": 1}
    child.pause()
    child.close()
    assert len(started) == 2
    assert not psutil.wait_procs(started, timeout=20)[1]


def test_the_notes_scripts_import_no_stoker() -> None:
    """They are what a user has before there is any."""
    found = sorted(NOTES.glob("*.py"))
    assert {path.stem for path in found} >= set(PARTS)
    assert not [
        path for path in found if "import stoker" in (text := path.read_text()) or "from stoker" in text
    ]


@pytest.mark.parametrize(
    ("name", "ours", "kind", "inputs"),
    [
        ("sar", ResidualAutoencoder(base=8), ("ResidualAutoencoder", (8,)), [torch.rand(2, 1, 32, 32)]),
        ("imagenet", ResNet50(5), ("ResNet50", (5,)), [torch.randn(2, 3, 32, 32)]),
        ("vesuvius", UNet3d((4, 8, 16)), ("UNet", ([4, 8, 16],)), [torch.randn(1, 1, 8, 8, 8)]),
        (
            "heimdall", Locator(area_m=2e4, width=16, layers=2, heads=2), ("Locator", (2e4, 16, 2, 2)),
            [torch.randn(3, 7, 7), torch.randint(-9, 9, (3, 7, 2, 32), dtype=torch.int8),
             torch.ones(3, 7, dtype=torch.uint8)],
        ),
    ],
    ids=PARTS,
)  # fmt: skip
def test_a_note_s_model_is_the_workload_s(
    name: str, ours: nn.Module, kind: tuple[str, tuple[Any, ...]], inputs: list[torch.Tensor]
) -> None:
    """Weight by weight: the workload's load into it, and both give the same."""
    theirs = getattr(script(name), kind[0])(*kind[1])
    theirs.load_state_dict(ours.state_dict())
    expected, found = ours.train()(*inputs), theirs.train()(*inputs)
    for one, other in zip(as_list(expected), as_list(found), strict=True):
        torch.testing.assert_close(one, other)


def as_list(output: Any) -> list[torch.Tensor]:
    return [output] if isinstance(output, torch.Tensor) else list(output)


def test_a_note_s_loss_is_the_workload_s() -> None:
    """Structural similarity, and Dice with cross entropy over several levels with voxels left out."""
    one, other = torch.rand(2, 1, 32, 32), torch.rand(2, 1, 32, 32)
    torch.testing.assert_close(script("sar").ssim(one, other), structural_similarity(one, other).mean())
    assert ReconstructionLoss().mse == 0.7
    logits = [torch.randn(2, 1, 8, 8, 8), torch.randn(2, 1, 4, 4, 4)]
    labels = torch.randint(0, 3, (2, 1, 8, 8, 8), dtype=torch.uint8)
    dice, entropy = segmentation_losses(logits, labels)
    torch.testing.assert_close(script("vesuvius").loss_of(logits, labels), (dice + entropy).mean())


@pytest.mark.parametrize("name", PARTS)
def test_both_ways_train_on_the_same_small_data(name: str, tmp_path: Path) -> None:
    """The note's script makes its steps, and Stoker's feed gives batches of the size that is asked for."""
    system = SYSTEMS[name](tmp_path, torch.device("cpu"))
    system.make()
    with system.script(delayed=False) as note:
        module = script(name)
        steps = module.train(module.parse(list(note.words)))
        assert next(steps) == system.batch
        steps.close()
    way = system.fed()
    with closing(way.feed):
        told = Step(way.task, How(), torch.device("cpu")).run(way.feed, least=2)
    assert (told["steps"], told["samples"]) == (2, 2 * system.batch)


def test_without_tensorstore_a_volume_is_a_plain_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on the machine with the GPU; the result says so, and the feed gives the same patches."""
    patches = []
    for there in (True, False):
        monkeypatch.setattr(Vesuvius, "_in_zarr", there)
        system = Vesuvius(tmp_path / str(there), torch.device("cpu"))
        system.make()
        assert ("for want of tensorstore" in system.describe()["stands_for"]) is not there
        with closing(system.fed().feed) as feed:
            patches.append(next(iter(feed)))
    torch.testing.assert_close(*patches)


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_a_part_measures_and_writes(name: str, tmp_path: Path) -> None:
    """The smallest real run gives the figures that are asked for, and a page."""
    words = [
        "--device",
        "cpu",
        "--part",
        name,
        "--seconds",
        "1",
        "--state",
        str(tmp_path / "state"),
        "--json",
    ]
    command = [sys.executable, "-m", "stoker", "bench", "workloads", "--out", str(tmp_path), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)["results"]
    figures = read_result(Path(told["file"])).figures
    assert {f"{name}_fed", f"{name}_speedup", f"{name}_cores", f"{name}_speedup_near"} <= set(figures)
    assert "figures mean nothing" in (tmp_path / "workloads.md").read_text()
