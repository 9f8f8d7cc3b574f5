"""Rows from a disk, warm and cold: the parts `disk_warm` and `disk_cold` of `stoker bench feed`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stoker.bench.children import say
from stoker.bench.contest import LEAST_TURNS, Contender, Contest, ours, peer_of, worker_plans
from stoker.bench.disk_rates import measure_cold
from stoker.bench.peers import Peer, find_peer

ROWS, ROW_BYTES, BATCH = 4096, 98_304, 256
COLD_ROWS = 8192
# Seconds; at 10 GB/s an epoch takes 40 ms.
_STRETCH = 0.4
# Of a peer, the name of its environment, its distribution, its script, its ways.
PEERS = (
    ("ffcv", "ffcv", "ffcv_beton", ()),
    ("litdata", "litdata", "litdata_chunks", ()),
    ("mosaic", "mosaicml-streaming", "mosaic_shards", ()),
    ("webdataset", "webdataset", "webdataset_tars", ()),
    ("monai", "monai", "monai_caches", ("persistent", "cache")),
)


def measure_warm(folder: Path, *, rows: int, seconds: float, peers: bool) -> tuple[list[Any], dict[str, str]]:
    """The runs, and the versions of the peers in them."""
    data, work = folder / "data", folder / "work"
    make_rows(data, rows)
    work.mkdir()
    contest = Contest("disk_warm", folder, stretch_s=_STRETCH, expected=rows, warm=True)
    plan = {"data": str(data), "batch": BATCH}
    written = {**plan, "work": str(work)}
    contenders = [
        ours("stoker", {"way": "feed", **written}),
        ours("tier", {"way": "tier", **written}),
        ours("ram", {"way": "ram", **plan}),
        *gather_limits(plan),
    ]
    versions: dict[str, str] = {}
    if peers:
        loaders = [one for way in ("files", "memmap", "gather") for one in worker_plans(way=way, **plan)]
        contenders.append(Contender(kind="peer_dataloader", module="plain", plans=loaders))
        for name, distribution, module, ways in PEERS:
            found = find_peer(name, distribution=distribution)
            if isinstance(found, Peer):
                versions[distribution] = found.version
            for way in ways or ("",):
                kind = f"peer_{name}_{way}" if way else f"peer_{name}"
                plans = worker_plans(**written, **({"way": way} if way else {}))
                # Its threads are what others' workers are; it has no way without.
                plans = [one for one in plans if one["workers"]] if name == "ffcv" else plans
                made = peer_of(found, kind, module, plans)
                contest.leave_out(kind, made) if isinstance(made, str) else contenders.append(made)
    return contest.hold(contenders, seconds), versions


def gather_limits(plan: dict[str, Any]) -> Sequence[Contender]:
    """One gather from memory: numpy's, torch's on one core, torch's on all."""
    select = [one for one in worker_plans(way="index_select", **plan) if not one.pop("workers")]
    return [
        Contender(kind="limit_take", module="gathers", plans=[{"way": "take", **plan}], needed=True),
        Contender(kind="limit_index_select", module="gathers", plans=select, needed=True),
    ]


def make_rows(folder: Path, rows: int) -> None:
    """The set: `rows.npy`, `labels.npy` and a file a sample; a sample begins with its number, its label."""
    (folder / "files").mkdir(parents=True)
    labels = np.arange(rows, dtype=np.int64)
    values = np.random.default_rng(0).integers(0, 256, (rows, ROW_BYTES), np.uint8)
    values[:, :8] = labels.view(np.uint8).reshape(rows, 8)
    np.save(folder / "rows.npy", values)
    np.save(folder / "labels.npy", labels)
    for number, row in enumerate(values):
        np.save(folder / "files" / f"{number:06d}.npy", row)


def measure_cold_rows(folder: Path, *, rows: int, seconds: float) -> list[dict[str, Any]]:
    """A run for every way in every repeat."""
    say(f"disk_cold: the page cache emptied before each, for about {seconds:.0f} s")
    found = measure_cold(
        folder / "cold", rows=rows, row_bytes=ROW_BYTES, batch=BATCH, rounds=LEAST_TURNS, seconds=seconds
    )
    return [
        {"part": "disk_cold", "how": "turn", "turn": number, "kind": kind, "gb_s": rate}
        for number, rates in enumerate(found)
        for kind, rate in rates.items()
    ]
