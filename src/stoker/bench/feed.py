"""`stoker bench feed`: how fast samples come, beside other loaders and the machine's own limit.

Every rate of a part is taken in turns in one run, at least 5 of each and for the time given; a figure is the
median, `_low` and `_high` its 95% bootstrap interval; a ratio is taken within each turn, our rate over the
other's. `--size PERCENT` shrinks the sets, to see that it works; such figures mean nothing.

disk_warm
    4,096 samples of 98,304 bytes with a label, batches of 256, shuffled, all of it in the page cache; a
    batch is there when its tensors are in the main process. `disk_warm_gb_s` is a `Feed` with
    `tier="source"` over a full cache on disk, as a user makes it; `_tier` the bare disk tier; `_ram` a feed
    that holds the samples in memory. Each loader is a process that stays (`loops/feed_peers/turn.py`) and
    reads whole epochs for 0.4 s a turn, right after one that is not timed; its very first is checked: every
    sample once, with its own number and label. A peer has its own environment (`scripts/bench` makes them),
    its own file format and shuffle, and the best of its settings here (workers, torch's threads). The limit
    is one gather a batch from memory, the fastest of numpy's and torch's on one core and on all.
disk_cold
    8,192 rows of 98,304 bytes that no disk can compress, the page cache emptied before each way. `_limit` is
    the best of 1 to 32 O_DIRECT reads in flight, of the same rows in the same order into the memory of one
    batch: each made by a thread (`_limit_threads`), or all by the kernel's own queue (`_limit_queue`), by
    which the feed reads too. `_first` is a feed's first epoch, in which every row is checked.
sql
    100,000 rows of 7 x 64 floats as bytea (`_array`: float4[]) and a label, on a server of this machine.
    `_limit` is the fastest raw binary COPY whose rows are thrown away, `_kept` the fastest whose rows stay in
    memory; `sql_ratio_copy` is over the first, the stricter, of one bulk read by a source that is made
    already. `_scan` is the same read in batches; `_feed` a feed that holds the rows in memory, from the
    making of its source to the last row there; `_open` the making of the source alone, `_held` the feed
    over one that is made. `sql_speedup` is a bulk read over a query a sample, both with 1 ms a trip. The ways
    are told in `sql_rates.py`.
s3
    2,048 objects of 100,000 bytes on a real server of this machine. `s3_get_s` is the first epoch of a feed
    with a cache on disk, each object read and written there; `_uncached` the same without a cache. Clients
    only get the bytes, with the best number of threads of several; `_limit` is what bare sockets receive of
    the same objects, whose bodies are thrown away. `s3_far_` are the same through a proxy that makes a trip
    25 ms long. `s3_second_epoch_ratio_disk` is an epoch from that cache over a feed of the same rows from a
    local file with a cache of its own.
npy
    The set of disk_warm from its `.npy` file by a feed with `tier="source"` and no cache. The peer is a
    DataLoader over the same map, sample by sample (`memmap`) or by one index a batch (`gather`); the limit
    that of disk_warm.
torch
    A map-style dataset that loads one `.npy` file of 98,304 bytes a sample, under a feed with `tier="source"`
    and under a DataLoader, each with the best number of workers of 0, 1 and 2; `_default` is a feed that is
    told none. `_limit` is the dataset asked for every sample in one process, no batches made of them: the
    rate of one core, which two workers may pass.
images
    1,024 JPEGs of some 100 KB in 16 class folders, sizes as ImageNet's. Everybody decodes to RGB, cuts the
    largest square from the middle and scales it to 224 x 224, 8 bits a channel, in random order, batches of
    128: Stoker, a DataLoader with Pillow, WebDataset and LitData with Pillow over the same files' bytes in
    their shards, FFCV over pictures compressed anew to the same size (it takes no files), which it scales by
    areas. `_ram` is a feed with these pixels in memory. The limit is the decoder alone, on every core, over
    files in memory; nothing is scaled.
volume
    128 patches of 72 x 136 x 136 and their labels at random places of a zarr volume (v3, zstd, chunks of 64
    cubed) of 512 x 1024 x 1024 bytes, batches of 8. `volume_patches_s` decodes chunks, with the source's
    cache of 256 MB for the 1 GB there are, beside a DataLoader with zarr-python; `_disk` is a feed with a
    full cache on disk, beside MONAI's PersistentDataset; `_whole` a cache of all decoded chunks, beside
    MONAI's CacheDataset that holds the volume. The limit is a copy of each patch from the volume in memory.

Parts that are not measured stay as the newest file of this hardware has them, each with its own date and
commit, in the file and on the page.

The disk is the one under the folder for temporary files (TMPDIR).

With `--device cuda` the parts are others, all in one process. Peers there are DataLoaders. Batches of the
others end in the host's memory, which is what the CPU's parts compare; each is named as left out, with why.

vram
    40,960 rows of 98,304 bytes in VRAM, shuffled batches of 256. `vram_gb_s` counts bytes read and written by
    the device's own time for 160 batches queued behind a pause; `vram_host_us` is the host's time for a batch
    when the device keeps up, over four epochs of 160, all of the feed's code included. The peer is a dataset
    over the same tensor in VRAM, a sample at a time, under a DataLoader.
ram
    32,768 rows of 262,144 bytes in RAM, shuffled batches of 64 onto the device; `ram_cores` is CPU time of
    the whole process over wall time. The peer is a DataLoader over the tensor in RAM with pinned memory, with
    the best number of workers. The limit is a copy of pinned memory of the same size.
window
    The same rows under a step that multiplies matrices for 0.6 ms and reads the whole batch; half of them fit
    the VRAM that is allowed. `window_ratio` is its rate over that of a feed with all of them in VRAM. Before
    each turn the card is made as hot as a training makes it.
images
    The pictures of the CPU's part, onto the device: read by a feed as files and decoded there by nvJPEG a
    batch of 256 at a time (`images_gpu_s`), or by the CPU's threads (`_cpu`). Peers are DataLoaders with
    a worker for each core but one that decode by Pillow, and by torchvision on the CPU. The limit is nvJPEG,
    by the batch, over files in memory, nothing scaled.
disk
    The CPU's part on this machine's disk: the device has no part in it, and batches end in the host's memory.
    Peers are those whose environments are there.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

from stoker.bench import (
    feed_datasets,
    feed_disk,
    feed_gpu,
    feed_images,
    feed_s3,
    feed_sql,
    feed_volume,
    joined,
)
from stoker.bench.catalogue import Options
from stoker.bench.children import say
from stoker.bench.feed_figures import figures_of
from stoker.bench.feed_gpu_images import measure_images_on_gpu
from stoker.bench.feed_page import page as page
from stoker.bench.result import Origin, Result, commit_here, hardware_word, versions_here
from stoker.errors import BenchFailed, StokerError, UsageError

Measured = tuple[list[dict[str, Any]], Mapping[str, str]]
# Of the time given, and by name what takes it.
SHARES = {"disk": 0.4, "sql": 0.1, "s3": 0.1, "npy": 0.1, "torch": 0.1, "images": 0.1, "volume": 0.1}
_GPU_PARTS = {
    "vram": feed_gpu.measure_vram,
    "ram": feed_gpu.measure_ram,
    "window": feed_gpu.measure_window,
    "images": measure_images_on_gpu,
}
# Of these, the peers that the CPU's parts have: name, distribution and more. In `window` we are our own.
_GPU_PEERS: Mapping[str, Sequence[tuple[Any, ...]]] = {
    "vram": feed_disk.PEERS,
    "ram": feed_disk.PEERS,
    "images": feed_images.PEERS,
}
# Of a disk's time, for the page cache's part.
_WARM = 0.7


def measure(options: Options) -> Iterator[Result]:
    """Measure each part asked for, all of them unless said."""
    if options.device.startswith("cuda"):
        yield from _measure_gpu(options)
        return
    if options.device not in ("all", "cpu"):
        raise UsageError(f"--device {options.device}: feed is measured on cpu or cuda")
    parts = _parts(options, SHARES)
    share = _share(options.sizes)
    rows = _of(feed_disk.ROWS, share)
    measures: Mapping[str, Callable[[Path, float], Measured]] = {
        "disk": lambda folder, seconds: _disk(folder, seconds, share, options.peers),
        "sql": lambda _, seconds: (_sql(seconds, share), {}),
        "s3": lambda folder, seconds: feed_s3.measure_s3(
            folder, objects=_of(feed_s3.OBJECTS, share), seconds=seconds, peers=options.peers
        ),
        "npy": lambda folder, seconds: (
            feed_datasets.measure_npy(folder, rows=rows, seconds=seconds, peers=options.peers),
            {},
        ),
        "torch": lambda folder, seconds: (
            feed_datasets.measure_torch(folder, rows=rows, seconds=seconds, peers=options.peers),
            {},
        ),
        "images": lambda folder, seconds: feed_images.measure_images(
            folder, pictures=_of(feed_images.PICTURES, share), seconds=seconds, peers=options.peers
        ),
        "volume": lambda folder, seconds: feed_volume.measure_volume(
            folder, share=share, seconds=seconds, peers=options.peers
        ),
    }

    def measure_part(part: str) -> Measured:
        seconds = options.seconds * SHARES[part] / sum(SHARES[one] for one in parts)
        with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
            return measures[part](Path(folder), seconds)

    yield from _each(parts, measure_part, options, figures={"size_percent": share * 100})


def join(new: Result, old: Result) -> Result:
    """With the parts that the old one has alone; of sets that were shrunk in one of them nothing is taken."""
    sizes = {one.figures.get("size_percent", 100) for one in (new, old)}
    return joined.join(new, old, figures_of) if sizes == {100} else new


def _measure_gpu(options: Options) -> Iterator[Result]:
    if not torch.cuda.is_available():
        raise UsageError(f"--device {options.device}, but torch finds no CUDA device here: use --device cpu")
    parts = _parts(options, [*_GPU_PARTS, "disk"])
    share, seconds = _share(options.sizes), options.seconds / len(parts)

    def measure_part(part: str) -> Measured:
        if part == "disk":
            with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
                return _disk(Path(folder), seconds, share, options.peers)
        runs = _GPU_PARTS[part](seconds)
        peers = _GPU_PEERS.get(part, ()) if options.peers else ()
        return [*runs, *feed_gpu.name_absent(runs[0]["part"], peers)], {}

    yield from _each(parts, measure_part, options, figures={"size_percent": share * 100})


def _each(
    parts: Sequence[str],
    measure_part: Callable[[str], Measured],
    options: Options,
    *,
    figures: Mapping[str, float],
) -> Iterator[Result]:
    """Every part in turn, and after each the result so far: the failure or end of one costs no other's."""
    commit = options.commit or commit_here()
    hardware = hardware_word(options.device if options.device.startswith("cuda") else "cpu")
    runs: list[dict[str, Any]] = []
    origins: dict[str, Origin] = {}
    for part in parts:
        try:
            found, more = measure_part(part)
        except StokerError as error:
            if len(parts) == 1:
                raise
            say(f"{part} was left out: {error}")
            runs.append({"part": part, "how": "skipped", "kind": part, "why": str(error)})
        else:
            runs += found
            one = Origin(date=date.today().isoformat(), commit=commit, versions=versions_here(**more))
            origins |= dict.fromkeys((run["part"] for run in found), one)
        yield Result(
            bench="feed",
            hardware=hardware,
            figures={**figures, **figures_of(runs)},
            runs=list(runs),
            versions=joined.versions_of(origins) or versions_here(),
            commit=commit,
            parts=dict(origins),
        )
    _complain(runs)


def _is_left_out(run: Mapping[str, Any]) -> bool:
    return bool(run["how"] == "skipped" and run["kind"] == run["part"])


def _complain(runs: Sequence[Mapping[str, Any]]) -> None:
    """What was measured is written by now; that a part was left out must still be told by the exit code."""
    left = [f"{run['part']} ({run['why']})" for run in runs if _is_left_out(run)]
    if left:
        raise BenchFailed(f"left out: {'; '.join(left)}")


def _parts(options: Options, known: Iterable[str]) -> list[str]:
    parts = list(options.parts) or list(known)
    unknown = [part for part in parts if part not in list(known)]
    if unknown:
        raise UsageError(f"no part {unknown[0]!r} of feed: --part {', '.join(known)}")
    return parts


def _share(sizes: Sequence[int]) -> float:
    if not sizes:
        return 1.0
    if len(sizes) > 1 or not 1 <= sizes[0] <= 100:
        raise UsageError(f"--size {' --size '.join(map(str, sizes))}: for feed, one percentage from 1 to 100")
    return sizes[0] / 100


def _of(full: int, share: float) -> int:
    """So much of a set, in whole batches for any number of workers."""
    least = 2 * feed_disk.BATCH
    return max(least, round(full * share / least) * least)


def _disk(folder: Path, seconds: float, share: float, peers: bool) -> Measured:
    rows = _of(feed_disk.ROWS, share)
    warm, versions = feed_disk.measure_warm(folder, rows=rows, seconds=seconds * _WARM, peers=peers)
    cold = feed_disk.measure_cold_rows(
        folder, rows=_of(feed_disk.COLD_ROWS, share), seconds=seconds * (1 - _WARM)
    )
    return [*warm, *cold], versions


def _sql(seconds: float, share: float) -> list[dict[str, Any]]:
    rows, queries = _of(feed_sql.ROWS, share) if share < 1 else feed_sql.ROWS, feed_sql.QUERIES
    return feed_sql.measure_sql(rows=rows, queries=max(50, int(queries * share)), seconds=seconds)
