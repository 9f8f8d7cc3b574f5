"""What facts warn of: each cause by its values, and nothing on a healthy machine."""

from dataclasses import replace
from typing import Any

import pytest

from stoker.facts.values import Facts, Holder, Host, Reads, Storage, Warned
from stoker.facts.warnings import warnings_of

from .machine import CALM, GIB, LAPTOP, gpu, with_gpu, with_host, with_torch


def causes(facts: Facts) -> list[str]:
    return [warning.cause for warning in warnings_of(facts)]


def only(facts: Facts) -> Warned:
    (found,) = warnings_of(facts)
    return found


def holder(**values: Any) -> Holder:
    given: dict[str, Any] = {
        "pid": 4242, "bytes": 20 * GIB, "user": "ann", "age_s": 10_800.0, "command": "python train.py",
        "parent": 1, "parent_alive": True,
    }  # fmt: skip
    return Holder(**{**given, **values})


def test_a_healthy_laptop_gets_no_warning() -> None:
    """Two cores, no GPU, no quota: nothing to say."""
    assert warnings_of(LAPTOP) == ()


def test_an_idle_healthy_gpu_gets_no_warning() -> None:
    """An empty card with default flags in a process that computes nothing is no cause for alarm."""
    facts = with_gpu(gpu())
    assert warnings_of(replace(facts, torch=replace(facts.torch, build="cuda"))) == ()


def test_unknown_facts_warn_of_nothing() -> None:
    """Where nothing was measured nothing is concluded."""
    facts = replace(LAPTOP, host=Host(system="linux", cpus=None))
    assert warnings_of(replace(facts, gpus=(gpu(total_bytes=None, used_bytes=None, holders=None),))) == ()


def test_an_orphan_kernel_is_named_with_the_command_that_would_end_it() -> None:
    """The text has pid, bytes and state; the fix is a kill line, with what it ends behind it."""
    found = only(with_gpu(gpu(holder(notebook_state="orphan", parent_alive=False))))
    assert found.cause == "gpu-contention"
    assert "20.0 GiB of 80.0 GiB held by pid 4242 of ann" in found.text
    assert found.fix == "kill 4242  # orphan kernel"


def test_a_live_notebook_is_to_be_shut_down_in_jupyter() -> None:
    """An idle kernel with a server is not to be killed: its owner shuts it down where it shows."""
    one = holder(notebook="/home/ann/train.ipynb", notebook_state="idle", idle_s=10_800.0)
    found = only(with_gpu(gpu(one)))
    assert "notebook /home/ann/train.ipynb, idle for 3 h" in found.text
    assert "in Jupyter" in found.fix
    assert "kill 4242" not in found.fix


@pytest.mark.parametrize("state", [None, "idle", "busy", "orphan", "unknown"])
def test_another_users_process_is_asked_about_never_killed(state: str | None) -> None:
    """Whatever it is: what belongs to somebody else gets no kill line."""
    found = only(with_gpu(gpu(holder(user="bob", notebook_state=state, parent_alive=False))))
    assert found.fix.startswith("ask bob")
    assert "kill" not in found.fix


def test_a_plain_process_may_be_waited_for() -> None:
    """A running script is named by its command; ending it is only the last resort."""
    found = only(with_gpu(gpu(holder())))
    assert found.fix.startswith("wait for it")
    assert found.fix.endswith("kill 4242  # python train.py")


def test_left_over_workers_and_ranks_count_at_any_size() -> None:
    """A rank whose parent died holds a context only, and is worth naming all the same."""
    small = holder(bytes=300 << 20, role="rank", parent_alive=False)
    assert only(with_gpu(gpu(small))).fix == "kill 4242  # rank whose parent is dead"
    assert warnings_of(with_gpu(gpu(replace(small, parent_alive=None)))) == ()


def test_a_zombie_is_ended_by_its_parent() -> None:
    """A zombie cannot be killed: the fix names its parent."""
    found = only(with_gpu(gpu(holder(zombie=True, parent=77))))
    assert "pid 77" in found.fix and "kill" not in found.fix


def test_small_unmeasured_own_and_unseen_holders_are_no_contention() -> None:
    """A desktop's few MiB, bytes not told, our own process, or a card we do not see: no alarm."""
    for one in (holder(bytes=100 << 20), holder(bytes=None), holder(ours=True)):
        assert warnings_of(with_gpu(gpu(one))) == ()
    assert warnings_of(with_gpu(gpu(holder(), visible=False))) == ()
    assert warnings_of(with_gpu(gpu(holder(bytes=900 << 20, graphics_only=True), total_bytes=8 * GIB))) == ()


def test_a_notebook_learns_that_it_is_not_the_holder() -> None:
    """In a kernel that holds nothing, a second warning says that restarting it frees nothing."""
    facts = with_gpu(gpu(holder()), in_kernel=True)
    assert causes(facts) == ["gpu-contention", "gpu-contention"]
    assert "this kernel (pid 100) holds nothing of the 20.0 GiB" in warnings_of(facts)[1].text
    own = Holder(pid=100, bytes=GIB, ours=True)
    assert causes(with_gpu(gpu(holder(), own), in_kernel=True)) == ["gpu-contention"]


def test_spilling_into_host_memory_is_an_overflow() -> None:
    """A full card with memory in the host is said; a card with room, or a desktop's usual share, is not."""
    one = holder(ours=True, bytes=78 * GIB, shared_bytes=4 * GIB)
    found = only(with_gpu(gpu(one)))
    assert found.cause == "vram-overflow"
    assert "spilled 4.0 GiB" in found.text
    assert warnings_of(with_gpu(gpu(replace(one, shared_bytes=100 << 20)))) == ()
    assert warnings_of(with_gpu(gpu(one, used_bytes=40 * GIB))) == ()


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (("idle",), []),
        (("power_cap",), []),
        (("application_clocks", "sync_boost"), []),
        (("hw_slowdown", "hw_thermal"), ["throttled-clocks"]),
        (("sw_thermal",), ["throttled-clocks"]),
        (None, []),
    ],
)
def test_only_heat_and_brakes_are_throttling(reasons: tuple[str, ...] | None, expected: list[str]) -> None:
    """Idle clocks and a power cap at full load are normal."""
    assert causes(with_gpu(gpu(clock_reasons=reasons))) == expected


def test_a_quota_below_the_visible_cores_warns() -> None:
    """Programs see 16 cores and may run 2.5: the fix sizes by the quota."""
    found = only(
        with_host(cpus=16, affinity=tuple(range(16)), cpuset_cores=16, quota_cores=2.5, usable_cores=2.5)
    )
    assert found.cause == "cpu-quota"
    assert "16 cores" in found.text and "2.5" in found.text
    assert "2 cores" in found.fix
    assert warnings_of(with_host(quota_cores=2.0)) == ()


def test_a_mask_below_the_cpu_set_warns() -> None:
    """A mask narrower than the group's CPU set is suspicious; one that equals it is the group's own bound."""
    assert causes(with_host(cpus=16, affinity=(0, 1), cpuset_cores=16)) == ["cpu-affinity"]
    assert causes(with_host(cpus=16, affinity=(0, 1), cpuset_cores=2)) == []


def test_more_threads_than_cores_warn() -> None:
    """Torch's threads are held against the usable cores."""
    found = only(with_torch(threads=32, env={"OMP_NUM_THREADS": "32"}))
    assert found.cause == "thread-oversubscription"
    assert "OMP_NUM_THREADS=32" in found.text and "OMP_NUM_THREADS=2" in found.fix


@pytest.mark.parametrize(
    "values",
    [
        {"memory_free_bytes": 100 << 20},
        {"memory_limit_bytes": 64 * GIB, "memory_free_bytes": 100 << 20},
        {"memory_pressure": replace(CALM, some_avg10=35.0)},
        {"memory_pressure_level": "critical"},
    ],
)
def test_short_memory_warns(values: dict[str, Any]) -> None:
    """Little left, or processes stalled on memory."""
    assert causes(with_host(**values)) == ["ram-pressure"]


def test_dockers_default_shm_warns() -> None:
    """64 MB of shared memory are too little to hand batches over."""
    found = only(with_host(shm_total_bytes=64 << 20, shm_free_bytes=64 << 20))
    assert found.cause == "small-shm"
    assert "64.0 MiB" in found.text and "--shm-size" in found.fix


@pytest.mark.parametrize(
    ("kind", "rotational", "reads", "expected"),
    [
        ("local", False, Reads(files=64, file_median_ms=0.1, files_per_s=1e4, sequential_mb_s=2e3), []),
        ("nfs", None, Reads(files=64, file_median_ms=0.6, files_per_s=1500, sequential_mb_s=800), []),
        ("nfs", None, Reads(files=64, file_median_ms=12.0, files_per_s=80), ["storage-latency"]),
        ("fuse", None, Reads(sequential_mb_s=20.0, sequential_bytes=16 << 20), ["storage-latency"]),
        ("local", True, Reads(files=64, file_median_ms=9.0, files_per_s=100), ["storage-latency"]),
        ("local", False, Reads(sequential_mb_s=20.0, sequential_bytes=16 << 20), []),
        ("nfs", None, Reads(files=2, file_median_ms=12.0, files_per_s=80), []),
        ("object-store", None, Reads(files=64, file_median_ms=0.1, files_per_s=1e4), ["storage-latency"]),
        ("object-store", None, None, ["storage-latency"]),
        ("tmpfs", None, None, []),
    ],
)
def test_storage_warns_by_what_was_measured(
    kind: Any, rotational: bool | None, reads: Reads | None, expected: list[str]
) -> None:
    """Slow reads warn; a fast network mount does not; an object store does, since a first read is remote."""
    storage = Storage(
        path="/d", mount_point="/d", file_system="x", kind=kind, rotational=rotational, reads=reads
    )
    assert causes(replace(LAPTOP, storage=storage)) == expected


@pytest.mark.parametrize(
    "values",
    [
        {"env": {"CUDA_LAUNCH_BLOCKING": "1"}},
        {"env": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}},
        {"env": {"PYTHONTRACEMALLOC": "1"}},
        {"anomaly_mode": True},
        {"debugger": True},
    ],
)
def test_debugging_left_on_warns(values: dict[str, Any]) -> None:
    """Each switch is named, with how to turn it off."""
    assert causes(with_torch(**values)) == ["debug-left-on"]


@pytest.mark.parametrize(
    "env",
    [
        {"CUDA_LAUNCH_BLOCKING": "0"},
        {"TORCH_DISTRIBUTED_DEBUG": "OFF"},
        {"NCCL_DEBUG": "INFO"},
        {"PYTHONDEVMODE": ""},
    ],
)
def test_switches_that_are_off_are_quiet(env: dict[str, str]) -> None:
    """A variable that is set to off, or merely talks, is no warning."""
    assert warnings_of(with_torch(env=env)) == ()


def test_precision_warns_only_where_this_process_computes_on_an_able_card() -> None:
    """TF32 off matters on Ampere and later, in a process that is using the GPU."""
    facts = with_gpu(gpu())
    used = replace(facts, torch=replace(facts.torch, build="cuda", in_use=True))
    assert causes(used) == ["slow-precision"]
    assert causes(replace(used, gpus=(gpu(capability=(7, 5)),))) == []
    assert causes(replace(used, torch=replace(used.torch, matmul_precision="tf32"))) == []
    assert causes(replace(used, torch=replace(used.torch, in_use=False))) == []
