"""`stoker train sar --compare`: the three models trained on equal budgets, and a page beside them.

Equal are the data, their order, the steps, the batch and the schedule; what a model makes of them is its own.
"""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stoker.errors import TrainingFailed, UsageError
from stoker.train.fit import fit
from stoker.workloads.sar import page
from stoker.workloads.sar.config import SarConfig
from stoker.workloads.sar.models import MODELS
from stoker.workloads.sar.source import split
from stoker.workloads.sar.task import SarTask, Scale, open_source

# Samples that the mean is taken of, and that predicting it is judged on, at the most.
_SAMPLES = 512


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One model's part of the comparison; what was not measured is None."""

    name: str
    parameters: int
    steps: int
    seconds: float | None
    rate: float | None
    peak_bytes: int | None
    psnr: float | None
    ssim: float | None
    losses: tuple[tuple[float, float], ...]
    psnrs: tuple[tuple[float, float], ...]
    picture: bytes


def compare(config: SarConfig, folder: Path) -> Path:
    """Train all three under `folder`, each in a folder of its own, and write the page that compares them.

    Those that were trained already are gone on with, as by any resume; how long they took is then not known.
    """
    if config.train.devices > 1:
        raise UsageError(
            f"a comparison on {config.train.devices} devices: take one (train.devices=1), of which speed and "
            "memory can be told"
        )
    baseline = mean_psnr(config)  # first: what has to be made is made before anything is timed
    pictured = replace(config, train=replace(config.train, picture=True))
    trained = [train_one(replace(pictured, model=name), folder / name) for name in MODELS]
    return page.write(folder / "comparison.html", config, trained, baseline)


def train_one(config: SarConfig, folder: Path) -> Trained:
    """One model, trained and measured."""
    task = SarTask(config)
    on_card = config.train.device != "cpu" and torch.cuda.is_available()
    if on_card:
        torch.cuda.reset_peak_memory_stats()
    began = time.monotonic()
    fitted = fit(task, out=folder)
    if fitted.ended == "stopped":
        raise TrainingFailed(
            f"told to stop in the training of {config.model}, which is saved at step {fitted.step}: the same "
            "command goes on from there"
        )
    seconds = None if fitted.resumed is not None else time.monotonic() - began
    events = read_events(folder / "metrics.jsonl")
    return Trained(
        name=config.model,
        parameters=sum(weight.numel() for weight in task.build_model().parameters()),
        steps=fitted.step,
        seconds=seconds,
        rate=_last(events, "train", "samples_per_second"),
        peak_bytes=torch.cuda.max_memory_allocated() if on_card and seconds is not None else None,
        psnr=_last(events, "valid", "psnr"),
        ssim=_last(events, "valid", "ssim"),
        losses=_curve(events, "train", "loss"),
        psnrs=_curve(events, "valid", "psnr"),
        picture=fitted.pictures[0].read_bytes(),
    )


def mean_psnr(config: SarConfig) -> float:
    """The PSNR of predicting the mean of what is trained on, for each pixel of what is validated on."""
    source = open_source(config)
    train, valid = split(len(source), share=config.train_share, seed=config.split_seed)
    scale = Scale(config.low, config.high)
    mean = scale(source.read(train[:_SAMPLES])).mean()
    error = (scale(source.read(valid[:_SAMPLES])) - mean).square().mean()
    return float(-10 * np.log10(float(error)))


def read_events(path: Path) -> list[dict[str, Any]]:
    """The lines that a training wrote down."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def _curve(events: list[dict[str, Any]], kind: str, name: str) -> tuple[tuple[float, float], ...]:
    return tuple(
        (float(event["step"]), float(event[name]))
        for event in events
        if event["kind"] == kind and event.get(name) is not None
    )


def _last(events: list[dict[str, Any]], kind: str, name: str) -> float | None:
    curve = _curve(events, kind, name)
    return curve[-1][1] if curve else None
