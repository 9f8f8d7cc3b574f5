"""The memory budget: what a run needs, from measured peaks, beside what is free. Pure; unmeasured is None."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Vram:
    """Memory on the card: `fixed` + `per_sample` x samples, in bytes, context included.

    `error` is by how much the line missed at a size that it was not made from, as a share; `asks` are sizes
    still to be run before it may be trusted.
    """

    fixed: int | None = None
    per_sample: int | None = None
    error: float | None = None
    peak: int | None = None
    context: int | None = None
    others: int | None = None
    total: int | None = None
    free: int | None = None
    largest: int | None = None
    asks: tuple[int, ...] = ()
    why: str | None = None

    def to_json(self) -> dict[str, Any]:
        """All of it, by name."""
        return {**vars(self), "asks": list(self.asks)}


@dataclass(frozen=True, kw_only=True)
class Ram:
    """Memory of the host, in bytes: the loop's own, each worker's, and the batches that wait.

    `queue` are batches ready or in the making, in shared memory; `pinned` those copied into pinned memory.
    """

    main: int | None = None
    workers: int | None = None
    each_worker: int | None = None
    queue: int | None = None
    pinned: int | None = None
    need: int | None = None
    free: int | None = None
    limit: int | None = None
    shm_free: int | None = None
    most_workers: int | None = None
    limited_by: str | None = None
    why: str | None = None

    def to_json(self) -> dict[str, Any]:
        """All of it, by name."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Both."""

    vram: Vram
    ram: Ram

    def to_json(self) -> dict[str, Any]:
        """The budget as `stoker doctor --json` prints it."""
        return {"vram": self.vram.to_json(), "ram": self.ram.to_json()}
