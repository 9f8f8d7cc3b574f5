"""How long each part of a diagnosis lasts in the script's process, as it is told."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Parts:
    """How long each part lasts: so many steps and so many seconds, but no longer than the most of them.

    A part of no steps (a drain of no seconds) is left out. `device`: on a GPU, what is asked of one follows,
    or other sizes alone; `peak_alone`: nothing follows the first steps, but convolutions that are run alone
    with `probe` samples. `batch` are samples to put over those of loaders with so many workers.
    `workers` are put in the place of those that the loader has, `instead_of` so many (None: of any).
    """

    warm_steps: int = 8
    observe_steps: int = 40
    observe_seconds: float = 6.0
    observe_most: float = 14.0
    replay_steps: int = 24
    replay_seconds: float = 2.5
    replay_most: float = 6.0
    drain_seconds: float = 2.0
    drain_most: float = 6.0
    storage_seconds: float = 1.0
    look_seconds: float = 2.0
    look_most: float = 6.0
    workers: int | None = None
    instead_of: int | None = None
    threads: int | None = None
    device: bool = False
    sizes_alone: bool = False
    peak_alone: bool = False
    probe: tuple[int, ...] = ()
    batch: tuple[int, int] | None = None


def as_argument(runs: Path, run: str, parts: Parts) -> dict[str, Any]:
    """What `prepare` is given."""
    return {"runs": str(runs), "run": run, "parts": asdict(parts)}
