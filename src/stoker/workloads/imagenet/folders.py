"""ImageNet-like sets: class folders of made JPEGs in the real set's layout, on disk or in an object store.

ROOT/train/n01234567/n01234567_12.JPEG
ROOT/val/n01234567/ILSVRC2012_val_00000012.JPEG
"""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from stoker.errors import UsageError
from stoker.feed.draws import key
from stoker.feed.sources.objects import Store
from stoker.workloads.imagenet.pictures import draw_jpeg

TRAIN, VALID = "train", "val"


def name_classes(count: int, seed: int = 0) -> list[str]:
    """Names of that many made classes, like those of the real set: an n and eight digits, sorted."""
    if count < 1:
        raise UsageError(f"{count} classes: take 1 or more")
    rng = np.random.Generator(np.random.Philox(key=key(seed, "class names")))
    numbers = rng.choice(20_000_000, size=count, replace=False)
    return sorted(f"n{number:08d}" for number in numbers.tolist())


def make_folders(
    root: str | Path,
    *,
    classes: int,
    train_images: int,
    valid_images: int,
    seed: int = 0,
    scale: float = 1.0,
    options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Make a set under a folder or an object store's address; the names of its classes.

    `train_images` and `valid_images` are those of each class. What is there already is not made again. The
    photographs to validate on are others than those to train on.
    """
    names = name_classes(classes, seed)
    store = Store(root, options=options)
    if store.folder is not None:
        store.folder.mkdir(parents=True, exist_ok=True)
    there = set(store.gather({TRAIN, VALID}.intersection(store.folders())).keys)
    wanted = [
        (file, name, number)
        for place, name in enumerate(names)
        for file, number in _files(name, place, train_images, valid_images)
        if file not in there
    ]

    def make(one: tuple[str, str, int]) -> None:
        file, name, number = one
        store.put(file, draw_jpeg(name, number, seed=seed, scale=scale))

    # The library that encodes lets go of the interpreter's lock, as do the parts of numpy that draw.
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        for _ in threads.map(make, wanted):
            pass
    return names


def _files(name: str, place: int, train: int, valid: int) -> list[tuple[str, int]]:
    """The keys of one class's files, and the number of the photograph in each."""
    first = [(f"{TRAIN}/{name}/{name}_{number}.JPEG", number) for number in range(train)]
    # Validation counts over all classes in the real set.
    offset = place * valid + 1
    return first + [
        (f"{VALID}/{name}/ILSVRC2012_val_{offset + number:08d}.JPEG", train + number)
        for number in range(valid)
    ]
