"""How much memory the process that trains has, and its workers, by the counters beside a run. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """In bytes: `main` by its share of the pages that it shares, `worker` its private memory (USS).

    Of the workers the mean of the last reading; None where none was sized. `tried`: they are those of the
    loop with so many, which has none of its own.
    """

    main: int | None = None
    worker: int | None = None
    tried: int | None = None


def with_tried(own: Sizes | None, tried: tuple[int, int] | None) -> Sizes | None:
    """With what a worker has where so many were tried, as (workers, bytes), of a loop that has none."""
    if own is None or own.worker is not None or tried is None:
        return own
    return replace(own, worker=tried[1], tried=tried[0])


def read_sizes(lines: Sequence[Mapping[str, Any]]) -> Sizes | None:
    """The last sizes in the lines of `resources.jsonl`; they are taken now and then, not in every line."""
    main: int | None = None
    workers: dict[int, int] = {}
    for line in lines:
        main = line.get("pss_bytes") or line.get("rss_bytes") or main
        sized = {one["pid"]: one["uss_bytes"] for one in line.get("processes") or [] if one.get("uss_bytes")}
        workers = sized or workers
    if main is None and not workers:
        return None
    return Sizes(main=main, worker=round(fmean(workers.values())) if workers else None)
