"""Staging: killed, without room, onto a disk that cannot be written to, over files that were harmed."""

from functools import partial
from pathlib import Path

from stoker.bench.faults import damage, samples
from stoker.bench.faults.disks import MIB, disk
from stoker.bench.faults.judge import Seen
from stoker.bench.faults.row import CLEAR_ERROR, GOES_ON, Row
from stoker.bench.faults.rows.data import strange_name
from stoker.bench.faults.scene import Scene
from stoker.bench.faults.staging import Staging
from stoker.feed.manifest import NAME

_SIZE = 40_000


def _origin(scene: Scene) -> Path:
    """Files of some size, so that a disk can be too small for them."""

    def make(folder: Path) -> None:
        chance = scene.random
        for number in range(samples.COUNT):
            path = folder / f"class{number % samples.CLASSES}" / f"{number:05}.bin"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(chance.randbytes(_SIZE))

    return scene.services.made("files", make)


def kill(scene: Scene) -> Seen:
    """The process; what is there then is whole, and the same command goes on."""
    origin = _origin(scene)
    job = Staging(scene, origin, origin=origin)
    child = job.start()
    reached = job.reaches(child, scene.random.randrange(samples.COUNT))
    scene.pause(0.02)
    met = child.kill() and reached
    so_far = job.counts_so_far()["files"]
    ended = job.start().ended()
    counts = {"files whole when it was killed": so_far, **job.counts()}
    return Seen(ended=(ended,), counts=counts, left=(*scene.left(), *job.parts()), met=met)


def fill_disk(scene: Scene) -> Seen:
    """A disk that is too small from the start, or fills up on the way; with room again, it goes on."""
    origin = _origin(scene)
    whole = samples.COUNT * _SIZE
    with disk(scene.folder / "disk", 2 * whole) as small:
        job = Staging(scene, origin, origin=origin, target=small.folder / "staged")
        at_once = scene.random.random() < 0.3
        if at_once:
            small.fill(spare=whole // 3)
        child = job.start()
        met = at_once or job.reaches(child, scene.random.randrange(1, samples.COUNT))
        if not at_once:
            small.fill(spare=scene.random.choice((0, 4096, _SIZE)))
        first = child.ended(names=r"full|needs")
        so_far = job.counts_so_far()["files"]
        small.empty_again()
        ended = (first, job.start().ended()) if first.code else (first,)
        counts = {"files whole on the full disk": so_far, **job.counts()}
        return Seen(
            ended=ended, counts=counts, left=(*scene.left(), *job.parts()), met=met and bool(first.code)
        )


def lock_disk(scene: Scene) -> Seen:
    """A target that is read-only: empty, or with a part of the files."""
    origin = _origin(scene)
    with disk(scene.folder / "disk", 64 * MIB) as small:
        job = Staging(scene, origin, origin=origin, target=small.folder / "staged")
        if scene.random.random() < 0.7:
            child = job.start()
            job.reaches(child, scene.random.randrange(samples.COUNT))
            child.kill()
        small.lock()
        first = job.start().ended(names=r"staged")
        small.unlock()
        ended = (first, job.start().ended())
        return Seen(ended=ended, counts=job.counts(), left=(*scene.left(), *job.parts()))


def harm_staged(scene: Scene) -> Seen:
    """The manifest, or staged files, which --verify reads again."""
    origin = _origin(scene)
    job = Staging(scene, origin, origin=origin)
    first = job.start().ended()
    manifest = job.target / NAME
    if scene.random.random() < 0.5:
        note = damage.harm([manifest], scene.random)
    else:
        note = damage.harm(list(job.target.rglob("*.bin")), scene.random, damage.ALL[:-1])
    ended = (first, job.start("--verify").ended(names=r"staged"))
    return Seen(ended=ended, counts=job.counts(), left=(*scene.left(), *job.parts()), note=note)


def strange_paths(scene: Scene) -> Seen:
    """Files and folders under names that are odd, no UTF-8, or as long as names can be."""
    origin, target = scene.folder / "origin" / strange_name(scene), scene.folder / strange_name(scene)
    for number in range(4):
        path = origin / f"class {number}" / strange_name(scene) / "file"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(scene.random.randbytes(100))
    job = Staging(scene, origin, origin=origin, target=target)
    ended = job.start().ended()
    return Seen(ended=(ended,), counts=job.counts(), left=scene.left(), note=f"{target.name[:20]!a}")


_row = partial(Row, part="stage", counted="files byte by byte; parts of files, processes")

ROWS = (
    _row(
        name="stage-kill", fault="kill -9 of the process that stages", act=kill, times=15, seconds=5,
        good=GOES_ON,
    ),
    _row(
        name="stage-disk-full", fault="a disk too small from the start, or full on the way",
        act=fill_disk, times=12, seconds=6, good=CLEAR_ERROR, needs=("mounts",),
    ),
    _row(
        name="stage-disk-read-only", fault="a read-only target, empty or with a part of the files",
        act=lock_disk, times=6, seconds=6, good=CLEAR_ERROR, needs=("mounts",),
    ),
    _row(
        name="stage-harmed", fault="the manifest or staged files: bits flipped, cut, gone, noise",
        act=harm_staged, times=18, seconds=5, good=GOES_ON,
    ),
    _row(
        name="paths-stage", fault="names of no UTF-8, 255 bytes, 2,000 deep, quotes, line ends",
        act=strange_paths, times=10, seconds=4,
    ),
)  # fmt: skip
