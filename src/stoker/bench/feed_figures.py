"""What the turns of `stoker bench feed` come to: its figures and its page. Pure."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, TypeAlias

from stoker.bench.page import number, origin, table
from stoker.bench.result import Result
from stoker.bench.turns import as_figures, interval

# Of each kind, its rate in each turn.
Rates: TypeAlias = Mapping[str, Mapping[int, float]]
_RATE: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "disk_warm": lambda run: run["bytes"] / run["seconds"] / 1e9,
    "disk_cold": lambda run: run["gb_s"],
    "sql": lambda run: run["rows_s"],
    "s3": lambda run: run["samples"] / run["seconds"],
    **dict.fromkeys(("vram", "ram", "window"), lambda run: run["gb_s"]),
}


def figures_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Every figure that these runs give. What was not measured is not there."""
    found: dict[str, float] = {}
    makers = {
        "disk_warm": _warm, "disk_cold": _cold, "sql": _sql, "s3": _s3,
        "vram": _vram, "ram": _ram, "window": _window,
    }  # fmt: skip
    for part, make in makers.items():
        rates: dict[str, dict[int, float]] = defaultdict(dict)
        for run in runs:
            if run.get("part") == part and run["how"] == "turn":
                rates[run["kind"]][run["turn"]] = _RATE[part](run)
        if rates:
            found |= make(rates)
    found |= _per_kind(runs, "vram", "host_us") | _per_kind(runs, "ram", "cores")
    return {name: float(f"{value:.5g}") for name, value in found.items()}


def _per_kind(runs: Sequence[Mapping[str, Any]], part: str, key: str) -> dict[str, float]:
    """What was measured beside the rate, of us and of peers."""
    found: dict[str, float] = {}
    mine = [run for run in runs if run.get("part") == part and key in run]
    for kind in dict.fromkeys(run["kind"] for run in mine):
        ends = "" if kind == "stoker" else f"_{kind}"
        values = [run[key] for run in mine if run["kind"] == kind]
        found |= as_figures(f"{part}_{key}{ends}", interval(values))
    return found


def _vram(rates: Rates) -> dict[str, float]:
    limits = {kind: f"_{kind}" for kind in rates if kind.startswith("limit_")}
    found = _named("vram_gb_s", rates, {"stoker": "", **limits, **_peers(rates)})
    return found | _ratio("vram_ratio_limit", rates, "stoker", "limit_copy")


def _ram(rates: Rates) -> dict[str, float]:
    found = _named("ram_gb_s", rates, {"stoker": "", "limit_pinned": "_limit", **_peers(rates)})
    found |= _ratio("ram_ratio_limit", rates, "stoker", "limit_pinned")
    return found | _ratio("ram_ratio_peer", rates, "stoker", _best(rates, "peer_"))


def _window(rates: Rates) -> dict[str, float]:
    found = _named("window_gb_s", rates, {"window": "", "ram": "_ram", "vram": "_limit"})
    found |= _ratio("window_ratio", rates, "window", "vram")
    return found | _ratio("window_ratio_ram", rates, "ram", "vram")


def _warm(rates: Rates) -> dict[str, float]:
    names = {"stoker": "", "tier": "_tier", "ram": "_ram"}
    found = _named("disk_warm_gb_s", rates, {**names, **_peers(rates)})
    limit = _best(rates, "limit_")
    found |= _named("disk_warm_gb_s", rates, {} if limit is None else {limit: "_limit"})
    for kind, ends in {"stoker": "", "ram": "_ram"}.items():
        found |= _ratio(f"disk_warm_ratio_peer{ends}", rates, kind, _best(rates, "peer_"))
        found |= _ratio(f"disk_warm_ratio_limit{ends}", rates, kind, limit)
    return found


def _cold(rates: Rates) -> dict[str, float]:
    names = {"stoker": "", "first": "_first", "tier": "_tier"}
    direct = {kind: f"_{kind}" for kind in rates if kind.startswith("direct_")}
    limit = _best(rates, "direct_")
    found = _named("disk_cold_gb_s", rates, names)
    found |= _named("disk_cold_gb_s", rates, {} if limit is None else {limit: "_limit"})
    for kind, ends in names.items():
        found |= _ratio(f"disk_cold_ratio_limit{ends}", rates, kind, limit)
    return found | _named("disk_cold_gb_s", rates, direct)


def _sql(rates: Rates) -> dict[str, float]:
    found: dict[str, float] = {}
    for kind, ends in {"bytea": "", "float4": "_array"}.items():
        kept = _best({name: of for name, of in rates.items() if name.endswith("_kept")}, kind)
        limit = _best({name: of for name, of in rates.items() if not name.endswith("_kept")}, f"{kind}_copy")
        found |= _named(f"sql_rows_s{ends}", rates, {f"{kind}_bulk": ""})
        found |= _named(f"sql_rows_s{ends}", rates, {} if limit is None else {limit: "_limit"})
        found |= _named(f"sql_rows_s{ends}", rates, {} if kept is None else {kept: "_limit_kept"})
        found |= _ratio(f"sql_ratio_copy{ends}", rates, f"{kind}_bulk", limit)
        found |= _ratio(f"sql_ratio_copy{ends}_kept", rates, f"{kind}_bulk", kept)
    query = "bytea_far_query_each"
    found |= _ratio("sql_speedup", rates, "bytea_far_bulk", query)
    found |= _ratio("sql_speedup_batches", rates, "bytea_far_batches", query)
    others = {"bytea_scan": "_scan", "bytea_batches": "_batches", "bytea_far_bulk": "_far"}
    return found | _named("sql_rows_s", rates, {**others, query: "_far_query"})


def _s3(rates: Rates) -> dict[str, float]:
    names = {"stoker": "", "uncached": "_uncached", "limit": "_limit"}
    found = _named("s3_get_s", rates, {**names, **_peers(rates)})
    best, far_best = _best(rates, "peer_"), _best(rates, "far_peer_")
    found |= _ratio("s3_ratio_best_client", rates, "stoker", best)
    found |= _ratio("s3_ratio_best_client_uncached", rates, "uncached", best)
    found |= _ratio("s3_ratio_limit", rates, "stoker", "limit")
    far = {"far": "", "far_uncached": "_uncached", "far_peer_obstore": "_peer_obstore"}
    found |= _named("s3_far_get_s", rates, far)
    found |= _ratio("s3_far_ratio_best_client", rates, "far", far_best)
    found |= _ratio("s3_far_ratio_best_client_uncached", rates, "far_uncached", far_best)
    found |= _named("s3_second_epoch_get_s", rates, {"second": "", "disk": "_limit"})
    return found | _ratio("s3_second_epoch_ratio_disk", rates, "second", "disk")


def _peers(rates: Rates) -> dict[str, str]:
    return {kind: f"_{kind}" for kind in rates if kind.startswith("peer_")}


def _best(rates: Rates, begin: str) -> str | None:
    """The fastest of these kinds, by its median."""
    kinds = [kind for kind in rates if kind.startswith(begin)]
    return max(kinds, key=lambda kind: median(rates[kind].values()), default=None)


def _named(key: str, rates: Rates, names: Mapping[str, str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for kind, ends in names.items():
        if kind in rates:
            found |= as_figures(f"{key}{ends}", interval(list(rates[kind].values())))
    return found


def _ratio(key: str, rates: Rates, ours: str, other: str | None) -> dict[str, float]:
    """Ours over the other's, within each turn that has both."""
    if ours not in rates or other is None or other not in rates:
        return {}
    pairs = [rate / rates[other][turn] for turn, rate in rates[ours].items() if turn in rates[other]]
    return as_figures(key, interval(pairs)) if pairs else {}


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
        ),
    ),
    (
        "PostgreSQL, rows/s",
        "sql_rows_s",
        (
            ("bulk read, bytea", "", 0),
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
    ("PostgreSQL: over a raw COPY whose rows are thrown away, bytea", "sql_ratio_copy", 2),
    ("PostgreSQL: over a raw COPY whose rows are kept, bytea", "sql_ratio_copy_kept", 2),
    ("PostgreSQL: over a raw COPY whose rows are thrown away, float4[]", "sql_ratio_copy_array", 2),
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
