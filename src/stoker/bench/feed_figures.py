"""What the turns of `stoker bench feed` come to: its figures. Pure."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, TypeAlias

from stoker.bench.turns import as_figures, interval

# Of each kind, its rate in each turn.
Rates: TypeAlias = Mapping[str, Mapping[int, float]]
_RATE: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "disk_warm": lambda run: run["bytes"] / run["seconds"] / 1e9,
    "disk_cold": lambda run: run["gb_s"],
    "sql": lambda run: run["rows_s"],
    "npy": lambda run: run["bytes"] / run["seconds"] / 1e9,
    **dict.fromkeys(("s3", "images", "torch", "volume"), lambda run: run["samples"] / run["seconds"]),
    **dict.fromkeys(("vram", "ram", "window"), lambda run: run["gb_s"]),
    "images_gpu": lambda run: run["samples_s"],
}


def figures_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Every figure that these runs give. What was not measured is not there."""
    found: dict[str, float] = {}
    makers = {
        "disk_warm": _warm, "disk_cold": _cold, "sql": _sql, "s3": _s3,
        "npy": _npy, "torch": _torch, "images": _images, "volume": _volume,
        "images_gpu": _images_gpu, "vram": _vram, "ram": _ram, "window": _window,
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
    direct = {kind: f"_{kind}" for kind in rates if kind.startswith(("direct_", "queue_"))}
    limit = _best({kind: rates[kind] for kind in direct}, "")
    found = _named("disk_cold_gb_s", rates, names)
    found |= _named("disk_cold_gb_s", rates, {} if limit is None else {limit: "_limit"})
    for begin, ends in {"direct_": "_limit_threads", "queue_": "_limit_queue"}.items():
        best = _best(rates, begin)
        found |= _named("disk_cold_gb_s", rates, {} if best is None else {best: ends})
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
        for way in ("scan", "feed", "held"):
            found |= _ratio(f"sql_ratio_copy{ends}_{way}", rates, f"{kind}_{way}", limit)
    query = "bytea_far_query_each"
    found |= _ratio("sql_speedup", rates, "bytea_far_bulk", query)
    found |= _ratio("sql_speedup_batches", rates, "bytea_far_batches", query)
    others = {f"bytea_{way}": f"_{way}" for way in ("feed", "open", "held", "scan", "batches")}
    return found | _named("sql_rows_s", rates, {**others, "bytea_far_bulk": "_far", query: "_far_query"})


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


def _npy(rates: Rates) -> dict[str, float]:
    limit = _best(rates, "limit_")
    found = _named("npy_gb_s", rates, {"stoker": "", **({limit: "_limit"} if limit else {}), **_peers(rates)})
    found |= _ratio("npy_ratio_limit", rates, "stoker", limit)
    return found | _ratio("npy_ratio_peer", rates, "stoker", _best(rates, "peer_"))


def _torch(rates: Rates) -> dict[str, float]:
    names = {"stoker": "", "default": "_default", "limit": "_limit"}
    found = _named("torch_samples_s", rates, {**names, **_peers(rates)})
    best = _best(rates, "peer_")
    found |= _ratio("torch_ratio_peer", rates, "stoker", best)
    found |= _ratio("torch_ratio_peer_default", rates, "default", best)
    return found | _ratio("torch_ratio_limit", rates, "stoker", "limit")


def _images(rates: Rates) -> dict[str, float]:
    names = {"stoker": "", "ram": "_ram", "limit": "_limit"}
    found = _named("images_s", rates, {**names, **_peers(rates)})
    found |= _ratio("images_ratio_peer", rates, "stoker", _best(rates, "peer_"))
    return found | _ratio("images_ratio_limit", rates, "stoker", "limit")


def _images_gpu(rates: Rates) -> dict[str, float]:
    found = _named("images_gpu_s", rates, {"stoker": "", "cpu": "_cpu", "limit": "_limit", **_peers(rates)})
    found |= _ratio("images_gpu_ratio_peer", rates, "stoker", _best(rates, "peer_"))
    return found | _ratio("images_gpu_ratio_limit", rates, "stoker", "limit")


def _volume(rates: Rates) -> dict[str, float]:
    names = {"stoker": "", "disk": "_disk", "whole": "_whole", "limit": "_limit"}
    others = {kind: f"_peer_{kind.replace('peer_', '')}" for kind in rates if "peer_" in kind}
    found = _named("volume_patches_s", rates, {**names, **others})
    for kind, ends, begin in (
        ("stoker", "", "peer_"),
        ("disk", "_disk", "disk_peer_"),
        ("whole", "_whole", "memory_peer_"),
    ):
        found |= _ratio(f"volume_ratio_peer{ends}", rates, kind, _best(rates, begin))
    return found | _ratio("volume_ratio_limit_whole", rates, "whole", "limit")


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
