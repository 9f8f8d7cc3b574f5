"""Rows of `.npy` files, and a dataset of somebody's own: the parts `npy` and `torch` of `stoker bench feed`.

Both read the set of the disk's part, by the source alone: no cache under it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stoker.bench.contest import OURS, Contender, Contest, ours, worker_plans
from stoker.bench.feed_disk import BATCH, gather_limits, make_rows

_STRETCH = 0.4


def measure_npy(folder: Path, *, rows: int, seconds: float, peers: bool) -> list[dict[str, Any]]:
    """The npy source beside a DataLoader over the same map."""
    data = folder / "data"
    make_rows(data, rows)
    plan = {"data": str(data), "batch": BATCH}
    contenders = [ours("stoker", {"way": "npy", **plan}), *gather_limits(plan)]
    if peers:
        contenders += [
            Contender(kind=f"peer_dataloader_{way}", module="plain", plans=worker_plans(way=way, **plan))
            for way in ("memmap", "gather")
        ]
    return _hold("npy", folder, rows, contenders, seconds)


def measure_torch(folder: Path, *, rows: int, seconds: float, peers: bool) -> list[dict[str, Any]]:
    """A dataset that loads a file a sample: under a feed, under a DataLoader, and asked by itself."""
    data = folder / "data"
    make_rows(data, rows)
    plan = {"data": str(data), "batch": BATCH}
    contenders = [
        Contender(kind="stoker", module=OURS, plans=worker_plans(way="torch", **plan), needed=True),
        ours("default", {"way": "torch", **plan}),
        Contender(kind="limit", module="plain", plans=[{"way": "alone", "workers": 0, **plan}], needed=True),
    ]
    if peers:
        plans = worker_plans(way="files", **plan)
        contenders.append(Contender(kind="peer_dataloader", module="plain", plans=plans))
    return _hold("torch", folder, rows, contenders, seconds)


def _hold(
    part: str, folder: Path, rows: int, contenders: Sequence[Contender], seconds: float
) -> list[dict[str, Any]]:
    return Contest(part, folder, stretch_s=_STRETCH, expected=rows, warm=True).hold(contenders, seconds)
