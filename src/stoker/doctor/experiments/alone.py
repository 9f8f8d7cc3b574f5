"""The cards as they are before the script starts: whatever is held or computed there then is others'.

Taken outside the scratch run by a process that has no CUDA context, so that nothing of it is our own; the
driver's list of processes may be hidden in a container, the sums are not.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median

from stoker import facts
from stoker.doctor.device import Card, Others
from stoker.facts import nvml
from stoker.facts.gpu import NOBODYS_BYTES
from stoker.facts.nvml import GpuSource
from stoker.facts.values import Gpu, Holder
from stoker.facts.words import size
from stoker.watch.words import duration

# The driver's utilisation is that of the last sixth of a second to a second; one reading may miss a process
# that works by fits.
_READINGS = 6
_PAUSE = 0.2


def look(*, source: GpuSource | None = None, pause: Callable[[float], None] = time.sleep) -> tuple[Card, ...]:
    """Every card, and what others do with it; none where there is no driver. `source` stands in for NVML."""
    opened = source if source is not None else nvml.connect()[0]
    if opened is None:
        return ()
    try:
        gpus = facts.collect(source=opened).gpus if source is not None else facts.collect().gpus
        held = [gpu.index for gpu in gpus if (gpu.used_bytes or 0) > NOBODYS_BYTES]
        read = _watch(opened, held, pause)
    finally:
        opened.close()
    return tuple(_card(gpu, *read.get(gpu.index, (gpu.used_bytes, None))) for gpu in gpus)


def _watch(
    source: GpuSource, indices: Sequence[int], pause: Callable[[float], None]
) -> dict[int, tuple[int | None, float | None]]:
    """Bytes held on each and how busy it is, 0 to 1, for a second; an empty card is not asked.

    By the last readings: a process that has just ended leaves both behind it for a moment.
    """
    bytes_held: dict[int, int | None] = {}
    busy: dict[int, list[float]] = {index: [] for index in indices}
    for turn in range(_READINGS if indices else 0):
        if turn:
            pause(_PAUSE)
        for index, values in busy.items():
            read = source.sample(index, bus=False)
            used, percent = read.get("used_bytes"), read.get("utilisation_percent")
            bytes_held[index] = used if isinstance(used, int) else None
            if isinstance(percent, int | float):
                values.append(percent / 100)
    last = _READINGS // 2
    return {
        index: (bytes_held[index], median(busy[index][-last:]) if busy[index] else None) for index in indices
    }


def _card(gpu: Gpu, held: int | None, busy: float | None) -> Card:
    if held is not None and held <= NOBODYS_BYTES:
        busy = 0.0
    return Card(
        index=gpu.index,
        uuid=gpu.uuid,
        clock_mhz=gpu.sm_clock_max_mhz,
        power_limit_w=gpu.power_limit_w,
        power_default_w=gpu.power_default_w,
        others=Others(
            total=gpu.total_bytes,
            bytes=held,
            busy=busy,
            holders=None
            if gpu.holders is None
            else tuple(_words(one) for one in gpu.holders if not one.ours),
            reason=gpu.holders_reason,
        ),
    )


def _words(holder: Holder) -> str:
    who = f"notebook {holder.notebook}" if holder.notebook else holder.command or "a process"
    idle = f", idle for {duration(holder.idle_s)}" if holder.idle_s else ""
    return f"pid {holder.pid} of {holder.user or 'somebody'} ({who}{idle}) holds {size(holder.bytes)}"
