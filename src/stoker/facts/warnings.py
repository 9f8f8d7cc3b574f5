"""What will hurt, by the facts alone: pure functions from facts to warnings, one a cause.

Each names a cause by its id, shows the values, and says what to do. Nothing here ends a process: the
command that would is printed for whoever may decide it. Where a fact is `None`, nothing is concluded.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import PurePath

from stoker.facts.values import Facts, Gpu, Holder, Storage, Warned
from stoker.facts.words import ago, shorten, size

# Less than this of a card, or of 1 GiB, on another's account changes no batch size.
_SHARE_OF_CARD, _WORTH_NAMING = 0.05, 1 << 30
# A queue of 4 workers x 2 batches of 256 images (224x224, 8 bit) is 0.3 GB; Docker's default is 64 MB.
_SMALL_SHM = 512 << 20
# Local disks answer a small file in 0.1 to 1 ms cold, and read over 100 MB/s even when they turn.
_SLOW_FILE_MS, _SLOW_MB_S = 5.0, 100.0
_FEW_READS = 8
_SCARCE_SHARE = 0.05
_STALLED_PERCENT = 10.0
_SLOWED = {"hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal"}
_SPILL = 512 << 20


def warnings_of(facts: Facts) -> tuple[Warned, ...]:
    """Return everything that these facts warn of, the most harmful first."""
    return tuple(warning for rule in _RULES for warning in rule(facts))


def _of_contention(facts: Facts) -> Iterator[Warned]:
    for gpu in facts.gpus:
        if gpu.visible is False:
            continue
        for holder in gpu.holders or ():
            if not holder.ours and _matters(holder, gpu):
                yield Warned(
                    cause="gpu-contention", text=_held(holder, gpu), fix=_release(holder, facts.process.user)
                )
        yield from _of_foreign_memory(facts, gpu)


def _matters(holder: Holder, gpu: Gpu) -> bool:
    if holder.bytes is None:
        return False
    if holder.graphics_only:
        return holder.bytes >= _WORTH_NAMING
    left_behind = holder.parent_alive is False and holder.role in ("worker", "rank")
    if holder.zombie or holder.notebook_state == "orphan" or left_behind:
        return True
    floor = (
        _WORTH_NAMING
        if gpu.total_bytes is None
        else min(_WORTH_NAMING, int(_SHARE_OF_CARD * gpu.total_bytes))
    )
    return holder.bytes >= floor


def _held(holder: Holder, gpu: Gpu) -> str:
    owner = f" of {holder.user}" if holder.user else ""
    words = [
        f"GPU {gpu.index}: {size(holder.bytes)} of {size(gpu.total_bytes)} held by pid {holder.pid}{owner}"
    ]
    if holder.notebook is not None:
        words.append(f"notebook {holder.notebook}")
    elif holder.notebook_state is not None:
        words.append("a Jupyter kernel whose notebook is not known")
    if holder.notebook_state not in (None, "unknown"):
        state = holder.notebook_state
        idle = f" for {ago(holder.idle_s)}" if state != "busy" and holder.idle_s is not None else ""
        words.append(f"{state}{idle}")
    if holder.zombie:
        words.append("a zombie")
    if holder.parent_alive is False and holder.notebook_state != "orphan":
        words.append("its parent is dead")
    if holder.age_s is not None:
        words.append(f"running for {ago(holder.age_s)}")
    return ", ".join(words)


def _release(holder: Holder, user: str | None) -> str:
    """Say how the memory comes free. A live kernel or another's process is asked for, never just ended."""
    what = _what(holder)
    if holder.zombie:
        return f"end or restart its parent, pid {holder.parent}: a zombie cannot be ended itself"
    if holder.user is not None and user is not None and holder.user != user:
        return f"ask {holder.user} about pid {holder.pid} ({what}), or use another GPU"
    if holder.notebook_state == "orphan":
        return f"kill {holder.pid}  # {what}"
    if holder.notebook_state == "unknown":
        return (
            f"see in your editor or Jupyter whether this kernel is still in use, and shut it down there; "
            f"if it is surely left over: kill {holder.pid}  # {what}"
        )
    if holder.notebook_state is not None:
        return f"if it is no longer needed, shut this kernel down in Jupyter, not by kill: {what}"
    if holder.parent_alive is False and holder.role in ("worker", "rank"):
        return f"kill {holder.pid}  # {what}"
    return f"wait for it, use another GPU, or, if it is no longer needed: kill {holder.pid}  # {what}"


def _what(holder: Holder) -> str:
    name = PurePath(holder.notebook).name if holder.notebook else None
    idle = f", idle {ago(holder.idle_s)}" if holder.idle_s else ""
    if holder.notebook_state == "orphan":
        return f"orphan kernel{f' of {name}' if name else ''}{idle}"
    if holder.notebook_state is not None:
        return f"kernel{f' of {name}' if name else ''}{idle}"
    if holder.parent_alive is False and holder.role != "process":
        return f"{holder.role} whose parent is dead"
    return shorten(holder.command or "command not known", 60)


def _of_foreign_memory(facts: Facts, gpu: Gpu) -> Iterator[Warned]:
    """In a notebook: the memory that is missing is not this kernel's."""
    if (
        not facts.process.in_kernel
        or not gpu.holders
        or facts.process.pid in {one.pid for one in gpu.holders}
    ):
        return
    others = [holder for holder in gpu.holders if not holder.ours and holder.bytes is not None]
    held = sum(holder.bytes or 0 for holder in others)
    if held >= _WORTH_NAMING:
        yield Warned(
            cause="gpu-contention",
            text=f"GPU {gpu.index}: this kernel (pid {facts.process.pid}) holds nothing of the {size(held)} "
            f"in use; they belong to {len(others)} other process{'es' if len(others) > 1 else ''}",
            fix="restarting this kernel frees nothing; see to the holders named above",
        )


def _of_overflow(facts: Facts) -> Iterator[Warned]:
    for gpu in facts.gpus:
        full = gpu.total_bytes and gpu.used_bytes is not None and gpu.used_bytes >= 0.9 * gpu.total_bytes
        spilled = [
            one for one in gpu.holders or () if one.shared_bytes is not None and one.shared_bytes >= _SPILL
        ]
        if gpu.visible is False or not full or not spilled:
            continue
        for holder in spilled:
            yield Warned(
                cause="vram-overflow",
                text=f"GPU {gpu.index} is full ({size(gpu.used_bytes)} of {size(gpu.total_bytes)}) and "
                f"pid {holder.pid} has spilled {size(holder.shared_bytes)} into host memory, behind the bus",
                fix="take a smaller batch (with gradient accumulation) until shared GPU memory falls to near "
                "nothing, or switch the driver's system-memory fallback off, so that it fails instead",
            )


def _of_clocks(facts: Facts) -> Iterator[Warned]:
    for gpu in facts.gpus:
        reasons = sorted(_SLOWED.intersection(gpu.clock_reasons or ()))
        if reasons and gpu.visible is not False:
            clock = (
                f", now {gpu.sm_clock_mhz} of {gpu.sm_clock_max_mhz} MHz"
                if gpu.sm_clock_mhz is not None
                else ""
            )
            heat = f" at {gpu.temperature_c} C" if gpu.temperature_c is not None else ""
            yield Warned(
                cause="throttled-clocks",
                text=f"GPU {gpu.index} is slowed down by {', '.join(reasons)}{heat}{clock}",
                fix="see to its cooling (fans, dust, neighbours) and power supply; the work is not at fault",
            )


def _of_quota(facts: Facts) -> Iterator[Warned]:
    host = facts.host
    seen = len(host.affinity) if host.affinity is not None else host.cpus
    if host.quota_cores is None or seen is None or host.quota_cores >= seen:
        return
    counted = f", {host.throttled_periods} times held back so far" if host.throttled_periods else ""
    cores = max(1, math.floor(host.quota_cores))
    yield Warned(
        cause="cpu-quota",
        text=f"programs see {seen} core{'s' if seen > 1 else ''} and the group's quota lets "
        f"{host.quota_cores:g} run{counted}",
        fix=f"size workers and threads for {cores} core{'s' if cores > 1 else ''} (num_workers, "
        "OMP_NUM_THREADS), or raise the container's CPU limit",
    )


def _of_affinity(facts: Facts) -> Iterator[Warned]:
    host = facts.host
    allowed = host.cpuset_cores or host.cpus
    if host.affinity is None or allowed is None or len(host.affinity) >= allowed:
        return
    yield Warned(
        cause="cpu-affinity",
        text=f"this process runs on {len(host.affinity)} of {allowed} cores, and so will DataLoader workers",
        fix="unless it was meant (taskset, numactl, GOMP_CPU_AFFINITY, KMP_AFFINITY), widen the mask: "
        "os.sched_setaffinity(0, range(os.cpu_count())) in a worker_init_fn",
    )


def _of_threads(facts: Facts) -> Iterator[Warned]:
    usable, threads = facts.host.usable_cores, facts.torch.threads
    if usable is None or threads is None or threads <= math.ceil(usable):
        return
    told = facts.torch.env.get("OMP_NUM_THREADS")
    cores = max(1, math.floor(usable))
    source = f"OMP_NUM_THREADS={told}" if told else "torch's default"
    yield Warned(
        cause="thread-oversubscription",
        text=f"torch runs {threads} threads ({source}) on {usable:g} usable cores",
        fix=f"set OMP_NUM_THREADS={cores}, or call torch.set_num_threads({cores})",
    )


def _of_memory(facts: Facts) -> Iterator[Warned]:
    host = facts.host
    whole = host.memory_limit_bytes if host.memory_limit_bytes is not None else host.ram_total_bytes
    if host.memory_limit_bytes is not None and host.ram_total_bytes is not None:
        whole = min(host.memory_limit_bytes, host.ram_total_bytes)
    signs = []
    if whole and host.memory_free_bytes is not None and host.memory_free_bytes < _SCARCE_SHARE * whole:
        signs.append(f"{size(host.memory_free_bytes)} of {size(whole)} are left")
    if host.memory_pressure is not None and host.memory_pressure.some_avg10 >= _STALLED_PERCENT:
        signs.append(f"processes waited for memory {host.memory_pressure.some_avg10:.0f}% of the last 10 s")
    if host.memory_pressure_level in ("warning", "critical"):
        signs.append(f"the system calls its memory pressure {host.memory_pressure_level}")
    if signs:
        yield Warned(
            cause="ram-pressure",
            text=f"memory is short: {'; '.join(signs)}",
            fix="end what is not needed, use fewer or leaner workers or smaller queues, memory-map the data",
        )


def _of_shm(facts: Facts) -> Iterator[Warned]:
    host = facts.host
    if host.shm_free_bytes is None or host.shm_free_bytes >= _SMALL_SHM:
        return
    yield Warned(
        cause="small-shm",
        text=f"/dev/shm has {size(host.shm_free_bytes)} free of {size(host.shm_total_bytes)}; "
        "DataLoader workers hand batches over through it and die with a bus error when it is full",
        fix="start the container with --shm-size=8g (or --ipc=host), or keep fewer batches in flight "
        "(num_workers x prefetch_factor)",
    )


def _of_storage(facts: Facts) -> Iterator[Warned]:
    storage = facts.storage
    if storage is None:
        return
    signs = _slow_signs(storage)
    remote = storage.kind == "object-store"
    if not signs and not remote:
        return
    found = "; ".join(signs) if signs else _fastest(storage)
    yield Warned(
        cause="storage-latency",
        text=f"{storage.path} lies on {storage.file_system} ({storage.kind}): {found}",
        fix="copy the data to a local disk before training, or pack small files into shards; "
        "more workers help only while the storage is not at its limit",
    )


def _slow_signs(storage: Storage) -> list[str]:
    reads = storage.reads
    if reads is None:
        return [storage.reason] if storage.reason and "hangs" in storage.reason else []
    signs = []
    enough = reads.files is not None and reads.files >= _FEW_READS
    slow_storage = storage.kind not in ("local", "overlay", "tmpfs") or bool(storage.rotational)
    # One slow file proves nothing, and a warm read of a slow disk is fast: slow is slow either way.
    if enough and reads.file_median_ms is not None and reads.file_median_ms >= _SLOW_FILE_MS:
        signs.append(
            f"{reads.file_median_ms:.1f} ms a small file, {reads.files_per_s or 0:.0f} files/s one by one"
        )
    rate, read = reads.sequential_mb_s, reads.sequential_bytes or 0
    if slow_storage and rate is not None and read >= 4 << 20 and rate < _SLOW_MB_S:
        signs.append(f"{rate:.0f} MB/s in order")
    return signs


def _fastest(storage: Storage) -> str:
    reads = storage.reads
    if reads is None:
        return "every first read crosses the network"
    shown = [f"{reads.file_median_ms:.1f} ms a small file"] if reads.file_median_ms is not None else []
    shown += [f"{reads.sequential_mb_s:.0f} MB/s in order"] if reads.sequential_mb_s is not None else []
    return f"{', '.join(shown)} just now, but every first read crosses the network"


def _of_debugging(facts: Facts) -> Iterator[Warned]:
    env, torch = facts.torch.env, facts.torch
    left_on = [
        (env.get("CUDA_LAUNCH_BLOCKING") == "1", "CUDA_LAUNCH_BLOCKING=1", "unset CUDA_LAUNCH_BLOCKING"),
        (env.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL", "TORCH_DISTRIBUTED_DEBUG=DETAIL",
         "unset TORCH_DISTRIBUTED_DEBUG"),
        (env.get("NCCL_DEBUG") == "TRACE", "NCCL_DEBUG=TRACE", "unset NCCL_DEBUG"),
        (env.get("TORCH_COMPILE_DEBUG") == "1", "TORCH_COMPILE_DEBUG=1", "unset TORCH_COMPILE_DEBUG"),
        (env.get("PYTORCH_NO_CUDA_MEMORY_CACHING") is not None, "PYTORCH_NO_CUDA_MEMORY_CACHING is set",
         "unset PYTORCH_NO_CUDA_MEMORY_CACHING"),
        (env.get("PYTHONMALLOC") in ("debug", "malloc_debug", "pymalloc_debug"), "PYTHONMALLOC=debug",
         "unset PYTHONMALLOC"),
        (bool(env.get("PYTHONTRACEMALLOC", "0").strip("0")), "PYTHONTRACEMALLOC is set",
         "unset PYTHONTRACEMALLOC"),
        (bool(env.get("PYTHONDEVMODE", "0").strip("0")), "PYTHONDEVMODE is set", "unset PYTHONDEVMODE"),
        (bool(torch.anomaly_mode), "autograd's anomaly mode is on",
         "torch.autograd.set_detect_anomaly(False)"),
        (bool(torch.debugger), "a debugger or tracer is attached (sys.settrace)", "run without it"),
    ]  # fmt: skip
    for is_on, text, fix in left_on:
        if is_on:
            yield Warned(cause="debug-left-on", text=f"left on: {text}, which slows every step", fix=fix)


def _of_precision(facts: Facts) -> Iterator[Warned]:
    """Only where this process computes on a card that has TF32: elsewhere the flags are mere defaults."""
    torch = facts.torch
    able = [
        gpu
        for gpu in facts.gpus
        if gpu.capability is not None and gpu.capability >= (8, 0) and gpu.visible is not False
    ]
    if torch.in_use and able and torch.build == "cuda" and torch.matmul_precision == "ieee":
        yield Warned(
            cause="slow-precision",
            text=f"float32 matrix products do not use TF32 (fp32_precision is ieee) on {able[0].name}",
            fix='torch.backends.cuda.matmul.fp32_precision = "tf32" if float32 products may round to '
            "10 bits; autocast to bfloat16 gains more",
        )


_RULES: tuple[Callable[[Facts], Iterator[Warned]], ...] = (
    _of_overflow,
    _of_contention,
    _of_clocks,
    _of_debugging,
    _of_quota,
    _of_affinity,
    _of_threads,
    _of_memory,
    _of_shm,
    _of_storage,
    _of_precision,
)
