"""What a run lacked when it died, by what it left behind."""

import signal
from typing import Any

import pytest

from stoker.doctor.ending import DEATH, read_ending
from stoker.scratch import Message, Result


def ended(outcome: str = "failed", *, deaths: tuple[dict[str, Any], ...] = (), **more: Any) -> Result:
    told = tuple(Message(kind=DEATH, body=death, at=1.0) for death in deaths)
    return Result(outcome=outcome, messages=told, **{"reason": "exit code 1", "seconds": 2.0, **more})  # type: ignore[arg-type]


FULL = "unable to allocate shared memory(shm) for file </torch_7_1_2>: No space left on device (28)"
BUS = (
    "DataLoader worker (pid 12) is killed by signal: Bus error. It is possible that dataloader's workers are \
out of shared memory. Please try to raise your shared memory limit."
)
CARD = "exit code 1: OutOfMemoryError: CUDA out of memory. Tried to allocate 384.00 MiB. GPU 0 has a total \
capacity of 139.80 GiB of which 131.55 GiB is free. Including non-PyTorch memory, this process has 8.24 GiB \
memory in use. 8.00 GiB allowed; Of the allocated memory 7.57 GiB is allocated by PyTorch"
KILLED = "DataLoader worker (pid 12) is killed by signal: Killed. "


@pytest.mark.parametrize(
    ("result", "kills", "lacked", "sure"),
    [
        (ended(reason=f"exit code 1: RuntimeError: Caught\n{FULL}\n"), 0, "shm", True),
        (ended(deaths=({"text": FULL, "signals": []},)), 0, "shm", True),
        # Torch supposes the same whenever a worker has met a bus error.
        (ended(deaths=({"text": BUS, "signals": []},)), 0, "shm", False),
        (ended("crashed", signal=signal.SIGBUS), 0, "shm", False),
        (ended(deaths=({"text": "exited unexpectedly", "signals": [7]},)), None, "shm", False),
        (ended("stopped", guard="ram", reason="476 MiB of memory is left"), 0, "memory", True),
        (ended(deaths=({"text": KILLED, "signals": []},)), 1, "memory", True),
        (ended(deaths=({"text": KILLED, "signals": []},)), 0, "memory", False),
        (ended(deaths=({"text": "exited unexpectedly", "signals": [9]},)), None, "memory", False),
        (ended(reason="exit code 1: numpy MemoryError: Unable to allocate 9 GiB"), 0, "memory", True),
        (
            ended(reason="exit code 1: numpy._core._exceptions._ArrayMemoryError: Unable to"),
            0,
            "memory",
            True,
        ),
        (ended(reason="exit code 1: RuntimeError: DefaultCPUAllocator: can't allocate"), 0, "memory", True),
    ],
)
def test_what_was_lacking_is_told_by_signals_kills_and_errors(
    result: Result, kills: int | None, lacked: str, sure: bool
) -> None:
    """Sure where the kernel or the error says it; a signal alone may have another sender."""
    ending = read_ending(result, kills)
    assert ending is not None
    assert (ending.lacked, ending.sure) == (lacked, sure)


@pytest.mark.parametrize(
    "result",
    [
        # The card's memory is not the host's: the whole of the first was seen on an H200.
        ended(reason=CARD),
        ended(reason=CARD.replace("OutOfMemoryError", "torch.OutOfMemoryError")),
        ended(reason=CARD.replace("OutOfMemoryError", "torch.cuda.OutOfMemoryError")),
        ended(reason="exit code 1: AcceleratorError: CUDA error: out of memory (cudaErrorMemoryAllocation)"),
        ended(reason="exit code 1: RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED in `x`"),
        ended(deaths=({"text": f"Caught OutOfMemoryError in pin memory thread\n{CARD}", "signals": []},)),
        ended(reason="exit code 1: ValueError: bad label"),
        ended("done", reason="ended at step 80", deaths=({"text": KILLED, "signals": [9]},)),
        ended("timed-out", reason="21 s had passed"),
        # What a script has logged before is no reason for its end.
        ended(reason="exit code 1: ValueError: x", stderr_tail="warning: caught MemoryError, went on"),
    ],
)
def test_an_end_of_another_kind_tells_nothing(result: Result) -> None:
    """An error of the script's own, or an end by the doctor's hand."""
    assert read_ending(result, 0) is None


def test_a_run_stopped_by_the_guard_was_not_killed() -> None:
    """The diagnosis keeps memory free; the kernel would have waited longer."""
    held = read_ending(ended("stopped", guard="ram", reason="476 MiB is left"), 0)
    killed = read_ending(
        ended("stopped", guard="ram", signal=signal.SIGKILL, reason="the kernel killed it"), 1
    )
    assert held is not None
    assert killed is not None
    assert (held.held, killed.held) == (True, False)
