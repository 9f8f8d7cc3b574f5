"""The facts that change from second to second, cheap enough to be read beside a training loop.

    sampler = Sampler()
    sampler.read([worker.pid for worker in workers])   # {"t": …, "rss_bytes": …, "gpus": [...], …}

On Linux, without NVML, one reading of the own process and four workers cost 0.20 ms of CPU time on a 2-core
virtual machine (`measure_cost()`); of the own process alone with NVML, beside an H200, 0.20 ms. The run
queue's times came later: 0.58 ms with them, 0.43 without, while others used both cores. Bus traffic adds
55 ms of waiting every 10 s; memory sizes cost by the number of pages, and at most 0.5% of the time.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from stoker.facts import cgroup, nvml
from stoker.facts.counters import MachineCounters, ProcessCounters, cpu_of
from stoker.facts.nvml import GpuSource

# NVML measures bus traffic by waiting about 20 ms for each direction.
_BUS_EVERY_S = 10.0
# Memory sizes walk every mapping: often at first, while workers fill, then rarely, and of large processes
# more rarely still, so that reading them stays under a share of the time.
_SIZES_FIRST_S = 2.0
_SIZES_EVERY_S = 30.0
_SIZES_BY_AGE = 0.25
_SIZES_SHARE = 0.005


class Sampler:
    """Reads the counters of the machine, of this process and of its workers. Made once, read often.

    `own` is another process to read in this one's place. `gpu` is the source of GPU values; by default NVML
    where it is, and `bus` adds PCIe throughput at most every 10 s. Keys that a platform lacks are absent or
    `None`.
    """

    def __init__(
        self,
        *,
        own: int | None = None,
        gpu: GpuSource | None = None,
        bus: bool = True,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._gpu = gpu if gpu is not None else nvml.connect()[0]
        self._bus = bus
        self._clock, self._cpu_clock = clock, cpu_clock
        self._began = self._bus_due = self._sizes_due = clock()
        self._linux = sys.platform.startswith("linux")
        self._machine = MachineCounters() if self._linux else None
        self._processes: dict[int, ProcessCounters] = {}
        self._own = os.getpid() if own is None else own

    def read(
        self, pids: Iterable[int] = (), *, thread: int | None = None, last: bool = False
    ) -> dict[str, object]:
        """Read everything once. Of `pids`, those that have ended are left out of `processes`.

        `thread` is one of the own process's, by the system's number, that is told of by itself. The last
        reading has memory sizes, whenever they were read before.
        """
        now = self._clock()
        bus = self._bus and now >= self._bus_due
        if bus:
            self._bus_due = now + _BUS_EVERY_S
        sizes = last or now >= self._sizes_due
        spent = self._cpu_clock()
        wanted = [self._own, *(pid for pid in pids if pid != self._own)]
        self._drop(set(wanted))
        readings = [found for pid in wanted if (found := self._read_process(pid, sizes=sizes)) is not None]
        if sizes:
            took = self._cpu_clock() - spent
            rarer = min(_SIZES_EVERY_S, max(_SIZES_FIRST_S, _SIZES_BY_AGE * (now - self._began)))
            self._sizes_due = now + max(rarer, took / _SIZES_SHARE)
        own = readings.pop(0) if readings and readings[0]["pid"] == self._own else {}
        return {
            "t": time.time(),
            **own,
            **self._read_thread(thread),
            "beside_cpu_s": self._read_beside(set(wanted)),
            **(self._machine.read() if self._machine is not None else _read_machine()),
            "processes": readings,
            "gpus": [] if self._gpu is None else self._read_gpus(self._gpu, bus=bus),
        }

    def close(self) -> None:
        """Close every file, and the driver."""
        self._drop(set())
        if self._machine is not None:
            self._machine.close()
        if self._gpu is not None:
            self._gpu.close()
            self._gpu = None

    def _read_gpus(self, gpu: GpuSource, *, bus: bool) -> list[dict[str, object]]:
        return [gpu.sample(index, bus=bus) for index in range(gpu.count())]

    def _read_process(self, pid: int, *, sizes: bool) -> dict[str, object] | None:
        if not self._linux:
            return _read_by_psutil(pid, sizes=sizes)
        counters = self._processes.get(pid)
        if counters is None:
            counters = self._processes[pid] = ProcessCounters(pid)
        found = counters.read()
        if found is None:
            # Its files stay dead for ever, also when a new process gets the same number.
            self._processes.pop(pid).close()
            return None
        return {**found, **counters.read_sizes()} if sizes else found

    def _read_thread(self, thread: int | None) -> dict[str, float | None]:
        own = self._processes.get(self._own)
        return {} if thread is None or own is None else own.read_thread(thread)

    def _read_beside(self, known: set[int]) -> float | None:
        """CPU time of the process' other children, such as a server that a script starts for itself.

        Those of its first thread, and of them what lives or was waited for; not this process, where it is
        one. None where the kernel does not list them.
        """
        if not self._linux:
            return None
        listed = cgroup.read_text(Path(f"/proc/{self._own}/task/{self._own}/children"))
        if listed is None:
            return None
        known = known | {os.getpid()}
        return sum(cpu_of(pid) for word in listed.split() if (pid := int(word)) not in known)

    def _drop(self, kept: set[int]) -> None:
        for pid in [pid for pid in self._processes if pid not in kept]:
            self._processes.pop(pid).close()


def _read_by_psutil(pid: int, *, sizes: bool) -> dict[str, object] | None:
    """Read a process where there is no /proc."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times, memory, switches = process.cpu_times(), process.memory_info(), process.num_ctx_switches()
            moved = process.io_counters() if hasattr(process, "io_counters") else None
            found: dict[str, object] = {
                "pid": pid,
                "cpu_s": times.user + times.system,
                "cpu_system_s": times.system,
                "children_cpu_s": getattr(times, "children_user", 0.0)
                + getattr(times, "children_system", 0.0),
                "faults_major": getattr(memory, "pageins", None),
                "threads": process.num_threads(),
                "rss_bytes": memory.rss,
                # Windows counts all that was read, from the cache or not.
                "read_chars": None if moved is None else moved.read_bytes,
                "read_bytes": None,
                "switches_voluntary": switches.voluntary,
                "switches_forced": switches.involuntary,
            }
            if sizes:
                full = process.memory_full_info()
                found["pss_bytes"], found["uss_bytes"] = getattr(full, "pss", None), full.uss
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None
    return found


def _read_machine() -> dict[str, object]:
    """Read the machine where there is no /proc; what psutil lacks is absent."""
    times = psutil.cpu_times()
    net = psutil.net_io_counters()
    return {
        "ram_available_bytes": psutil.virtual_memory().available,
        "machine_user_s": times.user,
        "machine_system_s": times.system,
        "machine_idle_s": times.idle,
        "net_received_bytes": None if net is None else net.bytes_recv,
    }


def measure_cost(readings: int = 500) -> float:
    """Return the CPU milliseconds of one reading of this process and four others, without NVML."""
    import subprocess

    children = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(4)]
    try:
        sampler = Sampler(bus=False)
        pids = [child.pid for child in children]
        sampler.read(pids)
        begun = time.process_time()
        for _ in range(readings):
            sampler.read(pids)
        return (time.process_time() - begun) / readings * 1e3
    finally:
        for child in children:
            child.communicate(b"\n")
