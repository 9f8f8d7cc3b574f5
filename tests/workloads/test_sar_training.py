"""SAR autoencoders trained for real, small: they learn, are pictured and compared."""

import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from stoker.errors import UsageError
from stoker.train.config import OptimizerConfig, ScheduleConfig, StopConfig, TrainConfig
from stoker.train.config_file import load
from stoker.train.fit import fit
from stoker.train.rate import find_rate
from stoker.train.task import World
from stoker.workloads.sar import WORKLOAD
from stoker.workloads.sar.comparison import compare, mean_psnr
from stoker.workloads.sar.config import MadeConfig, SarConfig
from stoker.workloads.sar.peak import Peak
from stoker.workloads.sar.shards import make_shards
from stoker.workloads.sar.task import SarTask, open_source

EXAMPLES = Path(__file__).parents[2] / "examples"


def small(tmp_path: Path, samples: int = 54, **settings: Any) -> SarConfig:
    """Patches of 32 pixels, a few thousandths of the real model's work."""
    folder = make_shards(tmp_path / "shards", samples=samples, files=3, side=32, looks=16)
    train = TrainConfig(
        epochs=2,
        batch_size=16,
        device="cpu",
        preflight=False,
        loggers=(),
        log_every=2,
        optimizer=OptimizerConfig(lr=3e-3),
        schedule=ScheduleConfig(name="cosine", warmup=0.1),
    )
    return SarConfig(data=str(folder), base=8, train=train, **settings)


def test_it_learns_far_better_than_the_mean(tmp_path: Path) -> None:
    """PSNR ends well above predicting the mean of all patches; the picture has three columns a patch."""
    config = small(tmp_path, samples=142)
    config = replace(config, mse=1.0, ssim=0.1, train=replace(config.train, epochs=12))
    told: list[str] = []
    fitted = fit(SarTask(config), out=tmp_path / "run", tell=told.append)
    assert fitted.ended == "done"
    assert fitted.metrics["psnr"] > mean_psnr(config) + 2
    picture = np.asarray(Image.open(fitted.pictures[0]))
    assert picture.shape == (4 * 32 + 3 * 4, 3 * 32 + 2 * 4, 3)


def test_all_three_are_compared_on_a_page(tmp_path: Path) -> None:
    """Each trained on as many steps; a table, curves and pictures, and nothing loaded from elsewhere."""
    config = small(tmp_path)
    page = compare(config, tmp_path / "compared").read_text()
    for name, parameters in (("resnet_lite", "0.37 M"), ("residual", "0.39 M"), ("attention", "0.40 M")):
        assert f"<th>{name}</th>" in page
        assert parameters in page
    assert page.count("data:image/png;base64,") == 3
    assert page.count("<svg") == 2
    assert f"{mean_psnr(config):.2f} dB" in page
    assert "http" not in re.sub('http-equiv="|base64,[^"]*', "", page)
    again = compare(config, tmp_path / "compared").read_text()
    assert again.count("<td") == page.count("<td")
    told = json.loads((tmp_path / "compared" / "comparison.json").read_text())
    assert [one["name"] for one in told["models"]] == ["resnet_lite", "residual", "attention"]
    assert told["models"][0]["psnr"] == max(psnr for _, psnr in told["models"][0]["psnrs"])
    assert told["models"][0]["seconds"] is None
    # Of trainings that were done before, the time and the memory are not known, and nothing is made up.
    assert again.count(">n/a<") == 3 * 2


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's mark of resident memory")
def test_the_peak_is_counted_from_its_beginning() -> None:
    """What was taken and given back before does not count; what is taken after does."""
    peak = Peak()
    assert peak.read() is None
    for megabytes in (256, 64):
        peak.begin(torch.device("cpu"))
        before = peak.read()
        taken = torch.ones(megabytes << 18)
        del taken
        after = peak.read()
        assert before is not None
        assert after is not None
        assert abs((after - before) / 2**20 - megabytes) < 16


def test_a_comparison_has_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which speed and memory can be told."""
    config = small(tmp_path)
    several = replace(config, train=replace(config.train, devices=2))
    with pytest.raises(UsageError, match="a comparison on 2 devices"):
        compare(several, tmp_path / "compared")
    for name, value in (("TORCHELASTIC_RUN_ID", "a"), ("LOCAL_WORLD_SIZE", "2"), ("WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=r"a comparison on 4 devices: .*no torchrun"):
        compare(config, tmp_path / "compared")
    with pytest.raises(UsageError, match="a sweep over 4 devices"):
        find_rate(SarTask(config))
    assert not (tmp_path / "compared").exists()


def test_a_comparison_gives_each_model_all_of_its_steps(tmp_path: Path) -> None:
    """Early stopping would not."""
    config = small(tmp_path)
    impatient = replace(config, train=replace(config.train, stop=StopConfig(patience=1)))
    with pytest.raises(UsageError, match=r"train\.stop\.patience=1"):
        compare(impatient, tmp_path / "compared")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["data=~nobody-of-this-name/sar"], "nobody-of-this-name"),
        (["made.side=8"], "made.side is 8: it must be 16 or more"),
    ],
)
def test_data_that_cannot_be_had_are_told(words: list[str], told: str) -> None:
    """Also of a home that there is not."""
    with pytest.raises(UsageError, match=told):
        open_source(load(SarConfig, None, words))


def test_values_of_another_range_are_scaled(tmp_path: Path) -> None:
    """Shards in dB train as those from 0 to 1 do; the batches are the same to rounding."""
    folder = tmp_path / "decibels"
    folder.mkdir()
    config = small(tmp_path)
    for path in (tmp_path / "shards").glob("*.npy"):
        np.save(folder / path.name, np.load(path) * 40 - 30)
    other = replace(config, data=str(folder), low=-30.0, high=10.0)
    batches = [
        next(iter(SarTask(one).open_feeds(World(), torch.device("cpu")).train)) for one in (config, other)
    ]
    torch.testing.assert_close(batches[0], batches[1], rtol=0, atol=1e-5)
    with pytest.raises(UsageError, match="low must be below high"):
        replace(config, low=1.0)


def test_a_subset_is_seeded_and_never_validated_on(tmp_path: Path) -> None:
    """A fifth of the training share, the same each time; validation stays whole."""
    config = replace(small(tmp_path, samples=100), subset=0.2, train=TrainConfig(batch_size=3, device="cpu"))
    feeds = SarTask(config).open_feeds(World(), torch.device("cpu"))
    again = SarTask(config).open_feeds(World(), torch.device("cpu"))
    assert len(feeds.train) == math.ceil(18 / 3)
    assert feeds.valid is not None
    valid = {row.numpy().tobytes() for batch in feeds.valid for row in batch}
    seen = [row.numpy().tobytes() for batch in feeds.train for row in batch]
    assert len(valid) == 10
    assert len(set(seen)) == 18
    assert not valid & set(seen)
    assert seen == [row.numpy().tobytes() for batch in again.train for row in batch]


def test_the_example_settings_are_the_notes() -> None:
    """They load, and ask for the model, the split and the subset that the field notes had."""
    config = load(SarConfig, EXAMPLES / "sar.toml", ["data=shards"])
    assert (config.model, config.base, config.latent, config.subset) == ("residual", 32, 16, 0.2)


def test_the_defaults_need_no_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The set is made under the folder that the training is started in, once."""
    monkeypatch.chdir(tmp_path)
    config = WORKLOAD.config(made=MadeConfig(samples=24, files=2, side=32))
    WORKLOAD.task(config).open_feeds(World(), torch.device("cpu"))
    (folder,) = (tmp_path / ".stoker" / "data").glob("sar_*")
    made = sorted(path.stat().st_mtime_ns for path in folder.glob("*.npy"))
    feeds = WORKLOAD.task(config).open_feeds(World(), torch.device("cpu"))
    assert sorted(path.stat().st_mtime_ns for path in folder.glob("*.npy")) == made
    assert len(feeds.train) == 1
