"""The localisation as the trainer runs it: what it learns, and what it says."""

import gc
import json
from pathlib import Path

import pytest
import torch

from stoker.errors import UsageError
from stoker.train.config_file import build, load, to_values, without_passwords
from stoker.train.fit import fit
from stoker.train.task import World
from stoker.workloads.heimdall import WORKLOAD, HeimdallConfig, HeimdallTask
from stoker.workloads.heimdall.measurements import FEATURES
from stoker.workloads.heimdall.source import bytes_per_thousand, open_source

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = [
    "made.samples=600", "made.iq_samples=16", "width=32", "layers=2", "train.batch_size=32",
    "train.device=cpu", "train.loggers=[]", "train.preflight=false",
]  # fmt: skip
CPU = torch.device("cpu")


def config_of(*settings: str) -> HeimdallConfig:
    return load(HeimdallConfig, None, [*SMALL, *settings])


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def medians_of_rules(task: HeimdallTask) -> dict[str, float]:
    """What rules that know nothing of times get: the middle of the square, and the loudest receiver."""
    rows = open_source(task.url, task.campaign, "valid").read_all()
    position = torch.stack([rows["x_m"], rows["y_m"]], 1)
    power = rows["features"][..., FEATURES.index("rssi_dbm")].masked_fill(rows["heard"] == 0, -1e9)
    loudest = rows["features"][torch.arange(len(power)), power.argmax(1), :2]
    return {
        "middle": (position).norm(dim=1).median().item(),
        "loudest": (loudest - position).norm(dim=1).median().item(),
    }


def test_a_short_training_beats_rules_that_know_nothing(tmp_path: Path) -> None:
    """Median error below the loudest receiver's place and the middle; it ends with a map and the errors."""
    task = HeimdallTask(config_of("train.epochs=12", "train.optimizer.lr=3e-3"))
    rules = medians_of_rules(task)
    fitted = fit(task, out=tmp_path / "run", tell=lambda text: None)
    assert fitted.best is not None
    assert fitted.best.value < 0.8 * min(rules.values()), rules
    assert [path.name for path in fitted.pictures] == ["map.svg", "errors.json"]
    told = json.loads(fitted.pictures[1].read_text())
    assert told["median_m"] == pytest.approx(fitted.best.value, rel=1e-4)
    assert told["median_m"] < told["p95_m"]
    assert told["bytes_per_1000_samples"] > 0
    assert told["why"].startswith("ram: ")


def test_preloading_falls_back_and_says_why() -> None:
    """It is on by default; without a GPU samples are held in RAM, and that is told."""
    task = HeimdallTask(config_of())
    assert task.config.preload_to_gpu
    feeds = task.open_feeds(World(), CPU)
    assert feeds.train.tier == "ram"
    assert "not vram: the device is the CPU; 1,000 samples take" in feeds.train.why
    assert len(feeds.train) == 480 // 32
    feeds.close()


def test_a_set_in_a_database_of_ones_own_is_filled_when_asked(tmp_path: Path) -> None:
    """And only then; the same set is found again by its id."""
    url = f"sqlite:///{tmp_path / 'own.db'}"
    task = HeimdallTask(config_of(f"database={url}", "fill=true"))
    assert task.campaign.ids == (task.config.made.dataset_id,)
    again = HeimdallTask(config_of(f"database={url}", f'dataset_ids=["{task.config.made.dataset_id}"]'))
    assert again.campaign.ids == task.campaign.ids
    with pytest.raises(UsageError, match="database="):
        config_of("fill=true")


def test_micro_batches_give_the_gradient_of_the_batch() -> None:
    """Weighted by their samples."""
    task = HeimdallTask(config_of())
    torch.manual_seed(0)
    model = task.build_model()
    feeds = task.open_feeds(World(), CPU)
    batch = next(iter(feeds.train))
    task.loss(model, batch).total.backward()
    whole = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
    model.zero_grad()
    for start, stop in ((0, 20), (20, 32)):
        losses = task.loss(model, task.cut(batch, start, stop))
        (losses.total * losses.samples / 32).backward()
    parts = [weight.grad for weight in model.parameters() if weight.grad is not None]
    feeds.close()
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_the_example_settings_are_the_notes() -> None:
    """They load, and ask for the set, the batch and the memory that the field note had."""
    config = load(HeimdallConfig, EXAMPLES / "heimdall.toml", [])
    assert (config.made.samples, config.made.receivers, config.preload_to_gpu) == (4030, 7, True)
    assert (config.train.batch_size, config.train.epochs, config.train.optimizer.lr) == (256, 1000, 1e-3)


def test_the_workload_is_found_by_name() -> None:
    """With a default for everything."""
    assert WORKLOAD.name == "heimdall"
    assert isinstance(WORKLOAD.task(WORKLOAD.config()), HeimdallTask)


@pytest.mark.gpu
def test_a_thousand_samples_take_of_the_device_what_is_said() -> None:
    """Held in VRAM after the first epoch, they take their layout's bytes, but for rounding."""
    task = HeimdallTask(config_of("reserve_gb=1", "made.samples=5000"))
    device = torch.device("cuda", 0)
    gc.collect()  # what tests before it left would be given back in its midst
    before = torch.cuda.memory_allocated(device)
    feeds = task.open_feeds(World(), device)
    for _ in feeds.train:
        pass
    assert feeds.train.tier == "vram"
    taken = torch.cuda.memory_allocated(device) - before
    expected = bytes_per_thousand(open_source(task.url, task.campaign, "train")) * 4
    assert expected <= taken <= 1.1 * expected + (4 << 20)
    feeds.close()


def test_a_password_is_in_no_file_of_a_training() -> None:
    """Settings go to config.json, checkpoints and loggers; the password of a database's URL does not."""
    config = HeimdallConfig(database="postgresql://heimdall:s3cret@db.example/radio")
    kept = without_passwords(to_values(config))
    assert kept["database"] == "postgresql://heimdall:***@db.example/radio"
    assert build(HeimdallConfig, to_values(config)) == config
