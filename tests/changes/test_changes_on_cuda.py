"""Changes put over a real training loop on a CUDA device: each is of the kind that it says, and takes effect.

Loops run in forks of processes that have not touched CUDA themselves, a few of those at a time.
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.gpu
WORKERS = {"num_workers": 2}
IMAGES: dict[str, Any] = {"images": True}
# Losses so small that none overflows as it is scaled, and each update is clipped.
SMALL: dict[str, Any] = {"images": True, "weight": 0.01, "clip": 0.01}
# Three updates, of batches whole and in three parts each.
THREE: dict[str, Any] = {"images": True, "epochs": 1, "break_at": 3}
JOBS: dict[str, dict[str, Any]] = {
    "plain": {"changes": {}},
    "pinned": {"changes": {"pin_memory": True}},
    "pinned, workers": {"changes": {"pin_memory": True, "num_workers": 2, "persistent_workers": True}},
    "not pinned": {"changes": {"pin_memory": False}, "loader": {**WORKERS, "pin_memory": True}},
    "held, pinned": {"changes": {"feed": "ram", "pin_memory": True}},
    "held in vram, pinned": {"changes": {"feed": "vram", "pin_memory": True}},
    "expandable": {"changes": {"allocator": "expandable_segments"}},
    "images": {"changes": {}, **IMAGES},
    "tf32": {"changes": {"tf32": True}, "sets_backends": True, **IMAGES},
    "benchmark": {"changes": {"cudnn_benchmark": True}, "sets_backends": True, **IMAGES},
    "bf16": {"changes": {"autocast": "bf16"}, **IMAGES},
    "channels last": {"changes": {"channels_last": True}, **IMAGES},
    "fused": {"changes": {"fused_optimizer": True}, "optimizer": "AdamW", **IMAGES},
    "not fused": {"changes": {}, "optimizer": "AdamW", **IMAGES},
    "compiled": {"changes": {"compile": "default"}, **IMAGES},
    "graphs": {"changes": {"compile": "reduce-overhead"}, **IMAGES},
    "fp16": {"changes": {"autocast": "fp16"}, **SMALL},
    "fp16, fused": {"changes": {"autocast": "fp16", "fused_optimizer": True}, **SMALL},
    "fp16, in parts": {"changes": {"autocast": "fp16", "micro_batch": 3}, **SMALL},
    "clipped": {"changes": {}, **SMALL},
    "fp16, overflow": {"changes": {"autocast": "fp16"}, "weight": 1e36, "epochs": 1, **IMAGES},
    "3 updates": {"changes": {}, **THREE},
    "3 updates, in parts": {"changes": {"micro_batch": 3}, **THREE, "break_at": 9},
}
_AT_ONCE = 8


def _run(names: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(HERE / "loops.py")],
        input=json.dumps([{**JOBS[name], "device": "cuda"} for name in names]),
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(names, json.loads(done.stdout), strict=True))


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    """What came of each job."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        shares = [list(JOBS)[at::_AT_ONCE] for at in range(_AT_ONCE)]
        return {name: told for some in pool.map(_run, shares) for name, told in some.items()}


@pytest.mark.parametrize(
    "name", ["pinned", "pinned, workers", "not pinned", "held, pinned", "held in vram, pinned", "expandable"]
)
def test_same_is_the_same(runs: dict[str, Any], name: str) -> None:
    """The same samples in the same order and bit-identical losses and weights."""
    for part in ("ids", "losses", "weights"):
        assert runs[name][part] == runs["plain"][part], part


def test_the_allocator_is_told_in_time(runs: dict[str, Any]) -> None:
    """Its settings are read when the first byte is asked for, which is after changes are put in place."""
    assert (runs["plain"]["expandable"], runs["expandable"]["expandable"]) == (False, True)


@pytest.mark.parametrize(
    ("name", "beside"),
    [
        ("tf32", "images"),
        ("benchmark", "images"),
        ("bf16", "images"),
        ("channels last", "images"),
        ("compiled", "images"),
        ("graphs", "images"),
        ("fused", "not fused"),
        ("fp16", "clipped"),
        ("fp16, fused", "fp16"),
        ("fp16, in parts", "fp16"),
    ],
)
def test_numerics_are_nearly_the_same(runs: dict[str, Any], name: str, beside: str) -> None:
    """The same samples in the same order, and weights that differ by rounding."""
    assert runs[name]["ids"] == runs[beside]["ids"]
    assert runs[name]["weights"] == pytest.approx(runs[beside]["weights"], rel=0.02, abs=0.02)
    assert runs[name].get("norm", 0.0) == pytest.approx(runs[beside].get("norm", 0.0), rel=0.05)


def test_each_takes_effect(runs: dict[str, Any]) -> None:
    """Also over what the script sets itself."""
    assert runs["tf32"]["backends"][:2] == ["high", True]
    assert runs["benchmark"]["backends"][2] is True
    assert runs["bf16"]["seen"][0].startswith("torch.bfloat16")
    assert runs["fp16"]["seen"][0].startswith("torch.float16")
    assert runs["channels last"]["seen"] == ["torch.float32 True"]
    assert (runs["fused"]["fused"], runs["not fused"]["fused"]) == (True, None)
    assert [runs[name]["compiled"] for name in ("compiled", "graphs", "images")] == [True, True, False]


def test_steps_whose_gradients_overflow_are_left_out(runs: dict[str, Any]) -> None:
    """Weights stay finite: no step of infinities is made."""
    assert all(abs(weight) < 1e6 for weight in runs["fp16, overflow"]["weights"])


def test_parts_give_the_weights_of_whole_batches(runs: dict[str, Any]) -> None:
    """After 3 updates, within float tolerance."""
    whole, parts = runs["3 updates"], runs["3 updates, in parts"]
    assert sorted(parts["ids"]) == sorted(whole["ids"])
    assert parts["weights"] == pytest.approx(whole["weights"], rel=1e-5, abs=1e-6)
    assert parts["told"] == ["changed: 4 batches of up to 8 samples in parts of up to 3"]
