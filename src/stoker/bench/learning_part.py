"""One system of `stoker bench learning`, trained in a process of its own.

    python -m stoker.bench.learning_part SYSTEM --device cuda --folder DIR --out FILE

It trains as `stoker train` does, and then has the rule that knows nothing judged on the same samples.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stoker import workloads
from stoker.errors import BenchFailed
from stoker.train.config_file import load
from stoker.train.fit import Fitted, fit
from stoker.train.task import Task, World
from stoker.watch.record import write_whole


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What is trained, as `stoker train` is told it, and how that is judged.

    `floor` is what the rule gets; of several `models` each is trained.
    """

    large: tuple[str, ...]
    small: tuple[str, ...]
    label: str
    digits: int
    rule: str
    floor: Callable[[Task[Any]], float]
    models: tuple[str, ...]


class _Everywhere(nn.Module):
    """Calls every voxel a sheet."""

    def forward(self, image: Tensor) -> list[Tensor]:
        return [torch.ones_like(image)]


def _mean(task: Task[Any]) -> float:
    from stoker.workloads.sar.comparison import mean_psnr

    return mean_psnr(task.config)


def _chance(task: Task[Any]) -> float:
    return 1 / len(task.classes)  # type: ignore[attr-defined]


def _all_sheet(task: Task[Any]) -> float:
    return _judged(task, _Everywhere(), "dice")


def _middle(task: Task[Any]) -> float:
    """A locator that has learnt nothing says the middle."""
    return _judged(task, task.build_model().eval(), "median_m")


def _judged(task: Task[Any], model: nn.Module, metric: str) -> float:
    feeds = task.open_feeds(World(), torch.device("cpu"))
    assert feeds.valid is not None
    metrics = {metric: task.metrics()[metric]}
    with closing(feeds), torch.inference_mode():
        for batch in feeds.valid:
            task.judge(model, batch, metrics)
    return float(metrics[metric].compute())


LESSONS = {
    "sar": Lesson(
        large=(
            "made.samples=4096", "made.files=44", "made.side=256", "base=32", "train.batch_size=32",
            "train.epochs=5",
        ),
        small=("made.side=64", "base=8", "train.epochs=2"),
        label="PSNR, dB",
        digits=2,
        rule="the mean",
        floor=_mean,
        models=("resnet_lite", "residual", "attention"),
    ),
    "imagenet": Lesson(
        large=(
            "made.classes=100", "made.train_images=80", "made.valid_images=10", "made.scale=0.35",
            "classes=100", "pixels=144", "image_size=128", "train.batch_size=128", "train.epochs=15",
            "train.optimizer.lr=0.1",
        ),
        small=(),
        label="top-1",
        digits=3,
        rule="chance",
        floor=_chance,
        models=("resnet50",),
    ),
    "vesuvius": Lesson(
        large=(
            "made.volumes=3", "made.shape=[216, 408, 408]", "patch=[72, 136, 136]",
            "widths=[32, 64, 128, 256]", "samples_per_epoch=800", "train_batch_size=4", "train.epochs=4",
        ),
        small=(),
        label="Dice",
        digits=3,
        rule="a sheet everywhere",
        floor=_all_sheet,
        models=("unet3d",),
    ),
    "heimdall": Lesson(
        large=(
            "made.samples=20000", "width=128", "layers=4", "reserve_gb=2", "train.batch_size=256",
            "train.epochs=60",
        ),
        small=("made.samples=640", "train.epochs=10"),
        label="median error, m",
        digits=0,
        rule="the middle",
        floor=_middle,
        models=("locator",),
    ),
}  # fmt: skip
_ON_CARD = ("train.precision=bf16", "train.channels_last=true")


def train(name: str, device: str) -> Iterator[dict[str, Any]]:
    """Each model of a system, in the folder that this process is in."""
    lesson = LESSONS[name]
    sizes = (*_ON_CARD, *lesson.large) if device == "cuda" else lesson.small
    words = [f"train.device={device}", "train.loggers=[]", *sizes]
    workload = workloads.find(name)
    config = load(workload.config, None, words)
    floor = lesson.floor(workload.task(config))
    for model in lesson.models:
        of = replace(config, model=model) if len(lesson.models) > 1 else config
        task = workload.task(of)
        began = time.monotonic()
        fitted = fit(task, out=Path("runs") / model)
        yield {
            "part": name,
            "model": model,
            "words": [*words, *([f"model={model}"] if len(lesson.models) > 1 else [])],
            "steps": fitted.step,
            "samples": fitted.step * task.config.train.batch_size,
            "seconds": round(time.monotonic() - began, 1),
            "metric": task.better[0],
            "label": lesson.label,
            "digits": lesson.digits,
            "higher": task.better[1] == "max",
            "value": _best(fitted),
            "floor": floor,
            "rule": lesson.rule,
            "last": fitted.metrics,
        }


def _best(fitted: Fitted) -> float:
    """Of the best validation, by what the system is judged by."""
    if fitted.best is None:
        raise BenchFailed(f"{fitted.folder}: the training ended without a validation")
    return fitted.best.value


def main() -> None:
    """Train, and write what was reached, whole or not at all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("system", choices=LESSONS)
    parser.add_argument("--device", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    out = given.out.absolute()
    os.chdir(given.folder)
    write_whole(out, {"runs": list(train(given.system, given.device))})


if __name__ == "__main__":
    main()
