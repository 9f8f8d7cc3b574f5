"""Feeds: whoever reads is killed, disks and memory give out, caches are harmed. Samples are counted."""

import os
from functools import partial
from pathlib import Path

from stoker.bench.faults import damage, samples
from stoker.bench.faults.disks import MIB, disk
from stoker.bench.faults.judge import Seen
from stoker.bench.faults.reading import Reading
from stoker.bench.faults.row import GOES_ON, Row
from stoker.bench.faults.scene import Child, Scene
from stoker.ward import surroundings

_COUNTED = "samples by number, each once an epoch with its own values; processes, shared memory"
# A cache keeps this much of a disk free (`stoker.feed.tiers.disk.RESERVE_BYTES`), and needs some more.
_ROOM = 3 << 30
_PAGED = 4096


def kill_reader(scene: Scene) -> Seen:
    """The process that reads, from the source, from memory, or over a cache on disk."""
    tier, cached = scene.random.choice((("source", False), ("ram", False), ("source", True)))
    cache = scene.folder / "cache" if cached else None
    job = Reading(scene, scene.random.choice(("npy", "images")), tier=tier, cache=cache)
    child = job.start()
    reached = job.reaches(child, job.draw())
    scene.pause(0.05)
    met = child.kill() and reached
    return _resumed(scene, job, met=met, note=f"{tier}{' and a disk cache' if cached else ''}")


def kill_worker(scene: Scene) -> Seen:
    """One of a feed's two worker processes."""
    job = Reading(scene, "torch", workers=2)
    child = job.start()
    reached = job.reaches(child, job.draw())
    scene.pause(0.05)
    met = reached and scene.kill_one(child.below("read.py"))
    ended = [job.ended(child, names=r"worker|process")]
    if ended[0].code:
        ended.append(job.ended(job.start()))
    return Seen(ended=tuple(ended), counts=job.counts(), left=scene.left(), met=met)


def fail_thread(scene: Scene) -> Seen:
    """A thread that reads ahead meets an error of its source, which comes out where its batch would have."""
    flag = scene.folder / "flag"
    job = Reading(scene, "stumbling", flag=str(flag))
    child = job.start()
    reached = job.reaches(child, job.draw())
    flag.touch()
    first = job.ended(child, own=r"OSError: \[Errno 5\]")
    met = reached and not flag.exists()
    flag.unlink(missing_ok=True)
    ended = (first, job.ended(job.start())) if first.code else (first,)
    return Seen(ended=ended, counts=job.counts(), left=scene.left(), met=met)


# --- disks ----------------------------------------------------------------------------------------


def fill_cache_disk(scene: Scene) -> Seen:
    """The disk under a cache fills up, or lets no file grow past a size."""
    if scene.random.random() < 0.3:
        most = scene.random.randrange(64 << 10, MIB)
        job = Reading(
            scene,
            cache=scene.folder / "cache",
            numbers=_PAGED,
            prefix=("prlimit", f"--fsize={most}"),
        )
        return _went_on(scene, job, job.start(), note=f"files of {most} bytes at most")
    with disk(scene.folder / "disk", _ROOM) as small:
        job = Reading(scene, cache=small.folder / "cache", numbers=_PAGED)
        child = job.start()
        met = job.reaches(child, job.draw())
        small.fill(spare=scene.random.choice((0, 64 << 10)))
        return _went_on(scene, job, child, met=met)


def lock_cache_disk(scene: Scene) -> Seen:
    """A cache on a disk that is read-only: empty, or with some of the samples on it."""
    with disk(scene.folder / "disk", _ROOM) as small:
        job = Reading(scene, cache=small.folder / "cache", numbers=_PAGED)
        if scene.random.random() < 0.7:
            child = job.start()
            job.reaches(child, job.draw())
            child.kill()
        small.lock()
        return _resumed(scene, job)


def harm_cache(scene: Scene) -> Seen:
    """A cache's files, before it is opened or while it is read."""
    cache = scene.folder / "cache"
    job = Reading(scene, cache=cache, numbers=scene.random.choice((samples.NUMBERS, _PAGED)))
    child = job.start()
    reached = job.reaches(child, job.draw())
    while_open = scene.random.random() < 0.5
    if not while_open:
        child.kill()
    files = [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size]
    note = damage.harm(files, scene.random) if files else "no cache yet"
    if while_open:
        return _went_on(scene, job, child, met=reached and bool(files), note=f"{note}, in use")
    return _resumed(scene, job, met=reached and bool(files), note=note)


def slow_disk(scene: Scene) -> Seen:
    """A disk that does some tens of reads a second, and data that are not in memory."""
    reads = scene.random.randint(40, 120)
    job = Reading(scene, numbers=1 << 14, hold_s=0.0)
    for path in Path(job.where).glob("*.npy"):
        _forget(path)
    with surroundings.disk(reads, scene.folder) as around:
        child = job.start(prefix=around.prefix)
        return _went_on(scene, job, child, note=f"{reads} reads a second")


# --- memory ---------------------------------------------------------------------------------------


def limit_memory(scene: Scene) -> Seen:
    """A memory group in which the samples have no room: they come from where they lie."""
    megabytes = scene.random.randint(500, 700)
    job = Reading(scene, tier="ram", numbers=1 << 19, hold_s=0.0)
    with surroundings.memory(megabytes, scene.folder) as around:
        child = job.start(prefix=around.prefix)
        return _went_on(scene, job, child, note=f"{megabytes} MiB")


def limit_shm(scene: Scene) -> Seen:
    """A /dev/shm that is too small for the samples that were to be held there."""
    megabytes = scene.random.randint(1, 16)
    with surroundings.shm(megabytes, scene.folder) as around:
        job = Reading(scene, tier="ram", numbers=1 << 16, prefix=around.prefix)
        return _went_on(scene, job, job.start(), note=f"{megabytes} MiB")


def limit_shm_of_workers(scene: Scene) -> Seen:
    """A /dev/shm that is too small for the batches that workers hand over; then one that is not."""
    with surroundings.shm(1, scene.folder) as around:
        job = Reading(scene, "torch", workers=2, numbers=1 << 17)
        child = job.start(prefix=around.prefix)
        ended = [job.ended(child, names=r"/dev/shm|shared memory")]
    if ended[0].code:
        ended.append(job.ended(job.start()))
    return Seen(ended=tuple(ended), counts=job.counts(), left=scene.left())


# --- what they share ------------------------------------------------------------------------------


def _resumed(scene: Scene, job: Reading, *, met: bool = True, note: str = "") -> Seen:
    """Started again, it goes on to its end."""
    return Seen(ended=(job.ended(job.start()),), counts=job.counts(), left=scene.left(), met=met, note=note)


def _went_on(scene: Scene, job: Reading, child: Child, *, met: bool = True, note: str = "") -> Seen:
    """It goes on to its end by itself."""
    return Seen(ended=(job.ended(child),), counts=job.counts(), left=scene.left(), met=met, note=note)


def _forget(path: Path) -> None:
    """Have a file out of the page cache."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def fill_card(scene: Scene) -> Seen:
    """A card of which another process takes most while samples are held there: they are held lower."""
    with surroundings.card_leaver(1.0, scene.folder):
        job = Reading(scene, "npy", tier="vram", numbers=1 << 22, device="cuda")
        return _went_on(scene, job, job.start())


_row = partial(Row, part="feed", counted=_COUNTED)

ROWS = (
    _row(
        name="feed-kill",
        fault="kill -9 of the process that reads: from the source, from memory, over a disk cache",
        act=kill_reader,
        times=15,
        seconds=12,
        good=GOES_ON,
    ),
    _row(
        name="feed-kill-worker",
        fault="kill -9 of a loader's worker process",
        act=kill_worker,
        times=15,
        seconds=12,
    ),
    _row(
        name="feed-thread",
        fault="a thread that reads ahead dies of an error of its source",
        act=fail_thread,
        times=10,
        seconds=10,
    ),
    _row(
        name="feed-disk-full",
        fault="the disk of a cache fills up in mid-epoch, or lets no file grow",
        act=fill_cache_disk,
        times=10,
        seconds=7,
        good=GOES_ON,
        needs=("mounts",),
    ),
    _row(
        name="feed-disk-read-only",
        fault="the disk of a cache is read-only, empty or with a part of the samples",
        act=lock_cache_disk,
        times=8,
        seconds=10,
        good=GOES_ON,
        needs=("mounts",),
    ),
    _row(
        name="feed-disk-slow",
        fault="a disk that reads 40 to 120 times a second, cold",
        act=slow_disk,
        times=4,
        seconds=20,
        good=GOES_ON,
        needs=("cgroup-disk",),
    ),
    _row(
        name="feed-cache-harmed",
        fault="a disk cache's files, closed or in use: bits flipped, zeroed, cut, gone, noise, another's",
        act=harm_cache,
        times=20,
        seconds=12,
        good=GOES_ON,
    ),
    _row(
        name="feed-memory",
        fault="a memory group of 500 to 700 MiB, in which the samples do not fit",
        act=limit_memory,
        times=4,
        seconds=15,
        good=GOES_ON,
        needs=("cgroup-memory",),
    ),
    _row(
        name="feed-shm",
        fault="a /dev/shm of 1 to 16 MiB for samples that are to be held there",
        act=limit_shm,
        times=5,
        seconds=8,
        good=GOES_ON,
        needs=("mount-namespace",),
    ),
    _row(
        name="feed-shm-workers",
        fault="a /dev/shm of 1 MiB for the batches of worker processes",
        act=limit_shm_of_workers,
        times=3,
        seconds=20,
        needs=("mount-namespace",),
    ),
    _row(
        name="feed-vram",
        fault="a card with 1 GB left for samples that are to be held there",
        act=fill_card,
        times=4,
        seconds=30,
        good=GOES_ON,
        needs=("cuda",),
    ),
)
