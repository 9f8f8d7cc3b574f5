"""Data sets that are not as they should be, or change under whoever reads them. Samples are counted."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np

from stoker.bench.faults import damage, samples
from stoker.bench.faults.judge import Seen
from stoker.bench.faults.reading import Reading
from stoker.bench.faults.row import CLEAR_ERROR, GOES_ON, Row
from stoker.bench.faults.scene import Scene
from stoker.workloads import png

_KINDS = ("npy", "images", "volume", "sqlite")
_COUNTED = "samples by number, each once an epoch with its own values"
_NAMED = r"/data|samples"


def empty(scene: Scene) -> Seen:
    """A set without samples: no file, files with no rows, a table with none, no class."""
    kind = scene.random.choice((*_KINDS, "torch"))
    folder = scene.folder / "data"
    folder.mkdir()
    if kind == "npy" and scene.random.random() < 0.5:
        np.save(folder / "0.npy", np.empty((0, samples.NUMBERS), np.float32))
    elif kind == "images" and scene.random.random() < 0.5:
        (folder / "class0").mkdir()
    elif kind == "volume":
        np.save(folder / "volume.npy", np.empty((0, 4, 4), np.uint16))
    elif kind == "sqlite":
        samples.make_table(folder / "samples.db", count=0)
    job = Reading(scene, kind, where=folder, count=0)
    ended = job.ended(job.start(), names=_NAMED)
    return Seen(ended=(ended,), counts=job.counts(), left=scene.left(), note=kind)


def one(scene: Scene) -> Seen:
    """A set of one sample, for batches of eight."""
    kind = scene.random.choice(("npy", "images", "sqlite", "torch"))
    tier = scene.random.choice(("source", "ram"))
    job = Reading(scene, kind, count=1, tier=tier)
    ended = job.ended(job.start())
    return Seen(ended=(ended,), counts=job.counts(), left=scene.left(), note=f"{kind}, {tier}")


def ragged(scene: Scene) -> Seen:
    """Samples that are not all alike: another shape or type among the others."""
    kind = scene.random.choice(("npy", "images", "sqlite", "torch"))
    folder = scene.folder / "data"
    if kind != "torch":
        samples.make(kind, folder)
    odd = scene.random.randrange(1, samples.COUNT)
    if kind == "npy":
        place = odd // samples.SHARD * samples.SHARD
        shape = scene.random.choice(((samples.SHARD, 5), (samples.SHARD,), ()))
        np.save(folder / f"{place:05}.npy", np.zeros(shape, scene.random.choice((np.float32, np.int16))))
    elif kind == "images":
        png.write(folder / samples.image_name(odd), samples.pixels_of(odd, samples.SIDE + 3))
    elif kind == "sqlite":
        with sqlite3.connect(folder / "samples.db") as table:
            value = scene.random.choice((b"short", "text", 7, None))
            table.execute("CREATE TABLE other AS SELECT * FROM samples WHERE id != ?", (odd,))
            table.execute("INSERT INTO other VALUES (?, ?)", (odd, value))
            table.execute("DROP TABLE samples")
            table.execute("ALTER TABLE other RENAME TO samples")
        table.close()
    tier = scene.random.choice(("source", "ram"))
    job = Reading(scene, kind, where=folder, tier=tier, ragged=kind == "torch")
    ended = job.ended(job.start(), names=r"sample|shape|size|column|row|\.npy")
    return Seen(ended=(ended,), counts=job.counts_so_far(), left=scene.left(), note=f"{kind}, {tier}")


def nan(scene: Scene) -> Seen:
    """NaN in every fifth sample: a feed hands on what is there, bit by bit."""
    kind = scene.random.choice(("npy", "sqlite", "torch"))
    tier = scene.random.choice(("source", "ram"))
    cache = scene.random.choice((None, scene.folder / "cache"))
    job = Reading(scene, kind, tier=tier, cache=cache, nan=True)
    ended = job.ended(job.start())
    return Seen(ended=(ended,), counts=job.counts(), left=scene.left(), note=f"{kind}, {tier}")


def unreadable(scene: Scene) -> Seen:
    """One file in the middle that is noise, cut short, a folder, or leads nowhere."""
    kind = scene.random.choice(_KINDS)
    job = Reading(scene, kind, tier=scene.random.choice(("source", "ram")))
    path = scene.random.choice(_files(Path(job.where)))
    # A folder among images is one of images.
    ways = (damage.cut, damage.garble, damage.empty, _as_link, *((_as_folder,) if kind != "images" else ()))
    note = f"{kind}: {scene.random.choice(ways)(path, scene.random)}"
    ended = job.ended(job.start(), names=r"/data|samples")
    counts = job.counts_so_far() if ended.code else job.counts()
    return Seen(ended=(ended,), counts=counts, left=scene.left(), note=note)


def change(scene: Scene) -> Seen:
    """Files that are cut, rewritten, touched or removed in mid-epoch; put back, the reading goes on."""
    kind = scene.random.choice(_KINDS)
    job = Reading(scene, kind)
    folder = Path(job.where)
    kept = scene.folder / "kept"
    shutil.copytree(folder, kept)
    child = job.start()
    reached = job.reaches(child, job.draw())
    path = scene.random.choice(_files(folder))
    ways = (damage.cut, damage.empty, damage.remove, *((_update, _add) if kind == "sqlite" else _REWRITTEN))
    note = f"{kind}: {scene.random.choice(ways)(path, scene.random)}"
    ended = [job.ended(child, names=r"/data|samples|rows of the query")]
    if ended[0].code:
        _put_back(kept, folder)
        ended.append(job.ended(job.start()))
    return Seen(ended=tuple(ended), counts=job.counts(), left=scene.left(), met=reached, note=note)


def strange_paths(scene: Scene) -> Seen:
    """Data, cache and notes under names that are odd, no UTF-8, or as long as names can be."""
    home = scene.folder / strange_name(scene)
    kind = scene.random.choice((*_KINDS, "torch"))
    job = Reading(scene, kind, home=home, cache=home / "cache", tier=scene.random.choice(("source", "ram")))
    ended = job.ended(job.start())
    return Seen(ended=(ended,), counts=job.counts(), left=scene.left(), note=f"{kind}: {home.name[:20]!a}")


def strange_name(scene: Scene) -> Path:
    """A name that few expect, a folder or many of them."""
    return Path(
        scene.random.choice(
            (
                "données 数据 🔥",
                'it\'s "quoted" $HOME `x` %20 #1 ?q',
                "-rf --json",
                "[a]*{b}",
                "line\nbreak\tand tab",
                os.fsdecode(b"no-utf8-\xff\xfe"),
                "e\u0301 and \u00e9",
                "n" * 255,
                "/".join(["deep" * 20] * 24),
                "con.npy.zarr",
            )
        )
    )


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _as_folder(path: Path, chance: object) -> str:
    path.unlink()
    path.mkdir()
    return f"{path.name} is a folder"


def _as_link(path: Path, chance: object) -> str:
    path.unlink()
    path.symlink_to(path.with_name("nothing"))
    return f"{path.name} leads nowhere"


def _grow(path: Path, chance: object) -> str:
    with path.open("ab") as file:
        file.write(b"more")
    return f"{path.name} has 4 bytes more"


def _touch(path: Path, chance: object) -> str:
    path.touch()
    return f"{path.name} has another time"


def _update(path: Path, chance: Random) -> str:
    number = chance.randrange(samples.COUNT)
    with sqlite3.connect(path) as table:
        table.execute("UPDATE samples SET x = ? WHERE id = ?", (samples.row_of(999).tobytes(), number))
    table.close()
    return f"row {number} is another"


def _add(path: Path, chance: object) -> str:
    with sqlite3.connect(path) as table:
        table.execute("INSERT INTO samples VALUES (?, ?)", (5000, samples.row_of(999).tobytes()))
    table.close()
    return "a row more"


_REWRITTEN = (damage.garble, _grow, _touch)


def _put_back(kept: Path, folder: Path) -> None:
    """As it was, times of files and all."""
    shutil.rmtree(folder)
    shutil.copytree(kept, folder)


def _row(name: str, fault: str, act: Callable[[Scene], Seen], times: int, **more: object) -> Row:
    return Row(
        name=name,
        part="feed",
        fault=fault,
        counted=_COUNTED,
        act=act,
        times=times,
        seconds=8,
        **more,  # type: ignore[arg-type]
    )


ROWS = (
    _row("data-empty", "sets without a sample", empty, 10),
    _row("data-one", "a set of one sample, batches of eight", one, 6, good=GOES_ON),
    _row("data-ragged", "a sample of another shape or type than the others", ragged, 10, good=CLEAR_ERROR),
    _row("data-nan", "NaN in every fifth sample", nan, 6, good=GOES_ON),
    _row("data-unreadable", "one file that is noise, cut, empty, a folder or a dead link", unreadable, 14),
    _row("data-changed", "a file cut, rewritten, grown, touched or removed in mid-epoch", change, 24),
    _row("paths-feed", "names of no UTF-8, 255 bytes, 2,000 deep, quotes, line ends", strange_paths, 10),
)
