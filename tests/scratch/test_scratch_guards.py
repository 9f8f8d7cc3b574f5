"""What stops a script before it hurts the machine."""

import os
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scratch_kit import available, marked, plan

from stoker.scratch import Guards, Limits, run, vram
from stoker.scratch.guards import Reading, _free, judge
from stoker.scratch.outcome import Ending, decide

MIB = 1 << 20


def script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(text))
    return path


def test_a_script_over_its_memory_is_stopped(tmp_path: Path) -> None:
    """With its forked workers counted, each page once; nothing of it is left."""
    mark = f"mark-{os.getpid()}-{tmp_path.name}"
    path = script(
        tmp_path,
        """
        import os, time
        if os.fork() == 0:
            held = [bytearray(b"x") * (32 << 20) for _ in range(24)]
        time.sleep(600)
        """,
    )
    result = run(plan(path, guards=Guards(ram_bytes=700 * MIB), env={"MARK": mark}))
    assert (result.outcome, result.guard) == ("stopped", "ram"), result
    assert "over the 700 MiB allowed" in result.reason
    assert marked(mark) == []


def test_shared_pages_are_counted_once(tmp_path: Path) -> None:
    """Six workers that inherit 128 MiB hold 128 MiB, not 896."""
    path = script(
        tmp_path,
        """
        import os, time
        held = bytearray(b"x") * (128 << 20)
        for _ in range(6):
            if os.fork() == 0:
                time.sleep(600)
        time.sleep(1.5)
        """,
    )
    result = run(plan(path, guards=Guards(ram_bytes=900 * MIB)))
    assert result.outcome == "done", result


def test_little_memory_on_the_machine_stops_a_script(tmp_path: Path) -> None:
    """Whoever took it."""
    path = script(tmp_path, "import time\ntime.sleep(600)")
    result = run(plan(path, guards=Guards(ram_headroom_bytes=1 << 50)))
    assert (result.outcome, result.guard) == ("stopped", "ram")
    assert "is left, under the 1024.0 TiB kept free" in result.reason


def test_files_beyond_the_room_stop_a_script(tmp_path: Path) -> None:
    """They are in memory; the reason names what to raise."""
    if not available("overlay"):
        pytest.skip("no overlay here")
    path = script(
        tmp_path,
        """
        import time
        try:
            with open("large.bin", "wb") as file:
                while True: file.write(b"x" * (1 << 20))
        except OSError: time.sleep(600)
        """,
    )
    result = run(plan(path, guards=Guards(room_bytes=16 * MIB)))
    assert (result.outcome, result.guard) == ("stopped", "room"), result
    assert "raise room_bytes" in result.reason
    assert not (tmp_path / "large.bin").exists()


def test_shared_memory_under_its_headroom_stops_a_script(tmp_path: Path) -> None:
    """The private /dev/shm is watched, and the machine's is as it was."""
    path = script(
        tmp_path,
        """
        import os, time
        free = os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize
        with open("/dev/shm/filled", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 64 << 20)
        time.sleep(600)
        """,
    )
    free = os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize
    result = run(plan(path, guards=Guards(shm_headroom_bytes=free - 32 * MIB)))
    assert (result.outcome, result.guard) == ("stopped", "shm"), result
    assert not Path("/dev/shm/filled").exists()


@pytest.mark.parametrize("free", [0, 4096, 16 << 10])
def test_full_shared_memory_stops_a_script_unasked(free: int) -> None:
    """Its workers would be ended by the kernel, with no word of why."""
    stopped = judge(Reading(shm_free_bytes=free), Guards())
    assert stopped is not None
    assert stopped[0] == "shm"
    assert "is left in /dev/shm" in stopped[1]


def test_little_shared_memory_from_the_first_stops_nobody() -> None:
    """A run gets 64 KiB of its own where the machine's is full; a mount without a size has no end."""
    assert judge(Reading(shm_free_bytes=64 << 10), Guards()) is None
    assert _free("/proc") is None


def test_a_script_that_prints_without_end_is_stopped(tmp_path: Path) -> None:
    """Its output is on a real disk."""
    path = script(tmp_path, "while True: print('x' * 10000)")
    result = run(plan(path, guards=Guards(output_bytes=4 * MIB)))
    assert (result.outcome, result.guard) == ("stopped", "output"), result


def test_the_script_is_first_for_the_kernel_to_take(tmp_path: Path) -> None:
    """Should memory run out between two readings, the caller is not what dies."""
    if sys.platform != "linux":
        pytest.skip("no oom_score_adj here")
    path = script(tmp_path, "print(open('/proc/self/oom_score_adj').read())")
    assert run(plan(path)).stdout_tail.strip() == "1000"


def test_a_wrong_reading_trips_nothing() -> None:
    """What cannot be read stops nobody."""
    assert judge(Reading(), Guards(ram_bytes=1, shm_headroom_bytes=1 << 60)) is None


def test_a_kill_by_the_kernel_for_memory_is_the_ram_guard() -> None:
    """SIGKILL while the kernel counted an out-of-memory kill."""
    verdict = decide(Ending(exit_status=9, oom_killed=True))
    assert (verdict.outcome, verdict.guard, verdict.signal) == ("stopped", "ram", 9)
    assert decide(Ending(exit_status=9)).outcome == "crashed"


def test_the_end_reported_by_the_script_wins_over_a_guard() -> None:
    """Both can come in one moment; the steps were made."""
    verdict = decide(Ending(ended=True, steps=5, guard=("ram", "late"), timeout_s=1.0))
    assert (verdict.outcome, verdict.reason) == ("done", "ended at step 5")


def test_the_vram_cap_is_set_when_cuda_wakes_and_not_before() -> None:
    """On every visible device; a fake torch stands in for one with GPUs."""
    waiting: list[Any] = []
    capped: list[tuple[float, int]] = []
    cuda = SimpleNamespace(
        _lazy_call=waiting.append,
        device_count=lambda: 2,
        set_per_process_memory_fraction=lambda share, device: capped.append((share, device)),
    )
    vram.cap(0.9, SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    assert capped == []
    waiting[0]()
    assert capped == [(0.9, 0), (0.9, 1)]


def test_the_vram_cap_is_accepted_where_there_is_no_gpu(tmp_path: Path) -> None:
    """A run on the CPU goes on."""
    path = script(tmp_path, "import torch\nprint(torch.cuda.is_available())")
    result = run(plan(path, guards=Guards(vram_fraction=0.5), limits=Limits(seconds=60)))
    assert result.outcome == "done", result
