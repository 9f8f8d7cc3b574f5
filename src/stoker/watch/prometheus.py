"""A record as Prometheus' text exposition format, version 0.0.4: a snapshot for a textfile collector.

Base units (seconds, bytes, ratios), counters end in `_total`, and what was not measured has no line.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from statistics import quantiles
from typing import Any

from stoker.watch.phases import PHASES, Batch
from stoker.watch.ranks import join_record, why_not_joined
from stoker.watch.record import RankRecord, Record
from stoker.watch.tally import Tally

_BATCH_TIMES = ("read", "transform", "collate", "handoff", "pin", "cpu")
_QUANTILES = {"0.5": 49, "0.9": 89, "0.99": 98}
Labels = Mapping[str, str | int]


@dataclass
class _Family:
    kind: str
    help: str
    lines: list[str] = field(default_factory=list)


class Page:
    """Metric families in the order they were first named; each has its HELP and TYPE once.

    >>> page = Page(); page.add("stoker_steps_total", "counter", "Steps.", 3, {"run": "a"})
    >>> print(page.text(), end="")
    # HELP stoker_steps_total Steps.
    # TYPE stoker_steps_total counter
    stoker_steps_total{run="a"} 3
    """

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    def add(
        self, name: str, kind: str, told: str, value: float | None, labels: Labels, *, suffix: str = ""
    ) -> None:
        """One more value; what is not known is left out."""
        if value is None or not isfinite(value):
            return
        family = self._families.setdefault(name, _Family(kind, told))
        shown = ",".join(f'{key}="{_escaped(str(label))}"' for key, label in labels.items())
        family.lines.append(f"{name}{suffix}{{{shown}}} {_number(value)}")

    def text(self) -> str:
        """The page."""
        parts = []
        for name, family in self._families.items():
            told = family.help.replace("\\", "\\\\").replace("\n", "\\n")
            parts += [f"# HELP {name} {told}", f"# TYPE {name} {family.kind}", *family.lines]
        return "\n".join(parts) + "\n"


def text_of(record: Record) -> str:
    """The whole record, every rank."""
    page = Page()
    run: dict[str, str | int] = {"run": record.folder.name}
    started = record.about.get("started")
    page.add("stoker_run_start_time_seconds", "gauge", "When the run began, Unix time.", started, run)
    for rank in record.ranks.values():
        labels: Labels = {**run, "rank": rank.rank}
        outcome = rank.about.get("outcome") or "unfinished"
        page.add("stoker_run_info", "gauge", "How the run ended.", 1, {**labels, "outcome": outcome})
        ended = rank.about.get("ended")
        page.add("stoker_run_end_time_seconds", "gauge", "When the rank ended, Unix time.", ended, labels)
        _add_steps(page, rank, labels)
        _add_batches(page, rank, labels)
        _add_resources(page, rank, labels)
    _add_ranks(page, record, run)
    return page.text()


def _add_steps(page: Page, rank: RankRecord, labels: Labels) -> None:
    tally, spent = Tally(), dict.fromkeys(PHASES, 0.0)
    waits, samples, seconds = False, None, []
    for step in rank.steps():
        tally.add(step)
        seconds.append(step.seconds)
        waits |= step.wait is not None
        if step.samples is not None:
            samples = (samples or 0) + step.samples
        for name in PHASES:
            spent[name] += getattr(step, name) or 0.0
    page.add("stoker_steps_total", "counter", "Optimizer updates that ended a step.", len(seconds), labels)
    page.add("stoker_samples_total", "counter", "Samples that reached a step.", samples, labels)
    for name in PHASES:
        known = waits or name != "wait"
        page.add(
            "stoker_phase_seconds_total",
            "counter",
            "Time in each phase of the steps, exclusive.",
            spent[name] if known else None,
            {**labels, "phase": name},
        )
    told = "How long a step took."
    if len(seconds) > 1:
        cuts = quantiles(seconds, n=100, method="inclusive")
        for quantile, at in _QUANTILES.items():
            page.add("stoker_step_seconds", "summary", told, cuts[at], {**labels, "quantile": quantile})
    page.add("stoker_step_seconds", "summary", told, sum(seconds), labels, suffix="_sum")
    page.add("stoker_step_seconds", "summary", told, len(seconds), labels, suffix="_count")
    sustained = "Steps a second over wall time, stalls included."
    page.add("stoker_sustained_steps_per_second", "gauge", sustained, tally.sustained, labels)
    burst = "Steps a second by the median of the last steps."
    page.add("stoker_burst_steps_per_second", "gauge", burst, tally.burst, labels)
    rate = "Samples a second over wall time."
    page.add("stoker_samples_per_second", "gauge", rate, tally.samples_per_second, labels)
    hooks = (rank.about.get("overhead") or {}).get("hooks_us_per_step")
    cost = "What observing cost the training thread, a step."
    page.add("stoker_overhead_step_seconds", "gauge", cost, None if hooks is None else hooks / 1e6, labels)


def _add_ranks(page: Page, record: Record, run: Labels) -> None:
    """Several ranks beside one another: who comes last to collectives, and what those take by themselves."""
    met = None if len(record.ranks) < 2 or why_not_joined(record) else join_record(record)
    if met is None:
        return
    link = "Seconds a step that collectives take with all ranks there."
    page.add("stoker_collectives_step_seconds", "gauge", link, met.link, run)
    worked = "Seconds a step from being let go by one collective to coming to the next."
    stood = "Seconds a step in collectives, waiting for other ranks included."
    behind = "Seconds a step after the last of the other ranks; less than 0: before it."
    last = "Share of the steps in which this rank came last to collectives."
    for rank, one in met.ranks.items():
        of: Labels = {**run, "rank": rank}
        page.add("stoker_rank_worked_step_seconds", "gauge", worked, one.worked, of)
        page.add("stoker_rank_stood_step_seconds", "gauge", stood, one.stood, of)
        page.add("stoker_rank_behind_step_seconds", "gauge", behind, one.behind, of)
        page.add("stoker_rank_last_ratio", "gauge", last, one.last, of)


def _add_batches(page: Page, rank: RankRecord, labels: Labels) -> None:
    counts: dict[int, int] = {}
    times: dict[tuple[int, str], float] = {}
    counted: dict[int, list[Batch]] = {}
    calls: dict[tuple[int, str], int] = {}
    for batch in rank.batches():
        counts[batch.loader] = counts.get(batch.loader, 0) + 1
        for name in _BATCH_TIMES:
            spent = getattr(batch, name)
            if spent is not None:
                times[batch.loader, name] = times.get((batch.loader, name), 0.0) + spent
        if batch.bytes is not None or batch.queued is not None:
            counted.setdefault(batch.loader, []).append(batch)
        for call, made in batch.calls.items():
            calls[batch.loader, call] = calls.get((batch.loader, call), 0) + made
    for loader, count in counts.items():
        page.add("stoker_batches_total", "counter", "Batches made.", count, {**labels, "loader": loader})
    for (loader, name), spent in times.items():
        told = "Time that making batches took, by part, summed over workers."
        page.add(
            "stoker_batch_seconds_total", "counter", told, spent, {**labels, "loader": loader, "part": name}
        )
    # The kernel's counters are not read for every short fetch: sums come with how many they are over.
    for loader, batches in counted.items():
        of = {**labels, "loader": loader}
        told = "Batches whose kernel counters were read."
        page.add("stoker_counted_batches_total", "counter", told, len(batches), of)
        told = "Bytes read to make the counted batches."
        size = _sum(batch.bytes for batch in batches)
        page.add("stoker_counted_batch_read_bytes_total", "counter", told, size, of)
        told = "Time the counted batches' threads stood in the run queue."
        queued = _sum(batch.queued for batch in batches)
        page.add("stoker_counted_batch_queued_seconds_total", "counter", told, queued, of)
    for (loader, call), made in calls.items():
        told = "Calls seen while batches were made."
        page.add(
            "stoker_batch_calls_total", "counter", told, made, {**labels, "loader": loader, "call": call}
        )


def _add_resources(page: Page, rank: RankRecord, labels: Labels) -> None:
    last: Mapping[str, Any] = {}
    for line in rank.resources():
        last = line
    for key, name, kind, told, unit in _RESOURCES:
        page.add(name, kind, told, _scaled(last.get(key), unit), labels)
    for gpu in last.get("gpus") or []:
        of_gpu = {**labels, "gpu": gpu.get("index", "")}
        for key, name, kind, told, unit in _GPU:
            page.add(name, kind, told, _scaled(gpu.get(key), unit), of_gpu)
    for key, value in (last.get("allocator") or {}).items():
        if key in ("retries", "ooms", "segments", "device_allocs"):
            told = f"The CUDA allocator's {key}, since the process began."
            page.add(f"stoker_allocator_{key}_total", "counter", told, value, labels)
        else:
            told = "The CUDA allocator's memory, by kind."
            page.add("stoker_allocator_bytes", "gauge", told, value, {**labels, "kind": key})


# (field of a resources line, metric, type, help, what one of its units is in base units)
_RESOURCES = (
    ("rss_bytes", "stoker_process_resident_memory_bytes", "gauge", "The training process' memory.", 1),
    ("cpu_s", "stoker_process_cpu_seconds_total", "counter", "The training process' CPU time.", 1),
    (
        "read_bytes",
        "stoker_process_disk_read_bytes_total",
        "counter",
        "Read from disks by the training process.",
        1,
    ),
    (
        "faults_major",
        "stoker_process_major_faults_total",
        "counter",
        "The training process' major faults.",
        1,
    ),
    ("threads", "stoker_process_threads", "gauge", "The training process' threads.", 1),
    ("ram_available_bytes", "stoker_memory_available_bytes", "gauge", "Memory free for use.", 1),
    ("group_memory_bytes", "stoker_group_memory_bytes", "gauge", "Memory of the control group.", 1),
    ("shm_free_bytes", "stoker_shm_free_bytes", "gauge", "Room in shared memory.", 1),
    ("throttled_us", "stoker_throttled_seconds_total", "counter", "Time the CPU quota held the group.", 1e-6),
    ("net_received_bytes", "stoker_network_received_bytes_total", "counter", "Received, loopback apart.", 1),
    (
        "cpu_pressure_total_us",
        "stoker_cpu_pressure_seconds_total",
        "counter",
        "Tasks here waited for a CPU.",
        1e-6,
    ),
    (
        "memory_pressure_total_us",
        "stoker_memory_pressure_seconds_total",
        "counter",
        "Tasks here waited for memory.",
        1e-6,
    ),
    (
        "io_pressure_total_us",
        "stoker_io_pressure_seconds_total",
        "counter",
        "Tasks here waited for I/O.",
        1e-6,
    ),
)
_GPU = (
    ("utilisation_percent", "stoker_gpu_utilization_ratio", "gauge", "Time with a kernel running.", 0.01),
    ("used_bytes", "stoker_gpu_memory_used_bytes", "gauge", "Memory used on the card, by anyone.", 1),
    ("power_w", "stoker_gpu_power_watts", "gauge", "Power drawn.", 1),
    ("temperature_c", "stoker_gpu_temperature_celsius", "gauge", "Temperature.", 1),
    ("sm_clock_mhz", "stoker_gpu_sm_clock_hertz", "gauge", "Clock of the multiprocessors.", 1e6),
    ("pcie_rx_kb_s", "stoker_gpu_pcie_received_bytes_per_second", "gauge", "To the card, over PCIe.", 1e3),
    ("pcie_tx_kb_s", "stoker_gpu_pcie_sent_bytes_per_second", "gauge", "From the card, over PCIe.", 1e3),
)


def _sum(values: Iterable[float | None]) -> float | None:
    """Their sum; None where one of them is not known."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _scaled(value: Any, unit: float) -> float | None:
    if value is None:
        return None
    return value if unit == 1 else float(value) * unit


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
