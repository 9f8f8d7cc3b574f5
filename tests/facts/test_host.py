"""The host by trees made for it: quotas and limits of both control-group versions, nested, and none."""

import os
import sys
from pathlib import Path

import pytest

from stoker.facts import cgroup, linux, macos

GIB = 1 << 30


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


MACHINE = {
    "sys/devices/system/cpu/online": "0-15\n",
    "proc/self/status": "Name:\tpython3\nCpus_allowed_list:\t0-15\n",
    "proc/meminfo": "MemTotal: 65536000 kB\nMemAvailable: 32768000 kB\nSwapTotal: 9 kB\nSwapFree: 5 kB\n",
    "proc/pressure/cpu": "some avg10=1.50 avg60=2.00 avg300=0.00 total=1234\n",
    "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n"
    "full avg10=0.10 avg60=0.00 avg300=0.00 total=3\n",
}
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"


def test_nested_v2_groups_give_the_tightest_bound(tmp_path: Path) -> None:
    """A quota on an outer group binds an inner one that has none; each bound is the tightest of all."""
    root = plant(
        tmp_path,
        {
            **MACHINE,
            "proc/self/cgroup": "0::/kubepods/pod1/box\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/kubepods/pod1/box/cpu.max": "max 100000\n",
            "sys/fs/cgroup/kubepods/pod1/box/cpu.stat": "usage_usec 9\nnr_throttled 0\nthrottled_usec 0\n",
            "sys/fs/cgroup/kubepods/pod1/box/memory.max": "max\n",
            "sys/fs/cgroup/kubepods/pod1/box/memory.current": "100\n",
            "sys/fs/cgroup/kubepods/pod1/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/kubepods/pod1/cpu.stat": "nr_periods 50\nnr_throttled 7\nthrottled_usec 1500000\n",
            "sys/fs/cgroup/kubepods/pod1/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/kubepods/pod1/memory.current": f"{6 * GIB}\n",
            "sys/fs/cgroup/kubepods/pod1/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            "sys/fs/cgroup/kubepods/pod1/memory.events": "oom 3\noom_kill 2\n",
            "sys/fs/cgroup/kubepods/cpu.max": "800000 100000\n",
            "sys/fs/cgroup/kubepods/memory.max": f"{16 * GIB}\n",
            "sys/fs/cgroup/kubepods/memory.current": f"{15 * GIB}\n",
        },
    )
    host = linux.read(root)
    assert (host.cpus, host.quota_cores, host.usable_cores, host.cgroup) == (16, 2.5, 2.5, "v2")
    assert (host.throttled_periods, host.throttled_s) == (7, 1.5)
    assert (host.memory_limit_bytes, host.memory_used_bytes, host.oom_kills) == (8 * GIB, 6 * GIB, 2)
    # The inner group could give 3 GiB (1 of them cache), but the outer one has 1 GiB left.
    assert host.memory_free_bytes == GIB


def test_v1_quota_and_limit(tmp_path: Path) -> None:
    """Version 1 has a file each for quota and period, and a huge number for no limit."""
    mounts = (
        "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    )
    root = plant(
        tmp_path,
        {
            **MACHINE,
            "proc/self/cgroup": "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc/in\n",
            "proc/self/mountinfo": mounts,
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.stat": "nr_periods 5\nnr_throttled 4\nthrottled_time 3000000000\n",
            "sys/fs/cgroup/cpu,cpuacct/in/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/in/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "123\n",
            "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        },
    )
    host = linux.read(root)
    assert (host.quota_cores, host.usable_cores, host.cgroup) == (4.0, 4.0, "v1")
    assert (host.throttled_periods, host.throttled_s) == (4, 3.0)
    assert (host.memory_limit_bytes, host.memory_used_bytes, host.oom_kills) == (None, 123, 1)
    assert host.memory_free_bytes == 32768000 * 1024


def test_a_narrow_mask_bounds_the_usable_cores(tmp_path: Path) -> None:
    """The affinity mask counts where it is less than the machine; the CPU set is told apart from it."""
    root = plant(
        tmp_path,
        {
            **MACHINE,
            "proc/self/status": "Cpus_allowed_list:\t3,8-9\n",
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/cpuset.cpus.effective": "0-7\n",
        },
    )
    host = linux.read(root)
    assert (host.affinity, host.cpuset_cores, host.usable_cores) == ((3, 8, 9), 8, 3.0)


def test_pressure_is_read_where_the_kernel_has_it(tmp_path: Path) -> None:
    """Pressure has its averages and totals; a missing file is `None`, not calm."""
    host = linux.read(plant(tmp_path, MACHINE))
    assert host.cpu_pressure is not None and host.memory_pressure is not None
    assert (host.cpu_pressure.some_avg10, host.cpu_pressure.some_total_us) == (1.5, 1234)
    assert host.cpu_pressure.full_avg10 is None
    assert host.memory_pressure.full_avg10 == 0.1
    assert host.io_pressure is None


def test_nothing_readable_is_nothing_known(tmp_path: Path) -> None:
    """On an empty tree every fact but the interpreter's own core count is `None`."""
    host = linux.read(tmp_path)
    assert host.cpus == os.cpu_count()
    unknown = (host.affinity, host.quota_cores, host.cgroup, host.ram_total_bytes, host.memory_free_bytes)
    assert unknown == (None,) * 5


def test_a_group_outside_the_mount_is_the_mount(tmp_path: Path) -> None:
    """A path that leads out of the mounted tree is not followed."""
    root = plant(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../../elsewhere\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/cpu.stat": "",
        },
    )
    chain = cgroup.find("cpu", root)
    assert chain is not None and chain.groups == (root / "sys/fs/cgroup",)
    assert cgroup.cpu_of(chain).quota_cores == 0.5


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux reads itself")
def test_this_machine_reads() -> None:
    """On real Linux the essentials are there and agree with the interpreter."""
    host = linux.read()
    assert host.cpus == os.cpu_count()
    assert host.affinity is not None and set(host.affinity) == os.sched_getaffinity(0)
    assert host.ram_total_bytes is not None and host.memory_free_bytes is not None
    assert host.usable_cores is not None and 0 < host.usable_cores <= len(host.affinity)


APPLE_SILICON = "hw.perflevel0.logicalcpu: 8\nkern.memorystatus_vm_pressure_level: 2\n"
INTEL_MAC = "kern.memorystatus_vm_pressure_level: 1\n"


@pytest.mark.parametrize(
    ("printed", "fast", "level"),
    [(APPLE_SILICON, 8, "warning"), (INTEL_MAC, None, "normal"), ("", None, None)],
)
def test_macos_by_what_sysctl_prints(printed: str, fast: int | None, level: str | None) -> None:
    """Fast cores and the pressure level come from sysctl; what it does not say is `None`."""
    host = macos.read(lambda: printed)
    assert (host.system, host.performance_cores, host.memory_pressure_level) == ("macos", fast, level)
    assert (host.quota_cores, host.shm_total_bytes, host.affinity) == (None, None, None)
    assert host.ram_total_bytes is not None
