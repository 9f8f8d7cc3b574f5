"""Who holds a GPU, by a fake driver: right names, or none with the reason."""

import os
from typing import Any

import pytest

from stoker.facts import gpu
from stoker.facts.nvml import Occupant, merge, name_clock_reasons
from stoker.facts.process import Seen
from stoker.facts.values import Gpu
from stoker.ward.fake_gpu import FakeGpus, card

GIB = 1 << 30
OWN = os.getpid()


def seen(pid: int, **values: Any) -> Seen:
    given: dict[str, Any] = {
        "name": "python3",
        "user": "ann",
        "age_s": 60.0,
        "arguments": ("python3", "train.py"),
        "parent": os.getppid(),
        "zombie": False,
    }
    return Seen(pid=pid, **{**given, **values})


def read(source: FakeGpus, *processes: Seen, **options: Any) -> Gpu:
    known = {one.pid: one for one in processes}
    given: dict[str, Any] = {"family": {OWN}, "see": known.get, "opens_gpu": lambda pid: True}
    (found,) = gpu.read(source, **{**given, **options})
    return found


def test_holders_are_sorted_by_their_bytes_and_described() -> None:
    """Every listed process comes with bytes, user, age, command and parent, the largest first."""
    source = FakeGpus(
        card(used_bytes=30 * GIB),
        occupants=[Occupant(pid=7, bytes=10 * GIB), Occupant(pid=8, bytes=20 * GIB)],
    )
    found = read(source, seen(7), seen(8, user="bob", age_s=7200.0))
    assert found.holders is not None
    first, second = found.holders
    assert (first.pid, first.bytes, first.user, first.age_s, first.ours) == (
        8,
        20 * GIB,
        "bob",
        7200.0,
        False,
    )
    assert (second.pid, second.command, second.parent_alive) == (7, "python3 train.py", True)


def test_this_process_is_ours() -> None:
    """A holder of this process' family is marked so."""
    found = read(FakeGpus(card(), occupants=[Occupant(pid=OWN, bytes=GIB)]), seen(OWN))
    assert found.holders is not None and found.holders[0].ours


def test_bytes_that_the_driver_does_not_tell_stay_unknown() -> None:
    """A driver without per-process memory (WDDM) gives `None`, not zero."""
    found = read(FakeGpus(card(), occupants=[Occupant(pid=7, bytes=None)]), seen(7))
    assert found.holders is not None and found.holders[0].bytes is None


def test_an_empty_card_is_held_by_nobody() -> None:
    """No process and no memory in use is an empty list, which is not the same as unknown."""
    found = read(FakeGpus(card(used_bytes=0)))
    assert (found.holders, found.holders_reason) == ((), None)


@pytest.mark.parametrize(
    ("used", "reserved", "hidden"),
    [(300 << 20, 600 << 20, True), (200 << 20, 600 << 20, False), (GIB, None, False), (3 * GIB, None, True)],
)
def test_memory_in_use_without_a_process_is_hidden_pids(
    used: int, reserved: int | None, hidden: bool
) -> None:
    """Memory beyond what is nobody's, with no process listed, makes holders unknown; the reserve does not."""
    found = read(FakeGpus(card(used_bytes=used, reserved_bytes=reserved)))
    assert (found.holders is None) is hidden
    assert ("hidden" in (found.holders_reason or "")) is hidden


def test_pids_of_another_namespace_make_holders_unknown() -> None:
    """A pid that is not in our process list is a sign that the driver speaks of another namespace."""
    found = read(FakeGpus(card(), occupants=[Occupant(pid=999_999, bytes=GIB)]))
    assert found.holders is None
    assert "999999" in (found.holders_reason or "")


def test_a_pid_that_here_is_another_process_is_not_named() -> None:
    """A listed pid whose process has no GPU open is somebody else here: nobody is named."""
    source = FakeGpus(card(), occupants=[Occupant(pid=7, bytes=GIB)])
    found = read(source, seen(7, name="bash"), opens_gpu=lambda pid: False)
    assert found.holders is None
    assert "namespace" in (found.holders_reason or "")


def test_our_own_context_not_listed_makes_holders_unknown() -> None:
    """When this process is on the card and not listed, the list cannot be trusted for the others either."""
    source = FakeGpus(card(uuid="GPU-1-2"), occupants=[Occupant(pid=7, bytes=GIB)])
    found = read(source, seen(7), own_contexts=["1-2"])
    assert found.holders is None
    assert str(OWN) in (found.holders_reason or "")


def test_a_process_that_ended_meanwhile_is_left_out() -> None:
    """A process gone between the list and the look is neither a holder nor a sign of hidden pids."""

    class Changing(FakeGpus):
        asked = 0

        def occupants(self, index: int) -> tuple[Occupant, ...]:
            self.asked += 1
            return (Occupant(pid=999_999, bytes=GIB),) if self.asked == 1 else ()

    assert read(Changing(card())).holders == ()


def test_a_driver_that_lists_no_processes_gives_unknown() -> None:
    """Holders are unknown where the driver does not support the question."""
    assert read(FakeGpus(card(), occupants=None)).holders is None


def test_a_process_in_both_lists_counts_once() -> None:
    """Compute and graphics lists repeat a process; MIG slices of one process add up."""
    merged = merge([(7, 100), (8, 10), (8, 5)], [(7, 100), (9, None)])
    assert [(one.pid, one.bytes, one.graphics_only) for one in merged] == [
        (7, 100, False),
        (8, 15, False),
        (9, None, True),
    ]


def test_clock_reasons_have_names_and_unknown_bits_are_shown() -> None:
    """Each bit of the driver's mask is named; one that is new is shown as it stands."""
    assert name_clock_reasons(0) == ()
    assert name_clock_reasons(0x1) == ("idle",)
    assert name_clock_reasons(0x48) == ("hw_slowdown", "hw_thermal")
    assert name_clock_reasons(0x1004) == ("power_cap", "0x1000")


@pytest.mark.parametrize(
    ("variables", "names", "expected"),
    [
        ({}, ("A", "A"), [True, True]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ("A", "A"), [False, True]),
        ({"CUDA_VISIBLE_DEVICES": ""}, ("A", "A"), [False, False]),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, ("A", "A"), [True, False]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b"}, ("A", "B"), [False, True]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ("A", "B"), [None, None]),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ("A", "B"), [False, True]),
    ],
)
def test_visible_cards_follow_cudas_rules(
    variables: dict[str, str], names: tuple[str, str], expected: list[bool | None]
) -> None:
    """A bare number speaks for a card only where CUDA counts as the driver does."""
    cards = [card(name=name, uuid=f"GPU-{letter}") for name, letter in zip(names, "ab", strict=True)]
    assert gpu.visible_cards(cards, variables) == expected
