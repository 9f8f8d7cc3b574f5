"""ImageNet-like sets: their layout, what is drawn, and how images grow."""

from pathlib import Path

import numpy as np
import pytest
import torch

from stoker.errors import UsageError
from stoker.feed.transforms import ImageTransform
from stoker.workloads.imagenet.config import ImagenetConfig
from stoker.workloads.imagenet.folders import make_folders, name_classes
from stoker.workloads.imagenet.pictures import draw_photo
from stoker.workloads.imagenet.resizing import Growing
from stoker.workloads.imagenet.task import ImagenetTask, open_sources


def test_the_layout_is_the_real_sets(tmp_path: Path) -> None:
    """Folders train and val, in each one a class, named and filled as ImageNet's are."""
    names = make_folders(tmp_path, classes=3, train_images=2, valid_images=1, scale=0.06)
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.JPEG"))
    valid = [f"val/{name}/ILSVRC2012_val_{number:08d}.JPEG" for number, name in enumerate(names, 1)]
    train = [f"train/{name}/{name}_{number}.JPEG" for name in names for number in range(2)]
    assert files == sorted(train + valid)
    assert all(len(name) == 9 and name[0] == "n" and name[1:].isdigit() for name in names)


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    """A second call makes only what is missing, and the same as before."""
    wanted = {"classes": 2, "train_images": 2, "valid_images": 1, "scale": 0.06}
    make_folders(tmp_path, **wanted)  # type: ignore[arg-type]
    first, *_, last = sorted(tmp_path.rglob("*.JPEG"))
    kept, whole = first.stat().st_mtime_ns, last.read_bytes()
    last.unlink()
    make_folders(tmp_path, **wanted)  # type: ignore[arg-type]
    assert (first.stat().st_mtime_ns, last.read_bytes()) == (kept, whole)


def test_photographs_of_a_class_are_alike_and_differ() -> None:
    """Two of one class have nearer mean colours than two of different classes; no two are the same."""
    names = name_classes(6)
    means = np.array([[draw_photo(name, k, scale=0.1).mean(axis=(0, 1)) for k in range(4)] for name in names])
    within = np.abs(means - means.mean(axis=1, keepdims=True)).mean()
    between = np.abs(means.mean(axis=1) - means.mean(axis=(0, 1))).mean()
    assert between > 1.5 * within
    assert not np.array_equal(draw_photo(names[0], 0, scale=0.1), draw_photo(names[0], 1, scale=0.1))


def test_a_set_of_one_class_is_told(tmp_path: Path) -> None:
    """Before a model is made for it."""
    [name] = make_folders(tmp_path, classes=1, train_images=1, valid_images=1, scale=0.06)
    with pytest.raises(UsageError, match=f"train has one class, {name}: .* 2 or more"):
        open_sources(ImagenetConfig(data=str(tmp_path), classes=None))


def test_images_grow_in_steps_to_the_full_size() -> None:
    """Multiples of 32 on the way; from epoch `until` on the transform's own size, whatever it is."""
    growing = Growing(transform=ImageTransform(size=72), start=32, until=2)
    assert [growing.size(epoch) for epoch in range(4)] == [32, 32, 72, 72]
    images = torch.randint(0, 256, (2, 3, 80, 80), dtype=torch.uint8)
    for epoch, side in ((0, 32), (2, 72)):
        made = growing(images, samples=np.array([4, 9]), seed=0, epoch=epoch)
        plain = ImageTransform(size=side)(images, samples=np.array([4, 9]), seed=0, epoch=epoch)
        assert torch.equal(made, plain)
    with pytest.raises(UsageError, match="from 96 pixels to 72"):
        Growing(transform=ImageTransform(size=72), start=96, until=2)
    grown, alike = ImagenetConfig(start_size=32, grow_epochs=2), ImagenetConfig()
    assert [ImagenetTask(grown).largest_epoch(epochs) for epochs in (1, 2, 3, 8)] == [0, 1, 2, 2]
    assert ImagenetTask(alike).largest_epoch(8) == 0
