"""The sampler: every counter there or `None`, workers that vanish, slow counters now and then."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.facts import counters
from stoker.facts.sample import Sampler
from stoker.ward.fake_gpu import FakeGpus, card

WAIT = "import sys; print('up', flush=True); sys.stdin.read()"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def start() -> "subprocess.Popen[bytes]":
    child = subprocess.Popen([sys.executable, "-c", WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return child


def test_a_reading_is_json_with_own_worker_and_machine_counters() -> None:
    """One reading has this process' counters flat, each worker's in a list, and the machine's."""
    sampler = Sampler(gpu=FakeGpus(card(used_bytes=5)))
    with start() as worker:
        found = json.loads(json.dumps(sampler.read([worker.pid])))
    sampler.close()
    assert found["pid"] == os.getpid()
    assert found["rss_bytes"] > 0 and found["cpu_s"] > 0
    assert [one["pid"] for one in found["processes"]] == [worker.pid]
    assert found["ram_available_bytes"] > 0
    assert found["gpus"][0]["used_bytes"] == 5


def test_cpu_time_grows_with_work() -> None:
    """Cumulative CPU seconds rise as the process computes."""
    sampler = Sampler(gpu=FakeGpus())
    before = sampler.read()["cpu_s"]
    while os.times().user + os.times().system < float(str(before)) + 0.1:
        sum(range(10_000))
    assert float(str(sampler.read()["cpu_s"])) >= float(str(before)) + 0.05
    sampler.close()


def test_a_worker_that_vanished_is_left_out() -> None:
    """A worker that ended between readings, or never was, is simply not in the list."""
    sampler = Sampler(gpu=FakeGpus())
    with start() as worker:
        assert len(sampler.read([worker.pid, 2**22 + 1])["processes"]) == 1  # type: ignore[arg-type]
    assert sampler.read([worker.pid])["processes"] == []
    assert sampler.read([worker.pid])["processes"] == []
    sampler.close()


def test_slow_counters_come_now_and_then() -> None:
    """Bus traffic is read at most every 10 s; memory sizes often at first, later every 30 s."""
    clock = Clock()
    sampler = Sampler(gpu=FakeGpus(card(pcie_rx_kb_s=7)), clock=clock)
    seen = []
    for clock.now in (1000.0, 1001.0, 1010.0, 1012.0, 1019.0, 1400.0, 1429.0, 1430.0):
        found = sampler.read()
        cards = found["gpus"]
        assert isinstance(cards, list)
        seen.append(("pcie_rx_kb_s" in cards[0], "uss_bytes" in found))
    sampler.close()
    buses, sizes = zip(*seen, strict=True)
    assert buses == (True, False, True, False, False, True, True, False)
    assert sizes == (True, False, True, False, True, True, False, True)


def test_memory_sizes_that_take_long_come_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walking a process of 100 GB may take a second: then 200 go by until the next time, or the last."""
    clock = Clock()

    cpu = Clock()

    def walk(_: object) -> dict[str, int]:
        cpu.now += 1.0
        return {"uss_bytes": 1}

    monkeypatch.setattr(counters.ProcessCounters, "read_sizes", walk)
    sampler = Sampler(gpu=FakeGpus(), clock=clock, cpu_clock=cpu)
    seen = []
    for clock.now in (1000.0, 1100.0, 1199.0, 1200.0):
        seen.append("uss_bytes" in sampler.read())
    clock.now = 1201.0
    last = sampler.read(last=True)
    sampler.close()
    assert seen == [True, False, False, True]
    assert "uss_bytes" in last


def test_cores_are_counted_in_the_mask() -> None:
    """Of a machine with more than 32 it has commas."""
    assert (
        counters.parse_mask("Threads:\t1\nCpus_allowed:\tff,0000000f\nCpus_allowed_list:\t0-3,32-39\n") == 12
    )
    assert counters.parse_mask("Threads:\t1\n") is None


def test_refaults_are_counted_with_the_groups_below() -> None:
    """Version 1 tells of both; version 2, and older kernels, of one."""
    first = "workingset_refault_file 1\ntotal_workingset_refault_anon 2\ntotal_workingset_refault_file 5\n"
    assert counters.parse_refaults(first) == 7
    assert counters.parse_refaults("anon 3\nworkingset_refault_anon 1\nworkingset_refault_file 4\n") == 5
    assert counters.parse_refaults("workingset_refault 9\n") == 9
    assert counters.parse_refaults("cache 3\n") is None


def test_bus_traffic_can_be_left_out() -> None:
    """Where the caller does not want to wait for the bus counters they are never read."""
    found = Sampler(gpu=FakeGpus(card(pcie_rx_kb_s=7)), bus=False).read()
    assert "pcie_rx_kb_s" not in found["gpus"][0]  # type: ignore[index]


def test_a_name_with_brackets_does_not_shift_the_fields() -> None:
    """A process may call itself anything; its numbers are found all the same."""
    fields = [
        "S",
        *["0"] * 6,
        "8",
        "0",
        "3",
        "0",
        "200",
        "100",
        "50",
        "50",
        "20",
        "0",
        "4",
        "0",
        "0",
        "0",
        "10",
    ]
    found = counters.parse_stat(f"7 (a) b (c) {' '.join(fields)}")
    assert found is not None
    assert (found["faults_minor"], found["faults_major"], found["threads"]) == (8, 3, 4)
    assert found["cpu_s"] == pytest.approx(300 / os.sysconf("SC_CLK_TCK"))


def test_missing_files_are_none(tmp_path: Path) -> None:
    """On a kernel without them the counters are `None`, and nothing fails."""
    machine = counters.MachineCounters(tmp_path)
    found = machine.read()
    machine.close()
    found.pop("shm_free_bytes")
    assert set(found.values()) == {None}


def test_both_throttling_formats_are_read() -> None:
    """Version 1 counts nanoseconds, version 2 microseconds; both come out in microseconds."""
    first = counters.parse_throttling("nr_periods 5\nnr_throttled 2\nthrottled_time 3000\n")
    second = counters.parse_throttling("usage_usec 1\nnr_periods 5\nnr_throttled 2\nthrottled_usec 3\n")
    assert first == second == {"quota_periods": 5, "throttled_periods": 2, "throttled_us": 3}


def test_loopback_is_counted_apart() -> None:
    """Bytes from the machine itself are no network traffic."""
    text = "Inter-|   Receive\n face |bytes\n    lo: 100 1 0\n  eth0: 20 1 0\n  eth1: 3 1 0\n"
    assert counters.parse_net(text) == {"net_received_bytes": 23, "net_loopback_received_bytes": 100}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children are listed by Linux alone")
def test_children_beside_the_workers_are_counted_together() -> None:
    """A server that a script starts for itself; not a worker, which has its own line."""
    sampler = Sampler(gpu=FakeGpus())
    burn = "import os, sys\nwhile os.times().user < 0.3: pass\nprint('up', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        server.stdout.readline()
        beside = sampler.read()["beside_cpu_s"]
        as_worker = sampler.read([server.pid])["beside_cpu_s"]
    sampler.close()
    if beside is None:
        pytest.skip("this kernel does not list a process' children")
    assert float(str(beside)) - float(str(as_worker)) >= 0.3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the run queue is read from /proc")
def test_what_threads_waited_for_a_core_adds_up(tmp_path: Path) -> None:
    """Of all threads; what one has waited that has ended since stays counted; None where it is not told."""
    own = tmp_path / "7"
    own.mkdir()
    (own / "stat").write_text(Path("/proc/self/stat").read_text())
    threads = counters.ProcessCounters(7, tmp_path)

    def waited(**seconds: int) -> object:
        shutil.rmtree(own / "task", ignore_errors=True)
        for name, value in seconds.items():
            (own / "task" / name[1:]).mkdir(parents=True)
            (own / "task" / name[1:] / "schedstat").write_text(f"9 {value}000000000 3\n")
        found = threads.read()
        assert found is not None
        return found["queued_s"]

    assert waited() is None
    assert waited(t7=2, t8=1) == 3.0
    assert waited(t7=3) == 4.0
    assert waited(t7=3, t9=5) == 9.0
    threads.close()
