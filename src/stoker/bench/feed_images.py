"""Pictures in class folders: the part `images` of `stoker bench feed`."""

import io
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.bench.children import say
from stoker.bench.contest import Contender, Contest, ours, peer_of, process_plans
from stoker.bench.peers import Peer, find_peer
from stoker.errors import MissingExtra

PICTURES, CLASSES, BATCH = 1024, 16, 128
# Height and width, as most of ImageNet's are.
_SIZES = ((375, 500), (375, 500), (500, 375), (333, 500), (375, 500), (400, 500), (500, 333), (375, 500))
# By which files of these pictures have some 100 KB on the average; ImageNet's have 110.
_QUALITY = 90
_STRETCH = 1.0
# Of a peer, the name of its environment, its distribution, its script.
PEERS = (
    ("webdataset", "webdataset", "pillow_pictures"),
    ("litdata", "litdata", "pillow_pictures"),
    ("ffcv", "ffcv", "ffcv_pictures"),
)


def measure_images(
    folder: Path, *, pictures: int, seconds: float, peers: bool
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The runs, and the versions of the peers in them."""
    data, work = folder / "data", folder / "work"
    size = make_pictures(data, pictures)
    say(f"images: {pictures} files of {size / pictures / 1e3:.0f} KB on the average")
    work.mkdir()
    # An epoch takes a second or more: two of each setting tell which is best. (By one, beside other work,
    # WebDataset was once given no workers, at half its rate.)
    contest = Contest(
        "images", folder, stretch_s=_STRETCH, expected=pictures, classes=CLASSES, tuning_turns=2
    )
    plan = {"data": str(data), "batch": BATCH}
    contenders = [
        ours("stoker", {"way": "images", **plan}),
        ours("ram", {"way": "images_ram", **plan}),
        Contender(
            kind="limit", module="jpeg_decodes", plans=[{**plan, "workers": os.cpu_count()}], needed=True
        ),
    ]
    versions: dict[str, str] = {}
    if peers:
        written = partial(process_plans, work=str(work), **plan)
        contenders.append(
            Contender(kind="peer_dataloader", module="pillow_pictures", plans=written(way="folders"))
        )
        for name, distribution, module in PEERS:
            found = find_peer(name, distribution=distribution)
            if isinstance(found, Peer):
                versions[distribution] = found.version
            if name == "ffcv":  # its threads are what others' workers are; it has no way without
                plans = [one for one in written(quality=_QUALITY) if one["workers"]]
            else:
                plans = written(way=name)
            made = peer_of(found, f"peer_{name}", module, plans)
            contest.leave_out(f"peer_{name}", made) if isinstance(made, str) else contenders.append(made)
    return contest.hold(contenders, seconds), versions


def make_pictures(folder: Path, pictures: int) -> int:
    """The set, a folder a class; how many bytes it has. A picture's squares tell its number (`turn.py`)."""
    for name in range(CLASSES):
        (folder / f"{name:02d}").mkdir(parents=True)
    ground = _make_ground()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return sum(pool.map(partial(_write_picture, folder, ground), range(pictures)))


def _make_ground() -> NDArray[np.uint8]:
    """What pictures are cut from: colours that change slowly, edges, and grain."""
    chance = np.random.default_rng(0)
    values = chance.normal(0, 20, (1200, 1200, 3))
    for cell, strength in ((300, 45), (75, 30), (20, 22), (6, 12)):
        coarse = chance.normal(0, strength, (1200 // cell, 1200 // cell, 3))
        values += np.kron(coarse, np.ones((cell, cell, 1)))
    return np.clip(values + 120, 0, 255).astype(np.uint8)


def _write_picture(folder: Path, ground: NDArray[np.uint8], number: int) -> int:
    try:
        from PIL import Image  # which the other parts do without
    except ImportError as missing:
        raise MissingExtra("pillow", "images", "making pictures to measure") from missing

    height, width = _SIZES[number % len(_SIZES)]
    chance = np.random.default_rng(number)
    top, left = chance.integers(0, (1200 - height, 1200 - width)).tolist()
    pixels = ground[top : top + height, left : left + width].copy()
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    rows = slice(top + side * 8 // 16, top + side * 9 // 16)
    for bit in range(12):
        columns = slice(left + side * (2 + bit) // 16, left + side * (3 + bit) // 16)
        pixels[rows, columns] = 255 if number >> bit & 1 else 0
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=_QUALITY)
    path = folder / f"{number % CLASSES:02d}" / f"{number:06d}.jpg"
    return path.write_bytes(buffer.getvalue())
