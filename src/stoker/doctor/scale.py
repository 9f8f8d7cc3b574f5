"""What many GPUs would be fed by, and which ceiling comes first: the model of `doctor RUN --scale`. Pure.

One rank's step was measured; the links between many of them are told or assumed (`scale_links.py`). A step
then takes as long as the slowest of its parts, since workers read ahead:

compute, slowest, gradients
    what a step takes with no wait for data; how much longer the slowest of so many ranks takes than the mean;
    what of bringing the gradients together does not hide behind the backward pass. These add up;
workers, cores
    making the batches: by the worker processes a rank has, and by the cores that a node's ranks share;
store, gets, cache, disk, bus, peer, nic
    bytes (and requests) a step over what carries them, shared by as many ranks as share it.

`WAYS` is where samples wait. Where a set does not fit one node's disk or memory, or one card, it is sharded
over all, and what lies elsewhere comes over the network. Collectives are rings; their latency is left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, exp, log2
from typing import Any

from stoker.doctor.finding import ALARM
from stoker.doctor.model import Interval
from stoker.doctor.scale_links import Links
from stoker.facts.words import size

# A rank's own parts of a step, which add up.
_OWN = ("compute", "slowest", "gradients")
WAYS = ("store", "cache", "disk", "ram", "vram")
GPUS = (8, 64, 1024)
# DistributedDataParallel brings gradients together by so many bytes at a time, and the last of them has no
# backward pass left to hide behind (torch's bucket_cap_mb).
_BUCKET = 25 * 2**20
# GPU nodes to a cache node, where nobody said how many there are.
_NODES_A_CACHE = 8
# By how much more a prediction may be off for each doubling of the ranks beyond those measured, as a share.
DOUBLING = 0.10
# Beyond so many GPUs nobody asks when a ceiling is met.
_MOST = 65_536


@dataclass(frozen=True, kw_only=True)
class Load:
    """What one rank of a record asks for. Times are seconds; None was not measured, and `missing` says why.

    `busy` are the steps one by one, waits and `other` apart, `other` the mean of that, `spread` by what share
    their mean may be off. `read` and `prepare` are of a sample, where batches are made. `cpu` is the CPU time
    of a step outside the workers, `make_cpu` that of a sample where it is made.
    """

    ranks: int
    samples: float
    busy: tuple[float, ...]
    other: float
    backward: float
    spread: float | None = None
    workers: int | None = None
    read: float | None = None
    prepare: float | None = None
    from_network: bool | None = None
    cpu: float | None = None
    make_cpu: float | None = None
    sample_bytes: float | None = None
    set_bytes: float | None = None
    gradient_bytes: float | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def alone(self) -> float:
        """Samples a second of a rank that waits for no data and no other rank."""
        return self.samples / (sum(self.busy) / len(self.busy) + self.other)


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """So many GPUs fed in one way: samples a second of all, and the part that a step then waits for.

    `batch` are the samples of a step of all ranks: a rank's own are as many as in the record. `rate` is None
    where it cannot be told, and `how` says why; else it says where the samples lie.
    """

    gpus: int
    nodes: int
    batch: float
    way: str
    how: str
    rate: Interval | None = None
    limit: str | None = None
    of_linear: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """All of it, by name; parts in seconds a step."""
        told = {**vars(self), "rate": None if self.rate is None else self.rate.to_json()}
        return {**told, "parts": dict(self.parts)}


def foresee(load: Load, links: Links, way: str, gpus: int) -> Outlook:
    """So many GPUs, fed in that way."""
    untold = why_not(load, links, way, gpus)
    at, made = _Cluster(gpus=gpus, links=links), gpus * load.samples
    if untold is not None:
        return Outlook(gpus=gpus, nodes=at.nodes, batch=made, way=way, how=untold)
    how, carried = _WAYS[way](load, at)
    steps = [_parts(load, at, carried, own) for own in _own(load, at)]
    fast, mid, slow = (_seconds(one) for one in steps)
    doubt = exp(DOUBLING * log2(max(1.0, gpus / load.ranks)))
    # No faster than ranks that wait for nothing: what a doubling may be off by does not add to that.
    most = gpus * load.alone * (1 + (load.spread or 0.0))
    return Outlook(
        gpus=gpus,
        nodes=at.nodes,
        batch=made,
        way=way,
        how=how,
        rate=Interval(
            low=made / slow / doubt, mid=made / mid, high=max(made / mid, min(most, made / fast * doubt))
        ),
        limit=_waits_for(steps[1]),
        of_linear=made / mid / (gpus * load.alone),
        parts=steps[1],
    )


def first_ceiling(load: Load, links: Links, way: str) -> tuple[int, str] | None:
    """The fewest GPUs at which a step waits for something else than computing; None up to 65,536.

    Also None where that way cannot be told.
    """
    counts = _counts(links.per_node)
    found = next((at for at, count in enumerate(counts) if _limit(load, links, way, count)), None)
    if found is None:
        return None
    low, high = counts[found - 1] if found else 0, counts[found]
    while high - low > 1 and high <= links.per_node:
        middle = (low + high) // 2
        low, high = (low, middle) if _limit(load, links, way, middle) else (middle, high)
    whole = links.per_node
    while high - low > whole and high > whole:  # of more than a node, by whole nodes
        middle = low + max(1, (high - low) // 2 // whole) * whole
        low, high = (low, middle) if _limit(load, links, way, middle) else (middle, high)
    return high, _limit(load, links, way, high) or ""


def caches_needed(load: Load, links: Links, gpus: int) -> int | None:
    """Cache nodes that hold the set and that so many GPUs do not wait for; None where that cannot be told."""
    if why_not(load, links, "cache", gpus) is not None:
        return None
    at = _Cluster(gpus=gpus, links=links)
    rate = gpus * load.samples * (load.sample_bytes or 0.0) / sum(_own(load, at)[1].values())
    return max(1, ceil(rate / min(links.nic, links.disk)), ceil(_cache_rooms(load, links)))


def why_not(load: Load, links: Links, way: str, gpus: int) -> str | None:
    """What is missing, or does not fit, for that way to be told; None where it can be."""
    needs = {"sample_bytes": load.sample_bytes}
    if gpus > 1:
        needs["gradient_bytes"] = load.gradient_bytes
    if way in ("store", "cache", "disk"):
        needs |= {"workers": load.workers, "make": load.prepare}
    if way != "store":
        needs["set_bytes"] = load.set_bytes
    for name, value in needs.items():
        if value is None:
            return f"{name} not known: {load.missing.get(name, 'not in the record')}"
    room = {"disk": links.disk_room, "ram": links.ram_room, "vram": links.vram_room}
    if way not in room:
        return None
    each, held = room[way], _held(load, links, way)
    if each is None:
        return f"{way}_room not known: give --link {way}_room=80GB"
    places = gpus if way == "vram" else ceil(gpus / links.per_node)
    if held > places * each:
        return f"{size(held)} do not fit {places} x {size(each)}"
    return None


# --- where samples wait -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Cluster:
    gpus: int
    links: Links

    @property
    def nodes(self) -> int:
        return ceil(self.gpus / self.links.per_node)

    @property
    def on_node(self) -> int:
        """Ranks that share a node."""
        return min(self.gpus, self.links.per_node)

    @property
    def elsewhere(self) -> float:
        """Of what is sharded over the nodes, the share that lies on another one."""
        return 1 - 1 / self.nodes


@dataclass(frozen=True, kw_only=True)
class _Carried:
    """Seconds a step over each thing that carries samples; who makes the batches, with reads of `read`."""

    parts: Mapping[str, float]
    read: float | None = None
    """Seconds that a worker reads for a sample; None: nobody makes batches."""


def _from_store(load: Load, at: _Cluster) -> tuple[str, _Carried]:
    moved, links = _moved(load), at.links
    parts = {
        "store": at.gpus * moved / links.store,
        "gets": at.gpus * load.samples / links.gets,
        "nic": at.on_node * moved / links.nic,
    }
    how = "each sample from the store, by a request of its own"
    return how, _Carried(parts=parts, read=_store_read(load, links))


def _from_caches(load: Load, at: _Cluster) -> tuple[str, _Carried]:
    moved, links = _moved(load), at.links
    count = links.cache_nodes or ceil(at.nodes / _NODES_A_CACHE)
    held = min(1.0, count / max(_cache_rooms(load, links), 1.0))
    how, read = f"{count} cache nodes, {at.nodes} GPU nodes", links.near
    parts = {
        "cache": held * at.gpus * moved / (count * min(links.nic, links.disk)),
        "nic": at.on_node * moved / links.nic,
    }
    if held < 1:
        how += f"; they hold {100 * held:.3g}% of the set, the rest is from the store"
        parts["store"] = (1 - held) * at.gpus * moved / links.store
        parts["gets"] = (1 - held) * at.gpus * load.samples / links.gets
        read = held * links.near + (1 - held) * _store_read(load, links)
    return how, _Carried(parts=parts, read=read)


def _from_disks(load: Load, at: _Cluster) -> tuple[str, _Carried]:
    moved, links = _moved(load), at.links
    parts = {"disk": at.on_node * moved / links.disk}
    how = "a copy on each node's disks"
    if (load.set_bytes or 0.0) > links.disk_room:
        how = f"sharded over the disks of {at.nodes} nodes"
        parts["nic"] = at.elsewhere * at.on_node * moved / links.nic
    read = load.read if load.from_network is False and load.read is not None else 0.0
    return how, _Carried(parts=parts, read=read)


def _from_ram(load: Load, at: _Cluster) -> tuple[str, _Carried]:
    moved, links = load.samples * _sample_held(load, at.links), at.links
    parts, how = {"bus": moved / links.bus}, "a copy in each node's memory"
    if _held(load, links, "ram") > (links.ram_room or 0.0):
        how = f"sharded over the memory of {at.nodes} nodes"
        parts["nic"] = at.elsewhere * at.on_node * moved / links.nic
    return how, _Carried(parts=parts)


def _from_vram(load: Load, at: _Cluster) -> tuple[str, _Carried]:
    moved, links = load.samples * _sample_held(load, at.links), at.links
    if _held(load, links, "vram") <= (links.vram_room or 0.0):
        return "a copy on each card", _Carried(parts={})
    parts = {"peer": (1 - 1 / at.gpus) * moved / links.peer}
    if at.nodes > 1:
        parts["nic"] = at.elsewhere * at.on_node * moved / links.nic
    return f"sharded over {at.gpus} cards, exchanged", _Carried(parts=parts)


_WAYS: Mapping[str, Callable[[Load, _Cluster], tuple[str, _Carried]]] = {
    "store": _from_store,
    "cache": _from_caches,
    "disk": _from_disks,
    "ram": _from_ram,
    "vram": _from_vram,
}


def _store_read(load: Load, links: Links) -> float:
    """Seconds that a worker waits for a sample of the store: as recorded, if that came over a network."""
    return load.read if load.from_network and load.read is not None else links.latency


def _cache_rooms(load: Load, links: Links) -> float:
    """Cache nodes that the set fills."""
    return (load.set_bytes or 0.0) / links.disk_room


def _moved(load: Load) -> float:
    """Bytes that a rank's step needs, as they are stored."""
    return load.samples * (load.sample_bytes or 0.0)


def _sample_held(load: Load, links: Links) -> float:
    return links.held or load.sample_bytes or 0.0


def _held(load: Load, links: Links, way: str) -> float:
    """Bytes of the set where it waits: in memory, samples may be larger than they are stored."""
    stored = load.set_bytes or 0.0
    if way == "disk" or not links.held or not load.sample_bytes:
        return stored
    return stored / load.sample_bytes * links.held


# --- a step -------------------------------------------------------------------------------------------------


def _seconds(parts: Mapping[str, float]) -> float:
    """A step: its own parts one after the other, or the longest of those beside them."""
    return max(sum(parts[name] for name in _OWN), *(parts[name] for name in parts if name not in _OWN), 0.0)


def _waits_for(parts: Mapping[str, float]) -> str:
    """What would make the step shorter. `compute`: nothing that is around a rank."""
    beside = {name: value for name, value in parts.items() if name not in _OWN}
    own = sum(parts[name] for name in _OWN)
    longest = max(beside, key=lambda name: beside[name], default=None)
    if longest is not None and beside[longest] > own:
        return longest
    more = max(_OWN[1:], key=lambda name: parts[name])
    return more if parts[more] >= ALARM * own else "compute"


def _parts(load: Load, at: _Cluster, carried: _Carried, own: Mapping[str, float]) -> dict[str, float]:
    parts = {**own, **carried.parts}
    cpu = load.cpu
    if carried.read is not None:
        make = load.samples * (carried.read + (load.prepare or 0.0))
        # Without workers the loop makes its own batches, and nothing overlaps.
        parts["workers"] = make / load.workers if load.workers else sum(own.values()) + make
        cpu = None if cpu is None or load.make_cpu is None else cpu + load.samples * load.make_cpu
    if cpu is not None and at.links.cores:
        parts["cores"] = cpu * at.on_node / at.links.cores
    if "nic" in parts and at.links.fabric is None:  # gradients go the same way
        parts["nic"] += _between_nodes(load, at, at.links.nic)
    return parts


def _own(load: Load, at: _Cluster) -> list[dict[str, float]]:
    """A step that waits for no data: at best, as it is thought to be, at worst.

    At best ranks are slow together and gradients hide behind the whole backward pass; at worst each rank is
    slow at other times and nothing is hidden.
    """
    mean, off = sum(load.busy) / len(load.busy) + load.other, load.spread or 0.0
    # What ranks of the record waited for one another is in their steps already.
    slowest = max(0.0, slowest_of(load.busy, at.gpus / load.ranks) + load.other - mean)
    best, mid, worst = (_felt(load, at, open_share) for open_share in (0.0, _last_bucket(load), 1.0))
    return [
        dict(zip(_OWN, (mean * (1 - off), 0.0, best), strict=True)),
        dict(zip(_OWN, (mean, slowest, mid), strict=True)),
        dict(zip(_OWN, (mean * (1 + off), slowest * (1 + off), worst), strict=True)),
    ]


def slowest_of(seconds: Sequence[float], ranks: float) -> float:
    """The mean of the longest of so many steps, each drawn from these by itself."""
    ordered, count = sorted(seconds), len(seconds)
    below = [float((at / count) ** ranks) for at in range(count + 1)]
    return sum(value * (up - down) for value, (down, up) in zip(ordered, pairwise(below), strict=True))


def _felt(load: Load, at: _Cluster, open_share: float) -> float:
    """How much longer a backward pass takes than in the record, if that share of the gradients cannot hide.

    The record's pass holds what its own ranks felt of them.
    """
    before = _together(load, _Cluster(gpus=load.ranks, links=at.links))
    computing = max(0.0, load.backward - open_share * before)
    was, will = (max(one, computing + open_share * one) for one in (before, _together(load, at)))
    return max(0.0, will - was)


def _together(load: Load, at: _Cluster) -> float:
    """Bringing the gradients together: rings in the nodes, then between them."""
    inside = 2 * (at.on_node - 1) / at.on_node * (load.gradient_bytes or 0.0) / at.links.peer
    return inside + _between_nodes(load, at, at.links.fabric or at.links.nic)


def _between_nodes(load: Load, at: _Cluster, speed: float) -> float:
    return 2 * at.elsewhere * (load.gradient_bytes or 0.0) / speed


def _last_bucket(load: Load) -> float:
    return min(1.0, _BUCKET / load.gradient_bytes) if load.gradient_bytes else 0.0


# --- when ---------------------------------------------------------------------------------------------------


def _limit(load: Load, links: Links, way: str, gpus: int) -> str | None:
    """What a step waits for beside computing, if for anything."""
    found = foresee(load, links, way, gpus).limit
    return None if found == "compute" else found


def _counts(per_node: int) -> list[int]:
    inside = [2**power for power in range(per_node.bit_length()) if 2**power < per_node]
    nodes = [per_node * 2**power for power in range(_MOST.bit_length()) if per_node * 2**power <= _MOST]
    return [*inside, *nodes]
