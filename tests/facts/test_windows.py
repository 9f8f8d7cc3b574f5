"""Windows' GPU counters by text in their format: bytes by process, and memory spilled to the host."""

from dataclasses import replace

import pytest

from stoker.facts import windows
from stoker.facts.values import Gpu, Holder

GIB = 1 << 30
# As PowerShell prints them on a machine with an 8 GB card and an integrated GPU.
ADAPTERS = f'''"Name","DedicatedUsage","SharedUsage"
"luid_0x00000000_0x0000D1D8_phys_0","{7 * GIB + (700 << 20)}","{5 * GIB}"
"luid_0x00000000_0x0000E2A4_phys_0","0","{300 << 20}"
'''
PROCESSES = f'''#TYPE Selected.Microsoft.Management.Infrastructure.CimInstance
"Name","DedicatedUsage","SharedUsage"
"pid_1234_luid_0x00000000_0x0000D1D8_phys_0","{7 * GIB}","{4 * GIB}"
"pid_5678_luid_0x00000000_0x0000D1D8_phys_0","{700 << 20}","{100 << 20}"
"pid_1234_luid_0x00000000_0x0000E2A4_phys_0","0","4096"
'''
CARD = Gpu(
    index=0,
    uuid="GPU-1",
    name="NVIDIA GeForce RTX 3070",
    driver="551.23",
    total_bytes=8 * GIB,
    used_bytes=7 * GIB + (800 << 20),
    free_bytes=0,
    holders=(Holder(pid=5678, bytes=None), Holder(pid=1234, bytes=None), Holder(pid=9, bytes=None)),
)


def test_counters_fill_in_what_the_driver_does_not_say() -> None:
    """Under WDDM bytes by process come from the counters, the largest first; one without stays unknown."""
    counters = windows.parse_counters(ADAPTERS, PROCESSES)
    (filled,) = windows.add_counters((CARD,), counters)
    assert filled.shared_bytes == 5 * GIB
    assert filled.holders is not None
    assert [(one.pid, one.bytes, one.shared_bytes) for one in filled.holders] == [
        (1234, 7 * GIB, 4 * GIB),
        (5678, 700 << 20, 100 << 20),
        (9, None, None),
    ]


def test_a_drivers_own_figure_stands() -> None:
    """Where the driver tells a process' bytes (compute mode), the counters do not replace them."""
    card = replace(CARD, holders=(Holder(pid=1234, bytes=6 * GIB),))
    (filled,) = windows.add_counters((card,), windows.parse_counters(ADAPTERS, PROCESSES))
    assert filled.holders is not None and filled.holders[0].bytes == 6 * GIB


def test_two_cards_of_like_use_are_not_told_apart() -> None:
    """A card is matched to an adapter by its memory in use; where that is ambiguous nothing is filled in."""
    counters = windows.parse_counters(ADAPTERS, PROCESSES)
    assert counters is not None
    used = CARD.used_bytes
    assert windows.match_adapters(counters, [used]) == ["luid_0x00000000_0x0000d1d8"]
    assert windows.match_adapters(counters, [used, used]) == [None, None]
    assert windows.match_adapters(counters, [None, 3 * GIB]) == [None, None]


@pytest.mark.parametrize("printed", ["", "Get-CimInstance : Invalid class\n", '"Name"\n"x"\n'])
def test_no_counters_leave_the_cards_alone(printed: str) -> None:
    """An older Windows has no such counters: everything stays as the driver told it."""
    counters = windows.read_counters(lambda name: printed)
    assert counters is None
    assert windows.add_counters((CARD,), counters) == (CARD,)


def test_a_byte_order_mark_is_no_obstacle() -> None:
    """PowerShell may begin its output with one."""
    counters = windows.parse_counters("\ufeff" + ADAPTERS, PROCESSES)
    assert counters is not None and len(counters.adapters) == 2
