"""The other three workloads on a card: samples held there, fewer bits, and that they learn."""

from pathlib import Path
from typing import Any

import pytest
import torch

from stoker import workloads
from stoker.train.config_file import load
from stoker.train.fit import Fitted, fit
from stoker.train.task import Feeds, Task, World

pytestmark = [
    pytest.mark.gpu,
    # torch's own, in its compiler
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch._prims_common.check.*:FutureWarning"),
]
QUICK = ["train.device=cuda", "train.precision=bf16", "train.loggers=[]"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def task_of(name: str, *words: str) -> Task[Any]:
    workload = workloads.find(name)
    return workload.task(load(workload.config, None, [*QUICK, *words]))


def train(task: Task[Any], out: Path) -> Fitted:
    return fit(task, out=out, tell=lambda text: None)


def open_on_card(task: Task[Any]) -> Feeds:
    """Its feeds after one epoch, when what is held on the card is there."""
    feeds = task.open_feeds(World(), torch.device("cuda", 0))
    for _ in feeds.train:
        pass
    return feeds


def test_photographs_are_told_apart_on_a_card(tmp_path: Path) -> None:
    """Five times chance, compiled, with channels last, and with images that grow."""
    task = task_of(
        "imagenet", "train.channels_last=true", "train.compile=true", "train.epochs=12", "pixels=72",
        "image_size=64", "start_size=32", "grow_epochs=4",
    )  # fmt: skip
    assert train(task, tmp_path / "run").metrics["top1"] > 5 * 0.1


def test_sheets_are_found_on_a_card(tmp_path: Path) -> None:
    """Volumes are in VRAM, patches are cut there, and Dice is far above calling everything a sheet."""
    task = task_of("vesuvius", "train.channels_last=true", "train.epochs=6", "accumulate_steps=2")
    feeds = open_on_card(task)
    assert feeds.train.tier == "vram", feeds.train.why
    feeds.close()
    assert train(task, tmp_path / "run").metrics["dice"] > 0.6


def test_transmitters_are_found_on_a_card(tmp_path: Path) -> None:
    """All samples are in VRAM, and the median error is below 1.5 km in a square of 20."""
    task = task_of("heimdall", "reserve_gb=1", "train.epochs=40")
    feeds = open_on_card(task)
    assert feeds.train.tier == "vram", feeds.train.why
    feeds.close()
    fitted = train(task, tmp_path / "run")
    assert fitted.best is not None
    assert fitted.best.value < 1500
