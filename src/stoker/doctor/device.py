"""What a diagnosis has found out about the GPU, as values: what the device's causes are judged by. Pure.

Times are seconds a step and bytes are bytes a step, unless a name says otherwise.
"""

from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import Any, NamedTuple

from stoker.facts.gpu import NOBODYS_BYTES


class SizePoint(NamedTuple):
    """The loop with batches of another size: so many samples, what a step took, the most it had reserved.

    `samples` are those of one batch as the loader hands it out, `peak` reserved bytes of torch's allocator
    without the context; None on a CPU.
    """

    samples: int
    seconds: float
    peak: int | None = None


@dataclass(frozen=True, kw_only=True)
class Copied:
    """Bytes moved to the device again: from pinned memory, from pageable, and pinned on the way.

    Those of an update, 1 GiB at the most: a step of several updates has more.
    """

    bytes: int
    pinned: float
    pageable: float
    pinning: float

    def seconds_for(self, nbytes: float) -> tuple[float, float]:
        """What so many take from pinned memory and from pageable, at the rates that these bytes had."""
        part = nbytes / self.bytes if self.bytes else 0.0
        return self.pinned * part, self.pageable * part


@dataclass(frozen=True, kw_only=True)
class Sync:
    """A line at which the host waits for the device, and how often in a step."""

    line: str
    each: float


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Some steps by the driver's own account (CUPTI): when kernels and copies ran, and where the host stood.

    `wall` is a step. Of it, `busy` is when the device did anything at all, `host` what the host took before
    it waited for the device at the end, and of that `waited` in operations that wait for the device (`syncs`
    of them), `copy_waited` in those that wait for a copy to it, `launching` on the way from one launch to the
    next. `gap` is how long the device had nothing to do after a wait until it was given something. `copying`
    is the device's time in copies to it, `pinning` the training thread's in pinning memory, `allocating` in
    the driver's allocations. `added` is what tracing itself had made a step longer by, and was taken off.
    """

    steps: int
    wall: float
    busy: float
    host: float
    kernels: float
    kernel: float | None
    syncs: float
    waited: float
    gap: float
    copy_waited: float
    pageable_bytes: float
    pinned_bytes: float
    copying: float
    pinning: float
    allocations: float
    allocating: float
    launching: float
    added: float = 0.0

    def without_tracing(self, plain: float) -> "Trace":
        """The same of a step that takes so long when nobody traces it.

        What a traced step takes longer is the host's: a record of every operation and every call into the
        driver is made there, while kernels and copies are timed by the device. On an H200 a loop of small
        kernels took 50.0 ms a step in place of 25.0, and 20.1 in place of 13.0; one that was busy all along
        54.6 in place of 54.4. Operations are what it goes with, so launching shrinks with what else the host
        does by itself; its waits stay.
        """
        added = min(max(0.0, self.wall - max(plain, self.busy)), self.own)
        left = 1 - added / self.own if self.own else 1.0
        return replace(
            self,
            wall=self.wall - added,
            host=self.host - added,
            launching=self.launching * left,
            added=self.added + added,
        )

    @property
    def busy_share(self) -> float:
        """Of a step, the share in which the device did something."""
        return min(1.0, self.busy / self.wall)

    @property
    def own(self) -> float:
        """Seconds of a step that the host needs for itself, with nothing to wait for."""
        return max(0.0, self.host - self.waited - self.copy_waited)


@dataclass(frozen=True, kw_only=True)
class Others:
    """The card as it was before the script started: all of that is others'.

    `busy` is the card's utilisation then, 0 to 1. `holders` name them, largest first; None where the driver
    does not tell whose the memory is, and `reason` says why.
    """

    total: int | None
    bytes: int | None
    busy: float | None
    holders: tuple[str, ...] | None = None
    reason: str | None = None

    @property
    def nobody(self) -> bool:
        """Whether the card was as good as empty: the driver keeps a little of it for itself."""
        return self.bytes is not None and self.bytes <= NOBODYS_BYTES


@dataclass(frozen=True, kw_only=True)
class Allocator:
    """torch's CUDA allocator while the loop was observed, by its counters; calls are a step's."""

    retries: int
    device_allocs: float | None
    empty_cache: float | None = None
    empty_cache_line: str | None = None
    reserved_peak: int | None = None


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """The card's clock while the loop was observed: in the mean, what it can be, and what held it down.

    `held` are the driver's reasons, each with the share of readings that had it.
    """

    mhz: float
    most_mhz: int
    held: tuple[tuple[str, float], ...]
    power_limit_w: float | None = None
    power_default_w: float | None = None


@dataclass(frozen=True, kw_only=True)
class Card:
    """A card as the driver told of it before the script started."""

    index: int
    uuid: str | None
    others: Others
    clock_mhz: int | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None


# A CUDA context and what libraries take beside torch's allocator.
_BESIDE = 2 << 30


@dataclass(frozen=True, kw_only=True)
class Overflow:
    """The script ran out of the card's memory: what it asked for, what it held, what it may hold.

    `samples` is the batch of its loader and `workers` how many that has, `steps` how many were observed
    before.
    """

    asked: int | None
    reserved: int | None
    allowed: int | None
    text: str
    samples: int | None = None
    workers: int | None = None
    steps: int = 0

    @property
    def own(self) -> int | None:
        """What the script needed at the least: more than this was not to be had."""
        return None if self.reserved is None else self.reserved + (self.asked or 0)

    def by_others(self, others: Others | None) -> bool | None:
        """Whether it is what others hold that left too little; None where that cannot be told.

        It is not where the script's own need is more than it may have anyway, nor where nobody else is there.
        """
        if self.own is None or self.allowed is None:
            return None
        if self.own + _BESIDE // 4 > self.allowed:
            return False
        if others is None or others.bytes is None or others.total is None:
            return None
        if others.nobody:
            return False
        return True if self.own + others.bytes + _BESIDE > others.total else None


def to_json(value: Any) -> Any:
    """One of these, or several of them, by their names."""
    if isinstance(value, SizePoint):
        return value._asdict()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return [to_json(one) for one in value] if isinstance(value, tuple) else value
