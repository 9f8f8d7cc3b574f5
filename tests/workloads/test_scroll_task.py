"""The segmentation as the trainer runs it: what it learns, and what it says."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.errors import UsageError
from stoker.feed.sources.volume import VolumeSource
from stoker.train import command
from stoker.train.config_file import load
from stoker.train.fit import Fitted, fit
from stoker.train.task import World
from stoker.workloads.vesuvius import WORKLOAD, VesuviusConfig, VesuviusTask
from stoker.workloads.vesuvius.metrics import Dice, SurfaceDice
from stoker.workloads.vesuvius.task import open_scrolls, split_scrolls

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = [
    "made.volumes=2", "made.shape=[32,64,64]", "made.pitch=13", "patch=[16,32,32]", "widths=[4,8]",
    "samples_per_epoch=16", "train.device=cpu", "train.loggers=[]", "train.preflight=false",
]  # fmt: skip


def config_of(*settings: str) -> VesuviusConfig:
    return load(VesuviusConfig, None, [*SMALL, *settings])


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def train(out: Path, *settings: str) -> Fitted:
    return fit(VesuviusTask(config_of(*settings)), out=out, tell=lambda text: None)


def judge_by(task: VesuviusTask, find: Any) -> dict[str, float]:
    """What a rule that knows nothing of sheets gets on the volumes kept apart."""
    feeds = task.open_feeds(World(), torch.device("cpu"))
    assert feeds.valid is not None
    metrics: dict[str, Any] = {"dice": Dice(), "surface_dice": SurfaceDice(task.config.tolerance)}
    for batch in feeds.valid:
        for metric in metrics.values():
            metric.update(find(batch["image"]), batch["label"])
    feeds.close()
    return {name: float(metric.compute()) for name, metric in metrics.items()}


def test_a_short_training_beats_rules_that_know_nothing(tmp_path: Path) -> None:
    """Better than calling everything a sheet and than the brighter half, by Dice; it ends with a picture
    and a prediction of the whole volume."""
    task = VesuviusTask(config_of())
    everything = judge_by(task, lambda image: torch.ones_like(image, dtype=torch.bool))
    brighter = judge_by(task, lambda image: image > image.median())
    fitted = train(tmp_path / "run", "train.epochs=4", "train.optimizer.lr=5e-3", "predict=true")
    assert fitted.metrics["dice"] > 1.3 * everything["dice"]
    assert fitted.metrics["dice"] > 1.1 * brighter["dice"]
    assert [path.name for path in fitted.pictures] == ["slice.png", "scroll_001.zarr"]
    assert fitted.pictures[0].read_bytes().startswith(b"\x89PNG")
    scroll = open_scrolls(task.config)[1]
    whole = VolumeSource(fitted.pictures[1], labels=scroll.labels, patch=(32, 64, 64), mode="grid")[0]
    overall = Dice()
    overall.update(whole["image"] > 127, whole["label"])
    assert overall.compute().item() > 1.3 * everything["dice"]


def test_the_names_of_the_note_make_the_trainers_batch() -> None:
    """What goes through at once, times how often, is a step; a contradiction is refused."""
    task = VesuviusTask(config_of("train_batch_size=2", "accumulate_steps=4", "workers=3"))
    assert (task.config.train.batch_size, task.config.train.micro_batch) == (8, 2)
    assert task.config.workers == 3
    with pytest.raises(UsageError, match="2 x 4"):
        VesuviusTask(config_of("train_batch_size=2", "accumulate_steps=4", "train.batch_size=6"))
    with pytest.raises(UsageError, match=r"train.batch_size is 1, but .* is 2 x 1"):
        VesuviusTask(config_of("train.batch_size=1", "train.epochs=2"))
    one = VesuviusTask(config_of("train.batch_size=1", "train_batch_size=1"))
    assert (one.config.train.batch_size, one.config.train.micro_batch) == (1, 1)


def test_its_batch_is_shared_by_ranks_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Devices divide what the note's names make, and `--show-config` has the batch that is used."""
    code = command.go(
        WORKLOAD, settings=[*SMALL, "train.devices=2", "accumulate_steps=3"], config=None, out=tmp_path,
        fresh=False, compare=False, find_lr=False, show_config=True, as_json=False,
    )  # fmt: skip
    shown = json.loads(capsys.readouterr().out)["train"]
    assert (code, shown["devices"], shown["batch_size"], shown["micro_batch"]) == (0, 2, 6, 2)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("overlap=1", "overlap is 1.0"),
        ("tolerance=-1", "tolerance is -1: it must be 0 or more"),
        ("threshold=1", "threshold is 1: it is a chance"),
        ("workers=-2", "workers is -2"),
        ("reserve_gb=-1", "reserve_gb is -1"),
        ("made.noise=-1", "made: noise is -1"),
    ],
)
def test_what_would_break_after_hours_is_told_at_once(setting: str, told: str) -> None:
    """Also what only the validation or the picture at the end asks for."""
    with pytest.raises(UsageError, match=told):
        config_of(setting)


def test_a_loss_of_nothing_is_refused() -> None:
    """One of its parts must have a weight."""
    with pytest.raises(UsageError, match="both 0"):
        config_of("dice=0", "entropy=0")


def test_the_example_settings_are_the_notes() -> None:
    """They load, and ask for the patches, the network and the batch that the field note had."""
    task = VesuviusTask(load(VesuviusConfig, EXAMPLES / "vesuvius.yaml", ["data=scrolls"]))
    assert task.config.patch == (72, 136, 136)
    assert (task.config.train.batch_size, task.config.train.micro_batch, task.config.workers) == (2, 2, 4)
    assert task.build_model().divisor == 8


def test_accumulation_gives_the_step_of_the_whole_batch() -> None:
    """Gradients of four patches at once, and of one after another."""
    task = VesuviusTask(config_of("train_batch_size=4"))
    torch.manual_seed(0)
    model = task.build_model()
    feeds = task.open_feeds(World(), torch.device("cpu"))
    batch = next(iter(feeds.train))
    task.loss(model, batch).total.backward()
    whole = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
    model.zero_grad()
    for at in range(4):
        (task.loss(model, task.cut(batch, at, at + 1)).total / 4).backward()
    parts = [weight.grad for weight in model.parameters() if weight.grad is not None]
    feeds.close()
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_whole_volumes_are_kept_for_validation() -> None:
    """The last one, or those named; an unknown one, or all of them, are refused."""
    scrolls = open_scrolls(config_of("made.volumes=3", "made.shape=[8,16,16]"))
    train_on, valid = split_scrolls(scrolls, ())
    assert [scroll.name for scroll in valid] == ["scroll_002"]
    assert [scroll.name for scroll in train_on] == ["scroll_000", "scroll_001"]
    assert [scroll.name for scroll in split_scrolls(scrolls, ("scroll_000",))[1]] == ["scroll_000"]
    with pytest.raises(UsageError, match="there are scroll_000"):
        split_scrolls(scrolls, ("scroll_007",))
    with pytest.raises(UsageError, match="none is left"):
        split_scrolls(scrolls, tuple(scroll.name for scroll in scrolls))


def test_a_patch_that_the_network_cannot_halve_is_refused_at_once() -> None:
    """Before anything is made."""
    with pytest.raises(UsageError, match="multiple of 2"):
        config_of("patch=[15,32,32]")


def test_a_misspelt_key_is_answered_with_those_there_are() -> None:
    """As for every workload."""
    with pytest.raises(UsageError, match="train_batch_size"):
        config_of("train_batchsize=4")


def test_the_workload_is_found_by_name() -> None:
    """With a default for everything."""
    assert WORKLOAD.name == "vesuvius"
    assert isinstance(WORKLOAD.task(WORKLOAD.config()), VesuviusTask)
