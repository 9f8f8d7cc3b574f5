"""ResNet-50 on made photographs: it learns, from a folder and from a store, and finds its rate."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.errors import UsageError
from stoker.train.config import OptimizerConfig, TrainConfig
from stoker.train.config_file import load
from stoker.train.fit import fit
from stoker.train.rate import find_rate
from stoker.train.task import World
from stoker.ward.s3 import S3Server, serve
from stoker.workloads.imagenet import ImagenetConfig, ImagenetTask
from stoker.workloads.imagenet.config import MadeConfig
from stoker.workloads.imagenet.folders import make_folders
from stoker.workloads.imagenet.model import ResNet50

CPU = torch.device("cpu")
EXAMPLES = Path(__file__).parents[2] / "examples"
STORED: dict[str, Any] = {"classes": 4, "train_images": 2, "valid_images": 1, "scale": 0.1}


def small(root: Path, classes: int = 3, images: int = 4, **settings: Any) -> ImagenetConfig:
    """Photographs of some 50 pixels, seen at 32."""
    make_folders(root, classes=classes, train_images=images, valid_images=2, scale=0.1)
    train = TrainConfig(
        batch_size=8,
        device="cpu",
        preflight=False,
        loggers=(),
        optimizer=OptimizerConfig(name="sgd", lr=0.02),
    )
    return ImagenetConfig(
        data=str(root), **{"pixels": 40, "image_size": 32, "classes": None, "train": train, **settings}
    )


def test_classes_are_taken_by_their_seed_on_both_sides(tmp_path: Path) -> None:
    """As many as asked for, the same to train and to validate on; labels count them."""
    task = ImagenetTask(small(tmp_path, classes=5, images=2))
    some = ImagenetTask(replace(task.config, classes=2))
    assert len(task.classes) == 5
    assert len(some.classes) == 2
    assert set(some.classes) < set(task.classes)
    feeds = some.open_feeds(World(), CPU)
    assert feeds.valid is not None
    for feed, count in ((feeds.train, 4), (feeds.valid, 4)):
        labels = torch.cat([labels for _, labels in feed])
        assert sorted(labels.tolist()) == sorted([0, 1] * (count // 2))


def test_crops_grow_and_the_middle_is_judged(tmp_path: Path) -> None:
    """Training images begin small; validation sees the full size from the first epoch on."""
    task = ImagenetTask(small(tmp_path, start_size=16, grow_epochs=1))
    feeds = task.open_feeds(World(), CPU)
    assert feeds.valid is not None
    assert [tuple(next(iter(feeds.train))[0].shape[2:]) for _ in range(2)] == [(16, 16), (32, 32)]
    assert next(iter(feeds.valid))[0].shape[2:] == (32, 32)


def test_each_size_of_growing_images_is_compiled_by_itself(tmp_path: Path) -> None:
    """None with its height or width left open, which takes a compiler minutes; the end of an epoch too."""
    torch.compiler.reset()  # what was compiled of it before counts against a limit
    config = small(tmp_path, start_size=32, grow_epochs=1, pixels=64, image_size=64)
    task = ImagenetTask(replace(config, train=replace(config.train, compile=True)))
    compiled: list[tuple[int, ...]] = []
    left_open: list[Any] = []

    def note(graph: Any, inputs: Any) -> Any:
        left_open.extend(one for one in inputs if isinstance(one, torch.SymInt))
        compiled.extend(tuple(one.shape) for one in inputs if _is_image(one))
        return graph.forward

    model = task.build_model().train()
    model.compile(backend=note)
    for count, size in ((8, 32), (8, 64), (4, 64)):
        for _ in range(2):
            task.loss(model, (torch.rand(count, 3, size, size), torch.zeros(count, dtype=torch.int64)))
    assert compiled == [(8, 3, 32, 32), (8, 3, 64, 64), (4, 3, 64, 64)]
    assert left_open == []


def _is_image(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and not isinstance(one, torch.nn.Parameter) and one.dim() == 4


def test_a_checkpoint_begins_the_training(tmp_path: Path) -> None:
    """Features from a file of another number of classes; a file that is not there is told."""
    torch.manual_seed(0)
    other = ResNet50(7)
    torch.save(other.state_dict(), tmp_path / "resnet50.pth")
    config = replace(small(tmp_path / "set", images=1), weights=str(tmp_path / "resnet50.pth"))
    model = ImagenetTask(config).build_model()
    assert torch.equal(
        model.get_parameter("layer4.2.conv3.weight"), other.get_parameter("layer4.2.conv3.weight")
    )
    with pytest.raises(UsageError, match=r"no checkpoint .*absent\.pth"):
        ImagenetTask(replace(config, weights=str(tmp_path / "absent.pth"))).build_model()


def test_norms_and_biases_are_not_decayed(tmp_path: Path) -> None:
    """Two groups that hold all weights once."""
    task = ImagenetTask(small(tmp_path, images=1))
    model = task.build_model()
    decayed, plain = task.group_parameters(model)
    assert plain["weight_decay"] == 0.0
    assert all(weight.dim() > 1 for weight in decayed["params"])
    assert len(decayed["params"]) + len(plain["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"image_size": 99}, "image_size is 99"),
        ({"start_size": 16}, "start_size without grow_epochs"),
        ({"data": None, "stage": "here"}, "stage without data"),
        ({"data": None, "endpoint": "http://store"}, "endpoint without data"),
        ({"stage": "here", "keep": "there"}, "stage and keep"),
        ({"label_smoothing": 1.0}, "label_smoothing is 1"),
        ({"classes": 1}, "classes is 1: it must be 2 or more"),
        ({"made": {"classes": 0}}, "made.classes is 0"),
        ({"made": {"classes": 1}}, "made.classes is 1: it must be 2 or more"),
    ],
)
def test_settings_that_cannot_be_are_told(settings: dict[str, Any], told: str) -> None:
    """With the value and what is allowed."""
    with pytest.raises(UsageError, match=told):
        if "made" in settings:
            MadeConfig(**settings["made"])
        else:
            ImagenetConfig(**{"data": "somewhere", **settings})


def test_the_example_settings_are_the_notes() -> None:
    """They load, and ask for the classes, the size, the batch and the rate that the field note had."""
    config = load(ImagenetConfig, EXAMPLES / "imagenet100.toml", ["data=s3://bucket/imagenet"])
    assert (config.classes, config.subset_seed, config.image_size) == (100, 42, 224)
    assert (config.train.batch_size, config.train.optimizer.lr) == (256, 0.5)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server with a set of four classes in it, made there."""
    with serve(tmp_path_factory.mktemp("server"), "photos") as server:
        make_folders("s3://photos/set", options=server.options(), **STORED)
        yield server


@pytest.mark.service
def test_a_set_is_made_in_an_object_store(tmp_path: Path, server: S3Server) -> None:
    """The same keys and bytes as in a folder; what is there is found, and not made again."""
    names = make_folders(tmp_path, **STORED)
    assert make_folders("s3://photos/set", options=server.options(), **STORED) == names
    store = server.store("photos/set")
    keys = list(store.gather().keys)
    assert keys == sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.JPEG"))
    assert [store.get(key) for key in keys] == [(tmp_path / key).read_bytes() for key in keys]


@pytest.mark.service
def test_a_store_is_staged_or_kept_as_it_is_read(
    tmp_path: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same batches from the store, staged, and written through; only the classes taken are copied."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    remote = ImagenetConfig(
        data="s3://photos/set", endpoint=server.endpoint, region="us-east-1", classes=2, pixels=40,
        image_size=32, train=TrainConfig(batch_size=4, device="cpu"),
    )  # fmt: skip
    staged, kept = (
        replace(remote, stage=str(tmp_path / "staged")),
        replace(remote, keep=str(tmp_path / "kept")),
    )
    tasks = [ImagenetTask(config) for config in (remote, staged, kept)]
    first, *others = [next(iter(task.open_feeds(World(), CPU).train)) for task in tasks]
    for images, labels in others:
        assert torch.equal(images, first[0])
        assert torch.equal(labels, first[1])
    for folder in ("staged", "kept"):
        found = {path.parent.name for path in (tmp_path / folder / "train").rglob("*.JPEG")}
        assert found == set(tasks[0].classes)


@pytest.mark.slow
def test_it_learns_five_times_chance(tmp_path: Path) -> None:
    """Ten classes in a few minutes on a CPU: top-1 above 50%, top-5 no lower."""
    make_folders(tmp_path / "set", classes=10, train_images=48, valid_images=8, scale=0.15)
    config = ImagenetConfig(data=str(tmp_path / "set"), pixels=56, image_size=48)
    config = replace(config, train=replace(config.train, epochs=6, device="cpu", preflight=False, loggers=()))
    fitted = fit(ImagenetTask(config), out=tmp_path / "run")
    assert fitted.metrics["top1"] > 5 * 0.1
    assert fitted.metrics["top5"] >= fitted.metrics["top1"]
    assert fitted.pictures[0].exists()


@pytest.mark.slow
def test_a_rate_is_found_and_nothing_is_kept(tmp_path: Path) -> None:
    """The sweep's rates rise; what it suggests lies where the loss falls."""
    config = small(tmp_path / "set", classes=4, images=16)
    curve = find_rate(ImagenetTask(config), steps=40)
    assert list(curve.rates) == sorted(curve.rates)
    assert curve.lr is None or curve.rates[0] < curve.lr < curve.rates[-1]
    assert len(curve.losses) >= 20
    with pytest.raises(UsageError, match="fp16"):
        find_rate(ImagenetTask(replace(config, train=replace(config.train, precision="fp16"))))
