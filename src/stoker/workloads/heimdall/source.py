"""Measurements as samples: the rows of a query, with what their dataset says of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from stoker.errors import SourceBroken, UsageError
from stoker.feed.layout import Layout
from stoker.feed.sources.base import Source
from stoker.feed.sources.sql import Column, SqlSource, hide_password
from stoker.feed.tiers.rows import Rows
from stoker.workloads.heimdall.measurements import FEATURES, RECEIVERS


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """What the datasets that take part have in common."""

    ids: tuple[str, ...]
    area_m: float
    iq_samples: int
    stations: NDArray[np.float64]
    """A row for each receiver, east and north in metres."""


def find_campaign(url: str, dataset_ids: Sequence[str] = ()) -> Campaign:
    """The datasets of a database, or those named."""
    known = SqlSource(url, "SELECT id, area_m, iq_samples FROM datasets")
    if not len(known):
        raise SourceBroken(f"there is no dataset in {hide_password(url)}: fill it, or name another database")
    rows = known.read_all()
    ids: list[str] = rows["id"]
    if unknown := [name for name in dataset_ids if name not in ids]:
        raise UsageError(f"no dataset {unknown[0]!r}: there are {', '.join(sorted(ids))}")
    chosen = [at for at, name in enumerate(ids) if not dataset_ids or name in dataset_ids]
    lengths = {int(rows["iq_samples"][at]) for at in chosen}
    if len(lengths) > 1:
        raise UsageError(
            f"the datasets' signals have {sorted(lengths)} values: name those of one length by dataset_ids"
        )
    names = tuple(ids[at] for at in chosen)
    marks, values = _names(dataset_ids)
    where = f" WHERE dataset_id IN ({marks})" if marks else ""
    stations = SqlSource(url, f"SELECT id, x_m, y_m FROM receivers{where}", parameters=values).read_all()
    return Campaign(
        ids=names,
        area_m=float(rows["area_m"][chosen].max()),
        iq_samples=lengths.pop(),
        stations=torch.stack([stations["x_m"], stations["y_m"]], dim=1).numpy(),
    )


def open_source(
    url: str, campaign: Campaign, split: Literal["train", "valid"], dataset_ids: Sequence[str] = ()
) -> SqlSource:
    """The samples of a split: `position` is made of `x_m` and `y_m` by the task, the rest is as stored."""
    marks, values = _names(dataset_ids)
    only = f" AND dataset_id IN ({marks})" if marks else ""
    source = SqlSource(
        url,
        f"SELECT id, x_m, y_m, heard, features, iq FROM samples WHERE split = '{split}'{only}",
        parameters=values,
        columns={
            "x_m": Column(dtype=torch.float32),
            "y_m": Column(dtype=torch.float32),
            "heard": Column(dtype=torch.uint8, shape=(RECEIVERS,)),
            "features": Column(dtype=torch.float32, shape=(RECEIVERS, len(FEATURES))),
            "iq": Column(dtype=torch.int8, shape=(RECEIVERS, 2, campaign.iq_samples)),
        },
    )
    if not len(source):
        raise SourceBroken(
            f"no sample of the split {split!r} is in {hide_password(url)}: fill it, or name another database"
        )
    return source


def bytes_per_thousand(source: Source) -> int:
    """What 1,000 samples take of the memory that they are held in, the device's or the host's."""
    layout = Layout.of(source.read(np.zeros(1, np.int64)))
    return Rows.bytes_needed(layout, 1000)


def _names(dataset_ids: Sequence[str]) -> tuple[str, tuple[Any, ...]]:
    """Places for the ids in a query, and what is bound to them; none for all datasets."""
    return ", ".join(f"${number}" for number in range(1, len(dataset_ids) + 1)), tuple(dataset_ids)
