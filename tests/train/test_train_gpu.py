"""What only a card can show: memory that really runs out, and the switches that only a card has."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import plain
from torch import nn
from torch.utils.data import TensorDataset

from stoker.feed import Feed
from stoker.train.config import OptimizerConfig, SaveConfig, TrainConfig
from stoker.train.fit import fit
from stoker.train.task import Feeds, Losses, Task, World

pytestmark = [
    pytest.mark.gpu,
    # torch's own, in its compiler
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch._prims_common.check.*:FutureWarning"),
]
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Wide:
    """A convolution that keeps much for its backward: about 100 MiB a sample."""

    train: TrainConfig = field(default_factory=TrainConfig)


class Convolve(Task[Wide]):
    """Images to themselves."""

    name = "convolve"

    def __init__(self, config: Wide) -> None:
        super().__init__(config)
        self.seen: list[int] = []
        self.peak = 0

    def build_model(self) -> nn.Module:
        wide = [
            part
            for _ in range(4)
            for part in (nn.Conv2d(32, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.GELU())
        ]
        return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *wide, nn.Conv2d(32, 3, 1))

    def open_feeds(self, world: World, device: torch.device) -> Feeds:
        images = torch.randn(64, 3, 256, 256, generator=torch.Generator().manual_seed(2))
        data = TensorDataset(images, torch.arange(64))
        batch = self.config.train.batch_size
        return Feeds(
            train=Feed(data, global_batch_size=batch, shuffle=True, device=device, tier="ram", workers=0)
        )

    def loss(self, model: nn.Module, batch: Any) -> Losses:
        x, number = batch
        loss = nn.functional.mse_loss(model(x), x)
        self.seen += number.tolist()
        return Losses(total=loss, samples=len(x))

    def metrics(self) -> dict[str, Any]:
        return {}

    def judge(self, model: nn.Module, batch: Any, metrics: Mapping[str, Any]) -> None:
        raise AssertionError("there is no validation")


def settings(**given: Any) -> Wide:
    base = {
        "epochs": 1,
        "batch_size": 32,
        "device": "cuda",
        "log_every": 1,
        "save": SaveConfig(every=0),
        "optimizer": OptimizerConfig(name="adamw", lr=1e-4),
    }
    return Wide(train=plain(**{**base, **given}))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    newest = max((folder / "checkpoints").glob("step-*"))
    loaded: dict[str, torch.Tensor] = load_file(newest / "model.safetensors")
    return loaded


@pytest.fixture
def small_card() -> Iterator[None]:
    """2 GiB of the card and no more, as torch's own allocator keeps it."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(2 * GIB / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def test_a_batch_that_does_not_fit_is_trained_in_smaller_ones(tmp_path: Path, small_card: None) -> None:
    """Real memory runs out: same weights as with that micro-batch from the start, up to the order of sums."""
    told: list[str] = []
    found = fit(Convolve(settings()), out=tmp_path / "short", tell=told.append)
    assert found.micro_batch < 32
    assert any("out of memory" in text for text in told)
    fit(Convolve(settings(micro_batch=found.micro_batch)), out=tmp_path / "asked")
    short, asked = weights(tmp_path / "short"), weights(tmp_path / "asked")
    for name in asked:
        torch.testing.assert_close(short[name], asked[name], rtol=1e-3, atol=1e-5)


def test_an_overflow_is_told_before_the_first_step(tmp_path: Path, small_card: None) -> None:
    """The prediction comes before the first line of the log; what it advises fits."""
    told: list[str] = []
    fitted = fit(Convolve(settings(preflight=True)), out=tmp_path / "a", tell=told.append)
    [warned] = [text for text in told if text.startswith("warning: ") and "set train.micro_batch=" in text]
    assert told.index(warned) < next(at for at, text in enumerate(told) if text.startswith("step "))
    assert fitted.micro_batch < 32
    advised = int(warned.partition("set train.micro_batch=")[2].split(",")[0])
    again: list[str] = []
    lower = settings(preflight=True, micro_batch=advised)
    assert fit(Convolve(lower), out=tmp_path / "b", tell=again.append).micro_batch == advised
    assert not any("out of memory" in text for text in again)


def test_memory_that_another_process_holds_is_told_before_the_first_step(tmp_path: Path) -> None:
    """2 GiB of the same card in a process that is none of ours: its pid is in a warning."""
    hold = "import torch; x = torch.empty(2**31, dtype=torch.uint8, device='cuda'); print('held', flush=True)"
    command = [sys.executable, "-c", f"{hold}; input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            script = Path(__file__).parent / "tiny.py"
            done = subprocess.run(
                [sys.executable, str(script), str(tmp_path), "train.device=cuda", "train.preflight=true"],
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
        finally:
            holder.kill()
    assert done.returncode == 0, done.stderr[-2000:]
    before, first, _ = done.stderr.partition("\nstep ")
    assert first
    assert f"held by pid {holder.pid}" in before


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("compiled", [False, True])
def test_every_precision_trains_compiled_or_not(tmp_path: Path, precision: str, compiled: bool) -> None:
    """Channels-last, clipped, with a fused optimizer where that goes: each sample once, and a finite loss."""
    task = Convolve(
        settings(
            precision=precision,
            compile=compiled,
            channels_last=True,
            cudnn_benchmark=True,
            clip=1.0,
            batch_size=16,
            optimizer=OptimizerConfig(name="adamw", lr=1e-4, fused=precision != "fp16"),
        )
    )
    fit(task, out=tmp_path)
    assert sorted(task.seen) == list(range(64))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(line["loss"] is not None for line in lines if line["kind"] == "train")


def test_a_resume_on_a_card_sees_the_rest_of_the_samples(tmp_path: Path) -> None:
    """Ended after two of four steps and gone on with: the other samples, each once."""
    first = Convolve(settings(batch_size=16, max_steps=2, precision="fp16"))
    fit(first, out=tmp_path)
    second = Convolve(settings(batch_size=16, precision="fp16"))
    assert fit(second, out=tmp_path).resumed == 2
    assert sorted(first.seen + second.seen) == list(range(64))
