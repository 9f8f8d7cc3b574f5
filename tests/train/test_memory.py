"""A device that runs out of memory: smaller micro-batches, the same batch, nothing lost and nothing twice."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import Tiny, TinyConfig, plain
from torch import nn

from stoker.errors import TrainingFailed
from stoker.train.config import SaveConfig
from stoker.train.fit import fit
from stoker.train.means import Means
from stoker.train.meeting import Meeting
from stoker.train.step import Stepper
from stoker.train.task import Feeds, Losses

QUIET = {"epochs": 2, "save": SaveConfig(every=0)}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    newest = max((folder / "checkpoints").glob("step-*"))
    loaded: dict[str, torch.Tensor] = load_file(newest / "model.safetensors")
    return loaded


def test_out_of_memory_is_answered_with_smaller_micro_batches(tmp_path: Path) -> None:
    """The weights are those of a training with that micro-batch from the start: draws, buffers and all."""
    short = Tiny(TinyConfig(most=3, train=plain(**QUIET)))
    fitted = fit(short, out=tmp_path / "short")
    assert fitted.micro_batch == 2
    asked = Tiny(TinyConfig(train=plain(**QUIET, micro_batch=2)))
    fit(asked, out=tmp_path / "asked")
    found, expected = weights(tmp_path / "short"), weights(tmp_path / "asked")
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert short.seen == asked.seen


def test_a_host_that_refuses_memory_is_answered_the_same_way(tmp_path: Path) -> None:
    """For real: an allocation that no machine has room for fails, and smaller micro-batches do without it."""

    class Greedy(Tiny):
        def loss(self, model: nn.Module, batch: Any) -> Losses:
            if len(batch[0]) > 2 and model.training:
                torch.empty(2**50)
            return super().loss(model, batch)

    told: list[str] = []
    fitted = fit(Greedy(TinyConfig(train=plain(**QUIET))), out=tmp_path, tell=told.append)
    assert fitted.micro_batch == 2
    assert any("can't allocate memory" in text and "micro-batches of 4 instead of 8" in text for text in told)


def test_it_is_told_and_kept(tmp_path: Path) -> None:
    """The journal has what was given up; a resume begins with the size that was found."""
    told: list[str] = []
    fit(Tiny(TinyConfig(most=5, train=plain(**QUIET, max_steps=3))), out=tmp_path, tell=told.append)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    [memory] = [line for line in lines if line["kind"] == "memory"]
    assert (memory["step"], memory["micro_batch"]) == (1, 4)
    assert any("micro-batches of 4 instead of 8, same batch" in text for text in told)
    again = Tiny(TinyConfig(train=plain(**QUIET)))
    assert fit(again, out=tmp_path).micro_batch == 4
    assert max(map(len, again.seen)) == 4


def test_a_micro_batch_that_is_asked_for_anew_is_taken(tmp_path: Path) -> None:
    """On a larger device, say: what memory allowed before is told, and holds until it is asked otherwise."""
    fit(Tiny(TinyConfig(most=3, train=plain(**QUIET, max_steps=3))), out=tmp_path)
    told: list[str] = []
    fit(Tiny(TinyConfig(train=plain(**QUIET, max_steps=5))), out=tmp_path, tell=told.append)
    assert any("micro-batches of 2, as memory allowed before" in text for text in told)
    asked = Tiny(TinyConfig(train=plain(**QUIET, micro_batch=4)))
    assert fit(asked, out=tmp_path).micro_batch == 4
    assert max(map(len, asked.seen)) == 4


def test_memory_that_runs_out_in_a_later_micro_batch_undoes_the_earlier_ones(tmp_path: Path) -> None:
    """Gradients of the micro-batches before it are gone: the step is made again, whole."""

    class Late(Tiny):
        failed = False

        def loss(self, model: nn.Module, batch: Any) -> Losses:
            # The fourth call is the second micro-batch of the second step.
            if self.calls == 3 and not self.failed:
                self.failed = True
                self.calls += 1
                model(batch[0])
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return super().loss(model, batch)

    late = Late(TinyConfig(norm="layer", dropout=0.0, train=plain(**QUIET, micro_batch=4)))
    fit(late, out=tmp_path / "late")
    calm = Tiny(TinyConfig(norm="layer", dropout=0.0, train=plain(**QUIET, micro_batch=4)))
    fit(calm, out=tmp_path / "calm")
    assert late.failed
    found, expected = weights(tmp_path / "late"), weights(tmp_path / "calm")
    for name in expected:  # in halves from the second step on: another order of sums
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)


def test_a_validation_that_runs_out_of_memory_is_made_in_smaller_pieces(tmp_path: Path) -> None:
    """Each sample is judged once, so the metrics are the same; training goes on as it was."""

    class Short(Tiny):
        def judge(self, model: nn.Module, batch: Any, metrics: Any) -> None:
            super().judge(model, batch, metrics)
            if len(batch[0]) > 3:
                raise torch.OutOfMemoryError("CUDA out of memory.")

    short = fit(Short(TinyConfig(train=plain(**QUIET))), out=tmp_path / "short")
    calm = fit(Tiny(TinyConfig(train=plain(**QUIET))), out=tmp_path / "calm")
    assert short.metrics["mae"] == pytest.approx(calm.metrics["mae"], rel=1e-6)
    assert short.micro_batch == calm.micro_batch == 8
    found, expected = weights(tmp_path / "short"), weights(tmp_path / "calm")
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_one_sample_that_does_not_fit_ends_the_training(tmp_path: Path) -> None:
    """There is nothing smaller, and the error says what could be."""

    class Full(Tiny):
        def loss(self, model: nn.Module, batch: Any) -> Losses:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(TrainingFailed, match="one sample at a time"):
        fit(Full(TinyConfig(train=plain(**QUIET))), out=tmp_path)


@pytest.mark.parametrize("which", ["train", "valid"])
def test_a_feed_that_runs_out_of_memory_goes_on_with_the_same_batch(tmp_path: Path, which: str) -> None:
    """What a feed could not make at first comes when it has given memory back: no batch is missing."""
    calm = Tiny(TinyConfig(train=plain(**QUIET)))
    expected = fit(calm, out=tmp_path / "calm")

    failed: list[int] = []
    made: list[int] = []

    def fail_once(batch: object) -> object:
        made.append(1)
        if len(made) == 3 and not failed:
            failed.append(1)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return batch

    class Short(Tiny):
        def open_feeds(self, world, device):  # type: ignore[no-untyped-def]
            feeds = super().open_feeds(world, device)
            getattr(feeds, which)._transform = fail_once
            return feeds

    short = Short(TinyConfig(train=plain(**QUIET)))
    found = fit(short, out=tmp_path / "short")
    assert failed
    assert short.seen == calm.seen
    assert found.metrics == expected.metrics


class Held:
    """Stands in for a feed whose samples lie in a card's memory: there is none here."""

    def __init__(self, tier: str = "vram") -> None:
        self.tier = tier
        self.why: list[str] = []

    @property
    def on_device(self) -> int:
        return 100 if self.tier == "vram" else 0

    def shrink(self, why: str) -> None:
        self.why.append(why)
        self.tier = "ram"


@pytest.mark.parametrize("valid", [None, "ram", "vram"])
@pytest.mark.parametrize("enough", ["train", "valid"])
def test_samples_held_on_the_device_are_given_back_first(valid: str | None, enough: str) -> None:
    """The validation's, then the training's; the micro-batch stays as it is when that is enough."""
    from lightning.fabric import Fabric

    feeds = {"train": Held(), "valid": None if valid is None else Held(valid)}
    if enough == "valid" and valid != "vram":
        enough = "train"  # which alone has anything to give

    class Full(Tiny):
        def loss(self, model: nn.Module, batch: Any) -> Losses:
            last = feeds[enough]
            if last is not None and last.tier == "vram":
                model(batch[0])
                raise RuntimeError(
                    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
                )
            return super().loss(model, batch)

    task = Full(TinyConfig())
    fabric = Fabric(accelerator="cpu", devices=1)
    torch.manual_seed(0)
    module = task.build_model()
    model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
    stepper = Stepper(
        task,
        fabric=fabric,
        module=module,
        model=model,
        optimizer=optimizer,
        feeds=Feeds(**feeds),  # type: ignore[arg-type]
        meeting=Meeting(),
        micro_batch=8,
        clip=0.0,
    )
    means = Means(torch.device("cpu"))
    done = stepper.run((torch.randn(8, 6), torch.randn(8, 1)), samples=8, whole=8, means=means)
    assert (stepper.micro_batch, task.calls) == (8, 1)
    expected = ["the validation feed went from vram to ram"] * (valid == "vram")
    expected += ["the feed went from vram to ram"] * (enough == "train")
    assert [text.rpartition(": ")[2] for text in done.backed_off] == expected
    given = {name: 0 if feed is None else len(feed.why) for name, feed in feeds.items()}
    assert given == {"train": int(enough == "train"), "valid": int(valid == "vram")}
    # Its batch statistics are of one forward, not of two.
    assert int(module.state_dict()["1.num_batches_tracked"]) == 1


def test_other_errors_are_not_taken_for_it(tmp_path: Path) -> None:
    """A wrong shape is the user's to see."""

    class Wrong(Tiny):
        def loss(self, model: nn.Module, batch: Any) -> Losses:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fit(Wrong(TinyConfig(train=plain(**QUIET))), out=tmp_path)
