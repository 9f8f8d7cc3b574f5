"""The facts as plain tables of words: what the terminal and the notebook both show. Pure."""

from dataclasses import dataclass

from stoker.facts.values import Facts, Gpu, Holder, Host, Notebook, Pressure, Reads, Storage, Stray, Torch
from stoker.facts.words import NOT_MEASURED, ago, number, shorten, size, yes


@dataclass(frozen=True, kw_only=True)
class Section:
    """One table. `columns` is empty for a table of names and values; `note` stands below it."""

    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    note: str | None = None


def sections_of(facts: Facts) -> list[Section]:
    """Lay the facts out, the GPUs first."""
    found = [] if facts.gpus else [Section(title="GPUs", note=f"none: {facts.gpu_reason or NOT_MEASURED}")]
    for gpu in facts.gpus:
        found += [_gpu(gpu), _holders(gpu)]
    if facts.notebooks:
        found.append(_notebooks(facts.notebooks))
    if facts.strays:
        found.append(_strays(facts.strays))
    found.append(_host(facts.host))
    if facts.storage is not None:
        found.append(_storage(facts.storage))
    found.append(_torch(facts.torch))
    return found


def _gpu(gpu: Gpu) -> Section:
    reasons = NOT_MEASURED if gpu.clock_reasons is None else ", ".join(gpu.clock_reasons) or "nothing"
    hidden = ", not visible to programs from here" if gpu.visible is False else ""
    memory = f"{size(gpu.used_bytes)} used of {size(gpu.total_bytes)}"
    if gpu.shared_bytes is not None:
        memory += f", {size(gpu.shared_bytes)} of host memory beside"
    rows = (
        ("memory", memory),
        ("busy", f"{number(gpu.utilisation_percent, '%')} of the last second"),
        ("SM clock", f"{_of(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz, 'MHz')}, held down by {reasons}"),
        ("power", f"{_of(gpu.power_w, gpu.power_limit_w, 'W')}, {number(gpu.temperature_c, 'C')}"),
        ("PCIe", f"{_link(gpu)}, in {_bus(gpu.pcie_rx_kb_s)}, out {_bus(gpu.pcie_tx_kb_s)}"),
    )
    name = gpu.name or NOT_MEASURED
    return Section(title=f"GPU {gpu.index}: {name} (driver {gpu.driver or NOT_MEASURED}{hidden})", rows=rows)


def _holders(gpu: Gpu) -> Section:
    title = f"Who holds GPU {gpu.index}"
    if gpu.holders is None:
        return Section(title=title, note=f"{NOT_MEASURED}: {gpu.holders_reason}")
    if not gpu.holders:
        return Section(title=title, note="nobody")
    columns: tuple[str, ...] = (
        "pid",
        "user",
        "memory",
        "notebook or command",
        "state",
        "idle",
        "age",
        "parent",
    )
    rows: list[tuple[str, ...]] = [
        (
            f"{holder.pid} (this)" if holder.ours else str(holder.pid),
            holder.user or NOT_MEASURED,
            size(holder.bytes),
            holder.notebook or shorten(holder.command or NOT_MEASURED, 120),
            _state(holder),
            ago(holder.idle_s),
            ago(holder.age_s),
            _parent(holder.parent, holder.parent_alive),
        )
        for holder in gpu.holders
    ]
    if gpu.shared_bytes is not None:
        columns = (*columns[:3], "in host memory", *columns[3:])
        rows = [
            (*row[:3], size(holder.shared_bytes), *row[3:])
            for row, holder in zip(rows, gpu.holders, strict=True)
        ]
    told = [holder.bytes for holder in gpu.holders if holder.bytes is not None]
    rest = None
    if gpu.used_bytes is not None and len(told) == len(gpu.holders):
        rest = max(0, gpu.used_bytes - sum(told))
    note = f"nobody's: {size(rest)} beside {size(gpu.reserved_bytes)} of driver reserve"
    return Section(title=title, columns=columns, rows=tuple(rows), note=note)


def _state(holder: Holder) -> str:
    if holder.zombie:
        return "zombie"
    if holder.notebook_state is not None:
        return holder.notebook_state
    return holder.role if holder.role != "process" else ""


def _parent(pid: int | None, alive: bool | None) -> str:
    if pid is None:
        return NOT_MEASURED
    return {True: "alive", False: "dead", None: NOT_MEASURED}[alive]


def _notebooks(notebooks: tuple[Notebook, ...]) -> Section:
    columns = ("pid", "user", "notebook", "state", "idle", "age", "clients", "why unknown")
    rows = tuple(
        (
            f"{one.pid} (this)" if one.ours else str(one.pid),
            one.user or NOT_MEASURED,
            one.path or NOT_MEASURED,
            one.state,
            ago(one.idle_s),
            ago(one.age_s),
            number(one.clients),
            one.reason or "",
        )
        for one in notebooks
    )
    return Section(title="Notebook kernels", columns=columns, rows=rows)


def _strays(strays: tuple[Stray, ...]) -> Section:
    columns = ("pid", "kind", "user", "GPU memory", "age", "parent", "command")
    rows = tuple(
        (
            str(one.pid),
            one.kind,
            one.user or NOT_MEASURED,
            size(one.gpu_bytes),
            ago(one.age_s),
            str(one.parent),
            shorten(one.command or NOT_MEASURED, 120),
        )
        for one in strays
    )
    return Section(title="Left behind", columns=columns, rows=rows)


def _host(host: Host) -> Section:
    mask = None if host.affinity is None else len(host.affinity)
    cores = f"{number(host.usable_cores, digits=1)} usable of {number(host.cpus)}"
    if host.performance_cores is not None:
        cores += f" ({host.performance_cores} fast)"
    limit = "no limit" if host.memory_limit_bytes is None else size(host.memory_limit_bytes)
    rows = [
        ("cores", cores),
        (
            "affinity mask, quota",
            f"{number(mask)}, {'none' if host.quota_cores is None else f'{host.quota_cores:g}'}",
        ),
        ("held back by quota", _held_back(host)),
        ("memory", f"{size(host.memory_free_bytes)} free of {size(host.ram_total_bytes)}, group: {limit}"),
        ("swap", f"{size(host.swap_used_bytes)} used of {size(host.swap_total_bytes)}"),
        ("/dev/shm", f"{size(host.shm_free_bytes)} free of {size(host.shm_total_bytes)}"),
        ("stalled, last 10 s", _stalls(host.cpu_pressure, host.memory_pressure, host.io_pressure)),
    ]
    if host.memory_pressure_level is not None:
        rows.append(("memory pressure", host.memory_pressure_level))
    return Section(title=f"Host ({host.system}, cgroup {host.cgroup or NOT_MEASURED})", rows=tuple(rows))


def _held_back(host: Host) -> str:
    if host.throttled_periods is None:
        return NOT_MEASURED
    return f"{host.throttled_periods} times, {number(host.throttled_s, 's', 1)}"


def _stalls(cpu: Pressure | None, memory: Pressure | None, io: Pressure | None) -> str:
    named = (("cpu", cpu), ("memory", memory), ("io", io))
    return ", ".join(
        f"{name} {number(None if found is None else found.some_avg10, '%', 1)}" for name, found in named
    )


def _storage(storage: Storage) -> Section:
    rows = [
        (
            "file system",
            f"{storage.file_system or NOT_MEASURED}, {storage.kind}, at {storage.mount_point or 'n/a'}",
        ),
        (
            "device",
            f"{storage.device or storage.source or NOT_MEASURED}, said to rotate: {yes(storage.rotational)}",
        ),
        ("space", f"{size(storage.free_bytes)} free of {size(storage.total_bytes)}"),
    ]
    if storage.reads is not None:
        rows += _reads(storage.reads)
    return Section(title=f"Storage under {storage.path}", rows=tuple(rows), note=storage.reason)


def _reads(reads: Reads) -> list[tuple[str, str]]:
    in_order = NOT_MEASURED
    if reads.sequential_mb_s is not None:
        of = f"over {size(reads.sequential_bytes)}"
        in_order = f"{reads.sequential_mb_s:.0f} MB/s {of}, {_temperature(reads.sequential_cold)}"
    small = NOT_MEASURED
    if reads.files is not None:
        small = (
            f"{number(reads.file_median_ms, 'ms', 2)} median, {number(reads.file_p90_ms, 'ms', 2)} p90, "
            f"{number(reads.files_per_s, 'files/s')} one by one over {reads.files} files, "
            f"{_temperature(reads.files_cold)}"
        )
    return [("one file in order", in_order), ("small files", small)]


def _temperature(cold: bool | None) -> str:
    return {True: "cold", False: "warm", None: f"cold or warm: {NOT_MEASURED}"}[cold]


def _torch(torch: Torch) -> Section:
    if torch.version is None:
        return Section(title="torch", note=torch.reason)
    used = "this process uses a GPU" if torch.in_use else "defaults: this process computes nothing"
    rows = [
        ("version", f"{torch.version}, {torch.build} build {torch.cuda or ''}".rstrip()),
        ("CUDA devices", yes(torch.cuda_available)),
        (
            "float32 products",
            f"matmul {torch.matmul_precision or NOT_MEASURED}, conv {torch.conv_precision or NOT_MEASURED}",
        ),
        ("cudnn", f"benchmark {yes(torch.cudnn_benchmark)}, deterministic {yes(torch.cudnn_deterministic)}"),
        ("anomaly mode", yes(torch.anomaly_mode)),
        ("launch blocking", yes(torch.env.get("CUDA_LAUNCH_BLOCKING") == "1")),
        ("threads", f"{number(torch.threads)}, interop {number(torch.interop_threads)}"),
    ]
    rows += [(name, value) for name, value in sorted(torch.env.items())]
    return Section(title=f"torch ({used})", rows=tuple(rows))


def _of(now: float | None, most: float | None, unit: str) -> str:
    return f"{number(now)} of {number(most, unit)}"


def _bus(rate: int | None) -> str:
    return NOT_MEASURED if rate is None else f"{rate / 1000:.0f} MB/s"


def _link(gpu: Gpu) -> str:
    if gpu.pcie_gen is None or gpu.pcie_width is None:
        return NOT_MEASURED
    return f"gen {gpu.pcie_gen} x{gpu.pcie_width}"
