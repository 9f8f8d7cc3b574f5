"""From a record to what `doctor RUN --scale` starts from: what a rank asks for, and what its machine has."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from stoker.doctor.evidence import Evidence, cores_used, read
from stoker.doctor.scale import Load
from stoker.doctor.steadiness import since_startup, spread_of
from stoker.errors import DiagnosisFailed
from stoker.watch import Record, Step
from stoker.watch.record import RankRecord

# Steps of all ranks together that a prediction may rest on.
_FEWEST = 16
# Of a long run the last ones: what it is like now.
_MOST = 20_000
# Bytes a batch: less are those of the counters that were read beside it.
_NO_READING = 4096
_UNSEEN = "reads went past the kernel's counters (memory maps, clients in C): give --link sample=100KB"


def load_of(record: Record, told: Mapping[str, float]) -> Load:
    """What one rank of a record asks for; `told` stands above what was measured."""
    record.require_ranks()
    about = (record.about.get("facts") or {}) if isinstance(record.about, dict) else {}
    host = about.get("host") or {}
    runs: list[Evidence] = []
    steps: list[Step] = []
    cpu: list[float | None] = []
    for number, rank in record.ranks.items():
        run = read(record, (), host, {}, number)
        if run is None:
            raise DiagnosisFailed(f"{rank.folder} holds fewer than 2 steps: give a record of a longer run")
        kept = since_startup(list(rank.steps())[1:], run.workers)[-_MOST:]
        runs.append(run)
        steps += kept
        cpu.append(_cpu_a_step(rank, kept))
    if len(steps) < _FEWEST:
        raise DiagnosisFailed(
            f"{record.folder} holds {len(steps)} steps after its loaders had started; --scale needs "
            f"{_FEWEST}: give a record of a longer run"
        )
    samples = [step.samples for step in steps if step.samples is not None]
    if not samples:
        raise DiagnosisFailed(
            f"{record.folder} does not tell how many samples a step has: draw batches of tensors from a "
            "loader"
        )
    return _load(record, runs, steps, fmean(samples), cpu, told)


def _load(
    record: Record,
    runs: Sequence[Evidence],
    steps: Sequence[Step],
    samples: float,
    cpu: Sequence[float | None],
    told: Mapping[str, float],
) -> Load:
    """Means over the ranks."""
    first, ranks = runs[0], max(len(runs), int(record.about.get("world_size") or 1))
    a_batch = samples / first.batches
    making = {name: _mean([_number(run.making.get(name)) for run in runs]) for name in _OF_A_BATCH}
    each = {name: None if value is None else value / a_batch for name, value in making.items()}
    prepare = None if each["transform"] is None else each["transform"] + (each["collate"] or 0.0)
    whole = _mean(cpu)
    inside = None if each["cpu"] is None else each["cpu"] * samples
    busy = tuple(step.copy + step.forward + step.backward + step.update for step in steps)
    load = Load(
        ranks=ranks,
        samples=samples,
        busy=busy,
        other=fmean(step.other for step in steps),
        backward=fmean(step.backward for step in steps),
        spread=spread_of([one + step.other for one, step in zip(busy, steps, strict=True)]),
        workers=None if first.drawn is None else first.drawn.workers,
        read=each["read"],
        prepare=prepare,
        from_network=_from_network(first),
        cpu=None if whole is None else max(0.0, whole - (inside or 0.0)),
        make_cpu=each["cpu"],
        sample_bytes=None if (making["bytes"] or 0.0) < _NO_READING else each["bytes"],
        gradient_bytes=_number(record.ranks[min(record.ranks)].about.get("gradient_bytes")),
    )
    load = replace(
        load,
        sample_bytes=told.get("sample", load.sample_bytes),
        gradient_bytes=told.get("gradients", load.gradient_bytes),
    )
    return replace(load, set_bytes=told.get("set", _set_bytes(first, load)), missing=_missing(load, first))


_OF_A_BATCH = ("read", "transform", "collate", "cpu", "bytes")


def machine_of(record: Record) -> dict[str, float | None]:
    """What the record tells of the node that a rank ran on, by the names of links."""
    facts: Mapping[str, Any] = record.about.get("facts") or {}
    host: Mapping[str, Any] = facts.get("host") or {}
    gpus: Sequence[Mapping[str, Any]] = facts.get("gpus") or ()
    return {
        "per_node": _per_node(record, len(gpus)),
        "cores": _number(host.get("usable_cores")),
        "ram_room": _number(host.get("memory_free_bytes")),
        "vram_room": _vram_room(record, gpus),
    }


def _per_node(record: Record, gpus: int) -> int | None:
    """GPUs of a node; None of one rank on a machine with one: nobody trains on a thousand such machines."""
    hosts = [rank.about.get("host") for rank in record.ranks.values()]
    count = max(gpus, *(hosts.count(name) for name in hosts))
    return count if count > 1 or len(hosts) > 1 else None


def _vram_room(record: Record, gpus: Sequence[Mapping[str, Any]]) -> float | None:
    """Of a card, what torch's allocator never took while the run trained."""
    total = min((one["total_bytes"] for one in gpus if one.get("total_bytes")), default=None)
    peaks = [
        line["allocator"]["reserved_peak"]
        for rank in record.ranks.values()
        for line in rank.resources()
        if line.get("allocator")
    ]
    return None if total is None or not peaks else float(max(0, total - max(peaks)))


def _cpu_a_step(rank: RankRecord, steps: Sequence[Step]) -> float | None:
    """CPU seconds of the process and its workers, by the counters between the first and last of the steps.

    The counters know nothing of steps that were left out in between: those are counted too.
    """
    count = steps[-1].step - steps[0].step if steps else 0
    if count < 1:
        return None
    began, ended = steps[0].t, steps[-1].t
    cores = cores_used([line for line in rank.resources() if began <= line["t"] <= ended])
    return None if cores is None else cores * (ended - began) / count


def _from_network(run: Evidence) -> bool | None:
    """Whether samples were received rather than read from files; None where neither was seen."""
    if run.calls("recv") or run.calls("query"):
        return True
    return False if run.calls("open") or run.calls("read") else None


def _set_bytes(run: Evidence, load: Load) -> float | None:
    """Of an epoch's samples, of all ranks together."""
    drawn = run.drawn
    if drawn is None or drawn.length is None or drawn.batch_size is None or load.sample_bytes is None:
        return None
    return drawn.length * drawn.batch_size * load.ranks * load.sample_bytes


def _missing(load: Load, run: Evidence) -> dict[str, str]:
    """What is not known, and what to do about it."""
    found = {}
    if load.sample_bytes is None:
        found["sample_bytes"] = _UNSEEN
    if run.drawn is None or run.drawn.length is None or load.sample_bytes is None:
        found["set_bytes"] = "the loader tells no length, or no bytes are known: give --link set=150GB"
    if load.gradient_bytes is None:
        found["gradient_bytes"] = "no optimizer of torch's was seen: give --link gradients=100MB"
    if load.workers is None:
        found["workers"] = "no DataLoader was seen"
    if load.prepare is None:
        found["make"] = "no batch was seen being made"
    return found


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
