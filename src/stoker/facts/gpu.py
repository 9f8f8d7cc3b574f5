"""GPUs and who holds them, from what the driver says and what /proc shows of the processes it names."""

import os
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from stoker.facts import process
from stoker.facts.nvml import GpuSource, Occupant, Reading
from stoker.facts.process import Seen
from stoker.facts.values import Gpu, Holder

# Memory in use with no process listed is somebody's only above this: an empty H200 shows 0 beside its
# reserve, and other cards keep some tens of MiB for the display. Without the reserve told apart
# (older drivers), about 1.2 GB on an empty card are nobody's.
NOBODYS_BYTES = 256 << 20
_NOBODYS_BYTES_WITH_RESERVE = 2 << 30

See = Callable[[int], Seen | None]
OpensGpu = Callable[[int], bool | None]


def read(
    source: GpuSource,
    *,
    family: Collection[int],
    own_contexts: Collection[str] = (),
    see: See = process.see,
    opens_gpu: OpensGpu = process.opens_gpu,
) -> tuple[Gpu, ...]:
    """Read every card. `own_contexts` are the uuids of cards on which this process has a CUDA context."""
    driver = source.driver()
    readings = [source.read(index) for index in range(source.count())]
    visible = visible_cards(readings, os.environ)
    cards = []
    for index, reading in enumerate(readings):
        held_by_us = reading.uuid is not None and reading.uuid.removeprefix("GPU-") in own_contexts
        holders, reason = find_holders(
            source,
            index,
            reading,
            family=family,
            held_by_us=held_by_us,
            see=see,
            opens_gpu=opens_gpu,
        )
        cards.append(
            Gpu(
                index=index,
                driver=driver,
                visible=visible[index],
                holders=holders,
                holders_reason=reason,
                **vars(reading),
            )
        )
    return tuple(cards)


def find_holders(
    source: GpuSource,
    index: int,
    reading: Reading,
    *,
    family: Collection[int],
    held_by_us: bool,
    see: See = process.see,
    opens_gpu: OpensGpu = process.opens_gpu,
) -> tuple[tuple[Holder, ...] | None, str | None]:
    """Name the processes on one card, or say why they cannot be named.

    Inside a container the driver may list nothing, or numbers of another PID namespace. A wrong name is worse
    than none, so any sign of that makes the whole list unknown.
    """
    listed = source.occupants(index)
    if listed is None:
        return None, "the driver does not list processes on this card"
    own = os.getpid()
    if held_by_us and own not in {one.pid for one in listed}:
        return (
            None,
            f"this process (pid {own}) is on the card and the driver does not list it: pids are hidden",
        )
    if not listed:
        floor = NOBODYS_BYTES if reading.reserved_bytes is not None else _NOBODYS_BYTES_WITH_RESERVE
        if reading.used_bytes is not None and reading.used_bytes > floor:
            mib = reading.used_bytes >> 20
            return (
                None,
                f"{mib} MiB are in use and the driver lists no process: pids are hidden (a container?)",
            )
        return (), None
    holders = []
    for one in listed:
        seen = see(one.pid)
        if seen is None:
            if one.pid not in {again.pid for again in source.occupants(index) or ()}:
                continue  # it ended between the two questions
            return None, f"the driver names pid {one.pid}, which is not in this container's process list"
        if one.pid != own and not seen.zombie and opens_gpu(one.pid) is False:
            return (
                None,
                f"the driver names pid {one.pid}, which has no GPU open here: pids of another namespace",
            )
        holders.append(_holder(one, seen, family))
    return tuple(sorted(holders, key=lambda holder: -(holder.bytes or 0))), None


def _holder(occupant: Occupant, seen: Seen, family: Collection[int]) -> Holder:
    return Holder(
        pid=occupant.pid,
        bytes=occupant.bytes,
        user=seen.user,
        age_s=seen.age_s,
        command=seen.command,
        parent=seen.parent,
        parent_alive=process.parent_lives(seen),
        role=process.role_of(seen),
        zombie=seen.zombie,
        ours=occupant.pid in family,
        graphics_only=occupant.graphics_only,
    )


def visible_cards(
    readings: list[Reading], variables: "os._Environ[str] | dict[str, str]"
) -> list[bool | None]:
    """Say for each card whether CUDA programs started from here would see it.

    CUDA numbers unlike cards by speed unless told `CUDA_DEVICE_ORDER=PCI_BUS_ID`, so a bare number
    speaks for a card only then, or when all cards are the same.
    """
    wanted = variables.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return [True] * len(readings)
    names = {reading.name for reading in readings}
    by_bus = variables.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(names) <= 1
    # CUDA stops at the first entry that is no device: "0,-1,1" shows card 0 alone.
    shown: set[int] = set()
    for entry in (part.strip() for part in wanted.split(",")):
        if entry.isdigit():
            if not by_bus:
                return [None] * len(readings)
            if int(entry) >= len(readings):
                break
            shown.add(int(entry))
            continue
        match = [at for at, one in enumerate(readings) if entry and (one.uuid or "").startswith(entry)]
        if len(match) != 1:
            if entry.startswith("MIG"):
                return [None] * len(readings)
            break
        shown.add(match[0])
    return [index in shown for index in range(len(readings))]


def explain_absence(reason: str | None) -> str | None:
    """Say more where the platform itself has no NVML."""
    if sys.platform == "darwin":
        return "macOS has no NVML; an Apple GPU shares the machine's memory"
    if reason is not None and Path("/dev/kfd").exists():
        return f"{reason}; an AMD GPU is present, which Stoker does not read yet"
    return reason
