"""Linux counters read again and again: files stay open and are read in place, so that a reading costs little.

All numbers are cumulative unless their name says otherwise; a file that is not there gives `None`.
"""

import os
from pathlib import Path

from stoker.facts import cgroup

_TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_PROCESS_FILES = ("stat", "io", "status")


class KeptFile:
    """A kernel file that stays open; reading it from its start gives the present value."""

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor: int | None = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError:
            self._descriptor = None

    def read(self, size: int = 8192) -> str | None:
        """Return the present content; `None` when there is none, or the process behind it ended."""
        if self._descriptor is None:
            return None
        try:
            return os.pread(self._descriptor, size, 0).decode("ascii", "replace") or None
        except OSError:
            return None

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class ProcessCounters:
    """One process' counters."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self.pid = pid
        self._proc = proc / str(pid)
        self._files = {name: KeptFile(self._proc / name) for name in _PROCESS_FILES}
        # By thread, nanoseconds in the run queue so far; and of all, those that have ended too.
        self._queued: dict[str, int] = {}
        self._queued_all = 0

    def read(self) -> dict[str, object] | None:
        """Return the counters; `None` once the process has ended."""
        found = parse_stat(self._files["stat"].read())
        if found is None:
            return None
        moved = _numbers(self._files["io"].read(), ("rchar", "read_bytes"))
        text = self._files["status"].read()
        status = _numbers(
            text, ("RssAnon", "RssShmem", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
        )
        return {
            "pid": self.pid,
            **found,
            "read_chars": moved["rchar"],
            "read_bytes": moved["read_bytes"],
            "anonymous_bytes": _from_kib(status["RssAnon"]),
            "shmem_bytes": _from_kib(status["RssShmem"]),
            "switches_voluntary": status["voluntary_ctxt_switches"],
            "switches_forced": status["nonvoluntary_ctxt_switches"],
            "cores_allowed": parse_mask(text),
            "queued_s": self._read_queued(),
        }

    def _read_queued(self) -> float | None:
        """Seconds that its threads have stood in the run queue since it was first read, all together.

        None where the kernel does not tell, or the process has ended meanwhile.
        """
        try:
            threads = [one.name for one in (self._proc / "task").iterdir()]
        except OSError:
            return None
        now: dict[str, int] = {}
        for thread in threads:
            words = (cgroup.read_text(self._proc / "task" / thread / "schedstat") or "").split()
            if len(words) == 3:
                now[thread] = int(words[1])
        if not now:
            return None
        self._queued_all += sum(max(0, waited - self._queued.get(one, 0)) for one, waited in now.items())
        self._queued = now
        return self._queued_all / 1e9

    def read_thread(self, thread: int) -> dict[str, float | None]:
        """Seconds that one of its threads has computed, and stood in the run queue; None where not told."""
        text = cgroup.read_text(self._proc / "task" / str(thread) / "schedstat")
        words = (text or "").split()
        if len(words) != 3:
            return {"loop_cpu_s": None, "loop_queued_s": None}
        return {"loop_cpu_s": int(words[0]) / 1e9, "loop_queued_s": int(words[1]) / 1e9}

    def read_sizes(self) -> dict[str, int | None]:
        """Return the proportional memory, the unique, and what of that was written to.

        Walks all mappings, so it is read rarely.
        """
        text = cgroup.read_text(self._proc / "smaps_rollup")
        if text is None:
            return {"pss_bytes": None, "uss_bytes": None, "written_bytes": None}
        sizes = _numbers(text, ("Pss", "Private_Clean", "Private_Dirty"))
        clean, dirty, pss = sizes["Private_Clean"], sizes["Private_Dirty"], sizes["Pss"]
        return {
            "pss_bytes": _from_kib(pss),
            "uss_bytes": None if clean is None or dirty is None else (clean + dirty) * 1024,
            "written_bytes": _from_kib(dirty),
        }

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


class MachineCounters:
    """The counters of the machine and of the group that this process runs in."""

    def __init__(self, root: Path = Path("/")) -> None:
        proc = root / "proc"
        self._pressure = {name: KeptFile(proc / "pressure" / name) for name in ("cpu", "memory", "io")}
        self._stat = KeptFile(proc / "stat")
        self._net = KeptFile(proc / "self/net/dev")
        self._meminfo = KeptFile(proc / "meminfo")
        stat = cgroup.cpu_stat_file(cgroup.find("cpu", root))
        self._throttling = KeptFile(stat if stat is not None else root / "none")
        memory = cgroup.memory_files(cgroup.find("memory", root))
        self._usage = KeptFile(memory.usage if memory is not None else root / "none")
        self._refaults = KeptFile(memory.stat if memory is not None else root / "none")
        self._kills = KeptFile(memory.events if memory is not None else root / "none")
        self._limit = None if memory is None else memory.limit_bytes
        self._shm = root / "dev/shm"

    def read(self) -> dict[str, object]:
        """Return the counters."""
        values: dict[str, object] = {
            "ram_available_bytes": _kib(self._meminfo.read(512), "MemAvailable"),
            "group_memory_bytes": _number(self._usage.read(64)),
            "group_memory_limit_bytes": self._limit,
            "group_refaults": parse_refaults(self._refaults.read()),
            "group_oom_kills": _numbers(self._kills.read(512), ("oom_kill",))["oom_kill"],
            "shm_free_bytes": self._shm_free(),
        }
        for name, file in self._pressure.items():
            some = parse_some(file.read(256))
            values[f"{name}_pressure_avg10"], values[f"{name}_pressure_total_us"] = some
        values.update(parse_throttling(self._throttling.read(1024)))
        values.update(parse_cpu_times(self._stat.read(256)))
        values.update(parse_net(self._net.read(16384)))
        return values

    def _shm_free(self) -> int | None:
        try:
            room = os.statvfs(self._shm)
        except OSError:
            return None
        return room.f_bavail * room.f_frsize

    def close(self) -> None:
        """Close the files."""
        for file in (
            *self._pressure.values(),
            self._stat,
            self._net,
            self._meminfo,
            self._throttling,
            self._usage,
            self._refaults,
            self._kills,
        ):
            file.close()


def parse_stat(text: str | None) -> dict[str, object] | None:
    """Take /proc/PID/stat apart. The name in it may hold blanks, so fields count from its end."""
    if text is None:
        return None
    fields = text[text.rfind(")") + 2 :].split()
    if len(fields) < 22 or fields[0] in "ZX":
        return None
    return {
        "cpu_s": (int(fields[11]) + int(fields[12])) / _TICK,
        "cpu_system_s": int(fields[12]) / _TICK,
        "children_cpu_s": (int(fields[13]) + int(fields[14])) / _TICK,
        "faults_minor": int(fields[7]),
        "faults_major": int(fields[9]),
        "threads": int(fields[17]),
        "rss_bytes": int(fields[21]) * _PAGE,
    }


def cpu_of(pid: int) -> float:
    """CPU time of a process and of those that it has waited for; 0 of one that has ended."""
    found = parse_stat(cgroup.read_text(Path(f"/proc/{pid}/stat"))) or {}
    return sum(float(str(found.get(name, 0.0))) for name in ("cpu_s", "children_cpu_s"))


def parse_mask(text: str | None) -> int | None:
    """Count the cores in the mask of /proc/PID/status: hexadecimal digits, with commas."""
    _, _, rest = (text or "").partition("\nCpus_allowed:")
    digits = rest.split("\n", 1)[0].strip().replace(",", "")
    return int(digits, 16).bit_count() if digits else None


def parse_some(text: str | None) -> tuple[float | None, int | None]:
    """Take the "some" line of a pressure file: the average over 10 s in percent, and the total in us."""
    if text is None or not text.startswith("some "):
        return None, None
    words = text.split("\n", 1)[0].split()
    pairs = dict(word.split("=", 1) for word in words if "=" in word)
    return float(pairs["avg10"]), int(pairs["total"])


def parse_throttling(text: str | None) -> dict[str, object]:
    """Take cpu.stat: how often, and for how long, the group stood still."""
    pairs = _numbers(text, ("nr_periods", "nr_throttled", "throttled_usec", "throttled_time"))
    spent = pairs["throttled_usec"]
    if spent is None and pairs["throttled_time"] is not None:
        spent = pairs["throttled_time"] // 1000  # version 1 counts nanoseconds
    return {
        "quota_periods": pairs["nr_periods"],
        "throttled_periods": pairs["nr_throttled"],
        "throttled_us": spent,
    }


def parse_refaults(text: str | None) -> int | None:
    """Take memory.stat: pages that came back after they had been pushed out, the groups below included.

    Version 1 counts those of the group alone too, under the plain names; kernels before 5.9 do not tell
    files from the rest.
    """
    names = ("workingset_refault_file", "workingset_refault_anon", "workingset_refault")
    for start in ("total_", ""):
        found = [
            value
            for value in _numbers(text, tuple(start + name for name in names)).values()
            if value is not None
        ]
        if found:
            return sum(found)
    return None


def parse_cpu_times(text: str | None) -> dict[str, object]:
    """Take the first line of /proc/stat: seconds of all cores together, by what they did."""
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    words = (text or "").split("\n", 1)[0].split()
    if len(words) < 9 or words[0] != "cpu":
        return {f"machine_{name}_s": None for name in names}
    return {f"machine_{name}_s": int(words[at + 1]) / _TICK for at, name in enumerate(names)}


def parse_net(text: str | None) -> dict[str, object]:
    """Take /proc/net/dev: bytes received, loopback apart (a local proxy or server is no network)."""
    if text is None:
        return {"net_received_bytes": None, "net_loopback_received_bytes": None}
    received = loopback = 0
    for line in text.splitlines()[2:]:
        name, _, rest = line.partition(":")
        words = rest.split()
        if not words:
            continue
        if name.strip() == "lo":
            loopback += int(words[0])
        else:
            received += int(words[0])
    return {"net_received_bytes": received, "net_loopback_received_bytes": loopback}


def _numbers(text: str | None, names: tuple[str, ...]) -> dict[str, int | None]:
    """Pick some of a kernel file's `name: number` or `name number` lines.

    Looked up and not read line by line: of the 60 lines of a process' status two are wanted, and taking all
    apart took twice as long as reading the file.
    """
    return {name: _number_after(f"\n{name}", f"\n{text or ''}") for name in names}


def _number_after(start: str, text: str) -> int | None:
    """The number that follows a line's name."""
    at = text.find(f"{start}:")
    if at < 0:
        at = text.find(f"{start} ")
    words = text[at + len(start) + 1 :].split(maxsplit=1) if at >= 0 else []
    return int(words[0]) if words and words[0].isdigit() else None


def _number(text: str | None) -> int | None:
    stripped = (text or "").strip()
    return int(stripped) if stripped.isdigit() else None


def _kib(text: str | None, name: str) -> int | None:
    return _from_kib(_numbers(text, (name,))[name])


def _from_kib(count: int | None) -> int | None:
    return None if count is None else count * 1024
