"""FFCV over pictures in its own file as JPEG, in random order, from the page cache.

Its writer takes pixels and no files: they are compressed anew, by the quality that the files have.
Its decoder cuts the largest square from the middle and scales it to 224 x 224, by areas where others do it
bilinearly with anti-aliasing.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.basics import IntDecoder
from ffcv.fields.rgb_image import CenterCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image


class _Pictures:
    """What its writer takes: samples by number."""

    def __init__(self, data: Path) -> None:
        names = sorted(folder.name for folder in data.iterdir())
        self.files = [
            (path, label) for label, name in enumerate(names) for path in sorted((data / name).iterdir())
        ]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        path, label = self.files[index]
        with Image.open(path) as image:
            return np.array(image.convert("RGB")), label


def open_epochs(
    *, data: str, work: str, batch: int, workers: int, quality: int
) -> Callable[[], Iterable[Any]]:
    """Its loader, with that many threads."""
    path, pictures = Path(work) / "ffcv_pictures.beton", _Pictures(Path(data))
    if not path.exists():
        fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=quality), "label": IntField()}
        DatasetWriter(str(path), fields, num_workers=2).from_indexed_dataset(pictures)
    loader = Loader(
        str(path),
        batch_size=batch,
        num_workers=workers,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={
            "image": [CenterCropRGBImageDecoder((224, 224), ratio=1.0), ToTensor(), ToTorchImage()],
            "label": [IntDecoder(), ToTensor()],
        },
    )
    return lambda: loader
