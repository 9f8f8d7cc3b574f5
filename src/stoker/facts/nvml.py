"""The one seam to the GPU driver: a small protocol, and NVML behind it. Tests put a fake in its place.

A question that the card or the driver does not answer is `None`. No CUDA context is ever made: a
check that took 500 MB of the memory it reports on would be absurd.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pynvml

# By bit, the names that nvidia-smi prints. "hw_slowdown" is set together with its two reasons.
CLOCK_REASONS = {
    0x001: "idle",
    0x002: "application_clocks",
    0x004: "power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the driver says of one card now."""

    uuid: str | None = None
    name: str | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    capability: tuple[int, int] | None = None
    utilisation_percent: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    clock_reasons: tuple[str, ...] | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    temperature_c: int | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_tx_kb_s: int | None = None
    pcie_rx_kb_s: int | None = None
    mig: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Occupant:
    """A process that the driver lists on a card; `bytes` is `None` where the driver does not say."""

    pid: int
    bytes: int | None
    graphics_only: bool = False


class GpuSource(Protocol):
    """What the facts need of a driver."""

    def driver(self) -> str | None:
        """Return the driver's version."""

    def count(self) -> int:
        """Return the number of cards."""

    def read(self, index: int) -> Reading:
        """Return everything about one card."""

    def occupants(self, index: int) -> tuple[Occupant, ...] | None:
        """Return the processes on one card, or `None` where the driver does not list them."""

    def sample(self, index: int, *, bus: bool) -> dict[str, object]:
        """Return the few values that change from second to second; `bus` adds the slow PCIe counters."""

    def close(self) -> None:
        """Let go of the driver."""


def connect() -> tuple[GpuSource | None, str | None]:
    """Open NVML, or say why there is none."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return None, "no NVIDIA driver library (NVML) on this machine"
    except pynvml.NVMLError_DriverNotLoaded:
        return None, "the NVIDIA driver is installed but not loaded"
    except pynvml.NVMLError_NoPermission:
        return None, "this user may not ask the NVIDIA driver"
    except pynvml.NVMLError_LibRmVersionMismatch:
        return None, "NVIDIA driver and library differ in version; reboot, or reload the driver"
    except pynvml.NVMLError as error:
        return None, f"NVML would not start: {error}"
    return Nvml(), None


class Nvml:
    """NVML, through nvidia-ml-py."""

    def __init__(self) -> None:
        count = _ask(pynvml.nvmlDeviceGetCount) or 0
        self._handles = [_ask(pynvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)]

    def driver(self) -> str | None:
        """Return the driver's version."""
        return _text(_ask(pynvml.nvmlSystemGetDriverVersion))

    def count(self) -> int:
        """Return the number of cards."""
        return len(self._handles)

    def read(self, index: int) -> Reading:
        """Return everything about one card."""
        card = self._handles[index]
        if card is None:
            return Reading()
        memory = _memory(card)
        power = _ask(pynvml.nvmlDeviceGetPowerUsage, card)
        limit = _ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, card)
        default = _ask(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, card)
        use = _ask(pynvml.nvmlDeviceGetUtilizationRates, card)
        mig = _ask(pynvml.nvmlDeviceGetMigMode, card)
        capability = _ask(pynvml.nvmlDeviceGetCudaComputeCapability, card)
        return Reading(
            uuid=_text(_ask(pynvml.nvmlDeviceGetUUID, card)),
            name=_text(_ask(pynvml.nvmlDeviceGetName, card)),
            capability=None if capability is None else (int(capability[0]), int(capability[1])),
            utilisation_percent=None if use is None else int(use.gpu),
            sm_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, card, pynvml.NVML_CLOCK_SM),
            sm_clock_max_mhz=_ask(pynvml.nvmlDeviceGetMaxClockInfo, card, pynvml.NVML_CLOCK_SM),
            memory_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, card, pynvml.NVML_CLOCK_MEM),
            memory_clock_max_mhz=_ask(pynvml.nvmlDeviceGetMaxClockInfo, card, pynvml.NVML_CLOCK_MEM),
            clock_reasons=_clock_reasons(card),
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            power_default_w=None if default is None else default / 1000,
            temperature_c=_temperature(card),
            pcie_gen=_ask(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, card),
            pcie_gen_max=_ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, card),
            pcie_width=_ask(pynvml.nvmlDeviceGetCurrPcieLinkWidth, card),
            pcie_width_max=_ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth, card),
            pcie_tx_kb_s=_ask(pynvml.nvmlDeviceGetPcieThroughput, card, pynvml.NVML_PCIE_UTIL_TX_BYTES),
            pcie_rx_kb_s=_ask(pynvml.nvmlDeviceGetPcieThroughput, card, pynvml.NVML_PCIE_UTIL_RX_BYTES),
            mig=None if mig is None else bool(mig[0]),
            **memory,
        )

    def occupants(self, index: int) -> tuple[Occupant, ...] | None:
        """Return the processes on one card, or `None` where the driver does not list them."""
        card = self._handles[index]
        if card is None:
            return None
        compute = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, card)
        graphics = _ask(pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3, card)
        if compute is None and graphics is None:
            return None
        return merge(
            [(entry.pid, entry.usedGpuMemory) for entry in compute or []],
            [(entry.pid, entry.usedGpuMemory) for entry in graphics or []],
        )

    def sample(self, index: int, *, bus: bool) -> dict[str, object]:
        """Return the few values that change from second to second; `bus` adds the slow PCIe counters."""
        card = self._handles[index]
        if card is None:
            return {"index": index}
        power = _ask(pynvml.nvmlDeviceGetPowerUsage, card)
        use = _ask(pynvml.nvmlDeviceGetUtilizationRates, card)
        reasons = _clock_reasons(card)
        values: dict[str, object] = {
            "index": index,
            "utilisation_percent": None if use is None else int(use.gpu),
            "used_bytes": _memory(card)["used_bytes"],
            "power_w": None if power is None else power / 1000,
            "sm_clock_mhz": _ask(pynvml.nvmlDeviceGetClockInfo, card, pynvml.NVML_CLOCK_SM),
            "temperature_c": _temperature(card),
            "clock_reasons": None if reasons is None else list(reasons),
        }
        if bus:
            tx, rx = pynvml.NVML_PCIE_UTIL_TX_BYTES, pynvml.NVML_PCIE_UTIL_RX_BYTES
            values["pcie_tx_kb_s"] = _ask(pynvml.nvmlDeviceGetPcieThroughput, card, tx)
            values["pcie_rx_kb_s"] = _ask(pynvml.nvmlDeviceGetPcieThroughput, card, rx)
        return values

    def close(self) -> None:
        """Let go of the driver. NVML counts its users, so others in this process keep theirs."""
        _ask(pynvml.nvmlShutdown)


def merge(
    compute: list[tuple[int, int | None]], graphics: list[tuple[int, int | None]]
) -> tuple[Occupant, ...]:
    """Join the driver's two lists, one entry a process.

    In one list a process stands twice only when it is on several MIG slices: those bytes add up. The two
    lists repeat the same bytes, so across them the larger stands.
    """
    by_list = [_sum_by_pid(compute), _sum_by_pid(graphics)]
    joined = []
    for pid in sorted({*by_list[0], *by_list[1]}):
        known = [found for one in by_list if (found := one.get(pid)) is not None]
        joined.append(Occupant(pid=pid, bytes=max(known, default=None), graphics_only=pid not in by_list[0]))
    return tuple(joined)


def _sum_by_pid(entries: list[tuple[int, int | None]]) -> dict[int, int | None]:
    sums: dict[int, int | None] = {}
    for pid, used in entries:
        before = sums.get(pid)
        sums[pid] = used if before is None else before + (used or 0)
    return sums


def name_clock_reasons(bits: int) -> tuple[str, ...]:
    """Name the bits of NVML's clock-event mask; a bit without a name is shown as a number."""
    names = [name for bit, name in CLOCK_REASONS.items() if bits & bit]
    unnamed = bits & ~sum(CLOCK_REASONS)
    return (*names, f"0x{unnamed:x}") if unnamed else tuple(names)


def _ask(question: Callable[..., Any], *given: object) -> Any:
    """Put one question to NVML; what this card or driver does not answer is `None`."""
    try:
        return question(*given)
    except pynvml.NVMLError:
        return None


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


def _memory(card: Any) -> dict[str, int | None]:
    # The second version tells the driver's reserve from what is used; the first adds them up
    # (an empty H200: 616 MiB reserved, 0 used).
    found = _ask(pynvml.nvmlDeviceGetMemoryInfo, card, pynvml.nvmlMemory_v2)
    reserved = None if found is None else int(found.reserved)
    if found is None:
        found = _ask(pynvml.nvmlDeviceGetMemoryInfo, card)
    if found is None:
        return {"total_bytes": None, "used_bytes": None, "free_bytes": None, "reserved_bytes": None}
    return {
        "total_bytes": int(found.total),
        "used_bytes": int(found.used),
        "free_bytes": int(found.free),
        "reserved_bytes": reserved,
    }


def _clock_reasons(card: Any) -> tuple[str, ...] | None:
    bits = _ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, card)
    if bits is None:
        # Drivers before 535 know the same mask by its older name.
        bits = _ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, card)
    return None if bits is None else name_clock_reasons(int(bits))


def _temperature(card: Any) -> int | None:
    found = _ask(pynvml.nvmlDeviceGetTemperature, card, pynvml.NVML_TEMPERATURE_GPU)
    return None if found is None else int(found)
