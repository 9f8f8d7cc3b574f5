"""`stoker train sar --compare`: the three models trained on equal budgets, and a page beside them.

Equal are the data, their order, the steps, the batch and the schedule; what a model makes of them is its own.
"""

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stoker.errors import TrainingFailed, UsageError
from stoker.train.devices import count_ranks
from stoker.train.fit import fit
from stoker.train.folder import write_json
from stoker.train.task import Feeds
from stoker.workloads.sar import page
from stoker.workloads.sar.config import SarConfig
from stoker.workloads.sar.models import MODELS
from stoker.workloads.sar.peak import Peak
from stoker.workloads.sar.source import split
from stoker.workloads.sar.task import SarTask, Scale, open_source

# Samples that the mean is taken of, and that predicting it is judged on, at the most.
_SAMPLES = 512


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One model's part of the comparison; what was not measured is None.

    PSNR, SSIM and the picture are of the best validation; seconds run from the first batch to the picture.
    """

    name: str
    parameters: int
    steps: int
    seconds: float | None
    rate: float | None
    peak_bytes: int | None
    # Whether that is a card's memory; else it is the process's.
    on_card: bool
    psnr: float | None
    ssim: float | None
    losses: tuple[tuple[float, float], ...]
    psnrs: tuple[tuple[float, float], ...]
    picture: bytes

    def to_json(self) -> dict[str, Any]:
        """All but the picture, which is in the model's folder."""
        return {name: value for name, value in asdict(self).items() if name != "picture"}


def compare(config: SarConfig, folder: Path, *, fresh: bool = False) -> Path:
    """Train all three under `folder`, each in a folder of its own, and write the page that compares them.

    Those that were trained already are gone on with, as by any resume, unless `fresh`; how long they took is
    then not known. The figures of the page are in `comparison.json` beside it.
    """
    if (devices := count_ranks(config.train)) > 1:
        raise UsageError(
            f"a comparison on {devices} devices: take one (train.devices=1, and no torchrun), of which speed "
            "and memory can be told"
        )
    if (patience := config.train.stop.patience) > 0:
        raise UsageError(
            f"a comparison with train.stop.patience={patience}: models that stop early have fewer steps than "
            "the others, so leave it at 0"
        )
    baseline = mean_psnr(config)  # first: what has to be made is made before anything is timed
    pictured = replace(config, train=replace(config.train, picture=True))
    trained = [train_one(replace(pictured, model=name), folder / name, fresh=fresh) for name in MODELS]
    write_json(
        folder / "comparison.json",
        {"schema": 1, "mean_psnr": baseline, "models": [one.to_json() for one in trained]},
    )
    return page.write(folder / "comparison.html", config, trained, baseline)


class _Watched(SarTask):
    """Knows when its first batch came, and what memory was taken since: imports are no model's doing."""

    def __init__(self, config: SarConfig) -> None:
        super().__init__(config)
        self.began: float | None = None
        self.peak = Peak()

    def begin_epoch(self, epoch: int, feeds: Feeds) -> None:
        super().begin_epoch(epoch, feeds)
        if self.began is None:
            self.began = time.monotonic()
            self.peak.begin(feeds.train.device)


def train_one(config: SarConfig, folder: Path, *, fresh: bool) -> Trained:
    """One model, trained and measured."""
    task = _Watched(config)
    fitted = fit(task, out=folder, fresh=fresh)
    if fitted.ended == "stopped":
        raise TrainingFailed(
            f"told to stop in the training of {config.model}, which is saved at step {fitted.step}: the same "
            "command goes on from there"
        )
    seconds = peak = None
    # Of a training that was gone on with, this process saw a part only.
    if fitted.resumed is None and task.began is not None:
        seconds, peak = time.monotonic() - task.began, task.peak.read()
    events = read_events(folder / "metrics.jsonl")
    best = None if fitted.best is None else fitted.best.step
    judged = [event for event in events if event["kind"] == "valid" and event["step"] == best]
    return Trained(
        name=config.model,
        parameters=sum(weight.numel() for weight in task.build_model().parameters()),
        steps=fitted.step,
        seconds=seconds,
        rate=_last(events, "train", "samples_per_second"),
        peak_bytes=peak,
        on_card=fitted.peak_bytes is not None,
        psnr=_last(judged, "valid", "psnr"),
        ssim=_last(judged, "valid", "ssim"),
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
