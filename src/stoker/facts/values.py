"""What a fact looks like: frozen values, one class a subject. `None` is "not measured", never zero.

Nothing here reads anything; readers fill these, and warnings and views only look at them.
"""

from dataclasses import dataclass
from typing import Literal

ParentState = bool | None
StorageKind = Literal["local", "nfs", "fuse", "object-store", "overlay", "tmpfs", "network", "unknown"]
StrayKind = Literal["zombie", "worker", "rank", "process"]


@dataclass(frozen=True, kw_only=True)
class Holder:
    """One process that holds memory on a GPU.

    `bytes` are those that the driver books on the process, its CUDA context included. `ours` says that
    it is this process or of its family. `parent_alive` is `None` where it cannot be told.
    """

    pid: int
    bytes: int | None
    shared_bytes: int | None = None
    user: str | None = None
    age_s: float | None = None
    command: str | None = None
    parent: int | None = None
    parent_alive: ParentState = None
    role: StrayKind = "process"
    zombie: bool = False
    ours: bool = False
    notebook: str | None = None
    notebook_state: str | None = None
    idle_s: float | None = None
    graphics_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU as the driver tells of it.

    `used_bytes` leaves out the driver's own reserve, which is nobody's. `holders` is `None`, with
    `holders_reason`, where processes cannot be told (a container that hides them, for one).
    `shared_bytes` is host memory that the GPU uses in place of its own; Windows alone tells it.
    """

    index: int
    uuid: str | None
    name: str | None
    driver: str | None
    total_bytes: int | None
    used_bytes: int | None
    free_bytes: int | None
    reserved_bytes: int | None = None
    shared_bytes: int | None = None
    capability: tuple[int, int] | None = None
    utilisation_percent: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    clock_reasons: tuple[str, ...] | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    temperature_c: int | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_tx_kb_s: int | None = None
    pcie_rx_kb_s: int | None = None
    mig: bool | None = None
    visible: bool | None = None
    holders: tuple[Holder, ...] | None = None
    holders_reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Notebook:
    """One Jupyter kernel. `state` is the server's word (idle, busy, starting, …), `orphan` or `unknown`.

    `path` is `None` where no server could be asked, with `reason`. `idle_s` is the time since the
    kernel's last activity, 0.0 while it is busy.
    """

    pid: int
    kernel_id: str
    path: str | None
    state: str
    idle_s: float | None
    reason: str | None = None
    clients: int | None = None
    parent: int | None = None
    parent_alive: ParentState = None
    user: str | None = None
    age_s: float | None = None
    server: str | None = None
    ours: bool = False


@dataclass(frozen=True, kw_only=True)
class Stray:
    """A Python process left behind: a zombie, or one that holds a GPU after its parent died."""

    pid: int
    kind: StrayKind
    parent: int | None
    user: str | None
    command: str | None
    age_s: float | None
    gpu_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Pressure:
    """One line pair of pressure-stall information: percent of the last 10 and 60 s, and a total."""

    some_avg10: float
    some_avg60: float
    some_total_us: int
    full_avg10: float | None = None
    full_total_us: int | None = None


@dataclass(frozen=True, kw_only=True)
class Host:
    """Cores and memory, and what this process may use of them.

    `quota_cores` and `memory_limit_bytes` are the tightest of all the groups above this process;
    `cpuset_cores` what the group's CPU set allows, so that a narrow `affinity` can be told from it.
    `memory_free_bytes` is what can still be taken under both the machine and the limit.
    """

    system: str
    cpus: int | None
    affinity: tuple[int, ...] | None = None
    cpuset_cores: int | None = None
    quota_cores: float | None = None
    usable_cores: float | None = None
    cgroup: str | None = None
    throttled_periods: int | None = None
    throttled_s: float | None = None
    ram_total_bytes: int | None = None
    ram_available_bytes: int | None = None
    memory_limit_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    oom_kills: int | None = None
    swap_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None
    cpu_pressure: Pressure | None = None
    memory_pressure: Pressure | None = None
    io_pressure: Pressure | None = None
    memory_pressure_level: str | None = None
    performance_cores: int | None = None


@dataclass(frozen=True, kw_only=True)
class Reads:
    """What reading showed. `*_cold` is `True` or `False` only where it could be shown, else `None`."""

    sequential_mb_s: float | None = None
    sequential_bytes: int | None = None
    sequential_cold: bool | None = None
    files: int | None = None
    files_bytes: int | None = None
    files_per_s: float | None = None
    file_median_ms: float | None = None
    file_p90_ms: float | None = None
    files_cold: bool | None = None
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Storage:
    """The file system under a path, and how fast it read just now."""

    path: str
    mount_point: str | None
    file_system: str | None
    kind: StorageKind
    source: str | None = None
    device: str | None = None
    rotational: bool | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    reads: Reads | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Torch:
    """The torch build, and its flags in this process.

    `in_use` says that this process has work on a device, so that its flags are those of a training
    run and not merely the defaults. `env` holds the variables that bear on speed, where set.
    """

    version: str | None
    reason: str | None = None
    build: str | None = None
    cuda: str | None = None
    cudnn: int | None = None
    cuda_available: bool | None = None
    mps_available: bool | None = None
    in_use: bool = False
    devices: tuple[str, ...] = ()
    matmul_precision: str | None = None
    conv_precision: str | None = None
    cudnn_benchmark: bool | None = None
    cudnn_deterministic: bool | None = None
    deterministic: bool | None = None
    anomaly_mode: bool | None = None
    debugger: bool | None = None
    threads: int | None = None
    interop_threads: int | None = None
    env: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Process:
    """The process that took the facts."""

    pid: int
    user: str | None
    python: str
    in_kernel: bool = False


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that was found, at one time."""

    taken_at: float
    process: Process
    host: Host
    gpus: tuple[Gpu, ...]
    gpu_reason: str | None
    notebooks: tuple[Notebook, ...]
    strays: tuple[Stray, ...]
    torch: Torch
    storage: Storage | None


@dataclass(frozen=True, kw_only=True)
class Warned:
    """Something that will hurt: the cause's id, what was seen, and what to do."""

    cause: str
    text: str
    fix: str
