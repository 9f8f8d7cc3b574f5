"""The page of `stoker bench feed`, made from its figures. Pure."""

from collections.abc import Sequence

from stoker.bench.page import number, origin, table
from stoker.bench.result import Result

_INTRODUCTION = """\
# How fast samples come

Stoker's feed beside other loaders and beside the machine's own limit: the same bytes, in turns, in one run.
Each figure is the median of its turns, with its 95% bootstrap interval in brackets; a ratio is our rate over
the other's, higher is better. Made by `stoker bench feed`, whose module docstring tells the method; do not
edit.
"""

# Of each section, what its figures begin with, its rows, and how many digits.
_SECTIONS: Sequence[tuple[str, str, Sequence[tuple[str, str, int]]]] = (
    (
        "Disk, from the page cache, GB/s",
        "disk_warm_gb_s",
        (
            ("Feed over a full cache on disk", "", 2),
            ("the disk tier alone", "_tier", 2),
            ("Feed with the samples in memory", "_ram", 2),
            ("limit: a gather from memory", "_limit", 2),
        ),
    ),
    (
        "Disk, cold, GB/s",
        "disk_cold_gb_s",
        (
            ("Feed", "", 2),
            ("Feed, first epoch: every row checked", "_first", 2),
            ("the disk tier alone", "_tier", 2),
            ("limit: the best of 1 to 32 O_DIRECT reads in flight", "_limit", 2),
            ("the best of them by threads", "_limit_threads", 2),
            ("the best of them by the kernel's queue", "_limit_queue", 2),
        ),
    ),
    (
        "Rows of .npy files by the source alone, GB/s",
        "npy_gb_s",
        (("Feed", "", 2), ("limit: a gather from memory", "_limit", 2)),
    ),
    (
        "A torch dataset that loads a file of 98 KB a sample, samples/s",
        "torch_samples_s",
        (
            ("Feed, its best number of workers", "", 0),
            ("Feed, as it comes", "_default", 0),
            ("the dataset alone, without batches", "_limit", 0),
        ),
    ),
    (
        "JPEGs in class folders to 224 x 224, images/s",
        "images_s",
        (
            ("Feed", "", 0),
            ("Feed with the pixels in memory", "_ram", 0),
            ("limit: decoding alone, files in memory", "_limit", 0),
        ),
    ),
    (
        "72 x 136 x 136 patches of a zarr volume and its labels, patches/s",
        "volume_patches_s",
        (
            ("Feed, decoding chunks", "", 0),
            ("Feed over a full cache on disk", "_disk", 0),
            ("Feed with all decoded chunks in memory", "_whole", 0),
            ("limit: copied from the volume in memory", "_limit", 0),
        ),
    ),
    (
        "JPEGs in class folders to 224 x 224 on the device, images/s",
        "images_gpu_s",
        (
            ("Feed, decoded by nvJPEG", "", 0),
            ("Feed, decoded by the CPU", "_cpu", 0),
            ("limit: nvJPEG alone, files in memory", "_limit", 0),
        ),
    ),
    (
        "PostgreSQL, rows/s",
        "sql_rows_s",
        (
            ("bulk read, bytea", "", 0),
            ("Feed into memory, from making the source to the last row, bytea", "_feed", 0),
            ("of that, making the source alone: its keys, NULLs, the state of its tables", "_open", 0),
            ("Feed into memory over a source that is made already, bytea", "_held", 0),
            ("read in batches (scan), bytea", "_scan", 0),
            ("limit: raw binary COPY, thrown away, bytea", "_limit", 0),
            ("raw binary COPY, kept, bytea", "_limit_kept", 0),
            ("bulk read, float4[]", "_array", 0),
            ("limit: raw binary COPY, thrown away, float4[]", "_array_limit", 0),
            ("raw binary COPY, kept, float4[]", "_array_limit_kept", 0),
            ("batches of 256 by key", "_batches", 0),
            ("bulk read, 1 ms a trip", "_far", 0),
            ("a query a sample, 1 ms a trip", "_far_query", 0),
        ),
    ),
    (
        "S3, objects/s",
        "s3_get_s",
        (
            ("Feed, first epoch, caching on disk", "", 0),
            ("Feed, nothing kept", "_uncached", 0),
            ("limit: bare sockets, bodies thrown away", "_limit", 0),
        ),
    ),
    (
        "S3, 25 ms a trip, objects/s",
        "s3_far_get_s",
        (("Feed, first epoch, caching on disk", "", 0), ("Feed, nothing kept", "_uncached", 0)),
    ),
    (
        "S3, second epoch, samples/s",
        "s3_second_epoch_get_s",
        (("Feed, from the cache on disk", "", 0), ("limit: the same rows of a local file", "_limit", 0)),
    ),
    (
        "VRAM, batches of 256 x 98 KB, the device's time, GB/s read and written",
        "vram_gb_s",
        (
            ("Feed", "", 0),
            ("limit: index_select with the indices there", "_limit_index_select", 0),
            ("limit: a device copy", "_limit_copy", 0),
        ),
    ),
    (
        "VRAM, the host's time a batch, us",
        "vram_host_us",
        (("Feed", "", 1), ("limit: index_select with the indices there", "_limit_index_select", 1)),
    ),
    (
        "RAM onto the device, batches of 64 x 256 KB in random order, GB/s",
        "ram_gb_s",
        (("Feed", "", 1), ("limit: a pinned copy", "_limit", 1)),
    ),
    ("RAM onto the device, cores", "ram_cores", (("Feed", "", 2), ("a pinned copy", "_limit_pinned", 2))),
    (
        "A compute-bound step, set twice the VRAM allowed, GB/s",
        "window_gb_s",
        (("window", "", 2), ("ram", "_ram", 2), ("limit: all of it in VRAM", "_limit", 2)),
    ),
)
_RATIOS = (
    ("disk, warm: over the best peer", "disk_warm_ratio_peer", 2),
    ("disk, warm: over the limit", "disk_warm_ratio_limit", 2),
    ("disk, cold: over the limit", "disk_cold_ratio_limit", 2),
    ("npy: over the best DataLoader", "npy_ratio_peer", 2),
    ("npy: over the limit", "npy_ratio_limit", 2),
    ("torch: over the best DataLoader", "torch_ratio_peer", 2),
    ("torch: over the best DataLoader, as it comes", "torch_ratio_peer_default", 2),
    ("images: over the best peer", "images_ratio_peer", 2),
    ("images: over decoding alone", "images_ratio_limit", 2),
    ("volume: over a DataLoader with zarr-python", "volume_ratio_peer", 2),
    ("volume, cache on disk: over MONAI's", "volume_ratio_peer_disk", 2),
    ("volume, chunks in memory: over MONAI's cache", "volume_ratio_peer_whole", 2),
    ("volume, chunks in memory: over a copy from memory", "volume_ratio_limit_whole", 2),
    ("images on the device: over the best peer", "images_gpu_ratio_peer", 2),
    ("images on the device: over nvJPEG alone", "images_gpu_ratio_limit", 2),
    ("PostgreSQL, bulk read: over a raw COPY, rows thrown away, bytea", "sql_ratio_copy", 2),
    ("PostgreSQL, bulk read: over a raw COPY, rows kept, bytea", "sql_ratio_copy_kept", 2),
    (
        "PostgreSQL, bulk read: over a raw COPY, rows thrown away, float4[]",
        "sql_ratio_copy_array",
        2,
    ),
    ("PostgreSQL, read in batches: over a raw COPY, rows thrown away, bytea", "sql_ratio_copy_scan", 2),
    ("PostgreSQL, Feed into memory, opening included: over that COPY, bytea", "sql_ratio_copy_feed", 2),
    ("PostgreSQL, Feed into memory over an open source: over that COPY, bytea", "sql_ratio_copy_held", 2),
    ("PostgreSQL: over a query a sample, 1 ms a trip", "sql_speedup", 0),
    ("S3: first epoch over the best client", "s3_ratio_best_client", 2),
    ("S3: first epoch over the best client, nothing kept", "s3_ratio_best_client_uncached", 2),
    ("S3: first epoch over the server's limit", "s3_ratio_limit", 2),
    ("S3, 25 ms a trip: first epoch over the best client", "s3_far_ratio_best_client", 2),
    ("S3: second epoch over the disk", "s3_second_epoch_ratio_disk", 2),
    ("VRAM: over a device copy", "vram_ratio_limit", 2),
    ("RAM: over the best DataLoader", "ram_ratio_peer", 1),
    ("RAM: over a pinned copy", "ram_ratio_limit", 2),
    ("window: over all in VRAM, the same step", "window_ratio", 3),
    ("ram: over all in VRAM, the same step", "window_ratio_ram", 3),
)


def page(results: Sequence[Result]) -> str:
    """The benchmark's page in Markdown."""
    return "\n".join([_INTRODUCTION, *(_section(result) for result in results)])


def _section(result: Result) -> str:
    figures = result.figures
    parts = [f"## {result.hardware}, {result.date}\n"]
    if figures.get("size_percent", 100) < 100:
        share = f"{figures['size_percent']:.0f}%"
        parts.append(f"Measured on {share} of the sets, to see that it works: the figures mean nothing.\n")
    if result.hardware != "cpu" and any(key.startswith("disk_") for key in figures):
        parts.append(
            "Rows from the disk end in the host's memory, as on cpu: the device has no part in those.\n"
        )
    rows = [[label, number(figures, key, digits)] for label, key, digits in _RATIOS if key in figures]
    if rows:
        parts.append(table(["ours over the other's", "ratio"], rows))
    for title, key, lines in _SECTIONS:
        rows = [
            [label, number(figures, key + ends, digits)]
            for label, ends, digits in lines
            if key + ends in figures
        ]
        digits = lines[0][2]
        peers = [name.removeprefix(f"{key}_peer_") for name in figures if _is_peer(name, key)]
        rows += [[name, number(figures, f"{key}_peer_{name}", digits)] for name in peers]
        if rows:
            parts += [f"### {title}\n", table(["", title.rpartition(", ")[2]], rows)]
    parts += [
        f"{run['kind']} ({run['part']}) was left out: {run['why']}.\n"
        for run in result.runs
        if run["how"] == "skipped"
    ]
    return "\n".join([*parts, origin(result) + "\n"])


def _is_peer(name: str, key: str) -> bool:
    return name.startswith(f"{key}_peer_") and not name.endswith(("_low", "_high"))
