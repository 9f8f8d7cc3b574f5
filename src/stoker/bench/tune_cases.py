"""What `stoker bench tune` searches: slow scripts of the ward, their grids, and what a search may try."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

Settings = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Contest:
    """A case of the ward, the points of its grid, and the kinds and seconds that the search is given.

    Of the points the `best` are measured again beside what the search found, in so many turns. `finder` is
    the option of one that looks for less than all.
    """

    case: str
    grid: tuple[Settings, ...]
    finder: str | None = None
    allow: tuple[str, ...] = ()
    budget: float = 200.0
    best: int = 2
    turns: int = 5


def crossed(**values: Sequence[Any]) -> tuple[Settings, ...]:
    """Every combination; None leaves a setting as the script has it."""
    return tuple(
        {name: value for name, value in zip(values, point, strict=True) if value is not None}
        for point in product(*values.values())
    )


# What workers and prefetch can cure, of every way in which loaders are slow. Where workers wait, more of them
# than there are cores are worth a point; where they compute, one more or less. Samples held in memory beat
# every number of workers, so half of the cases are the finder's of workers alone.
_WAITING, _COMPUTING = (2, 4, 6, 8, 12), (1, 2, 3, 4, 6)
_WHOLE = {
    "too-few-workers-tunnel-2": _WAITING,
    "query-per-sample-parts-0": _WAITING,
    "too-few-workers-sounds": _COMPUTING,
    "no-overlap-text": _COMPUTING,
    "cpu-transform-leaves-3": _COMPUTING,
}
_OF_WORKERS = {
    "too-few-workers-tunnel-4": (*_WAITING, 16),
    "storage-latency-bucket-far": (*_WAITING, 16),
    "query-per-sample-parts-2": (*_WAITING, 16),
    "too-few-workers-leaves": (*_COMPUTING, 8),
    "no-overlap-sounds": (*_COMPUTING, 8),
}
_AHEAD = (1, 2, 4)
_OF_LOADERS = (
    *(
        Contest(
            case=case,
            grid=(
                *crossed(num_workers=workers, prefetch_factor=_AHEAD),
                *crossed(feed=("ram",)),
                *crossed(num_workers=workers, persistent_workers=(True,)),
            ),
        )
        for case, workers in _WHOLE.items()
    ),
    *(
        Contest(case=case, grid=crossed(num_workers=workers, prefetch_factor=_AHEAD), finder="--workers")
        for case, workers in _OF_WORKERS.items()
    ),
)
# Of each part of a device: computing, copying, and a loader that a small network waits for. Rates of a card
# differ less from run to run than those of few cores.
_OF_DEVICES = (
    Contest(
        case="slow-precision-scenes",
        grid=crossed(
            tf32=(None, True), autocast=(None, "bf16"), channels_last=(None, True), compile=(None, "default")
        ),
        allow=("numerics",),
        budget=330.0,  # of six candidates one is compiled
        turns=3,
    ),
    Contest(
        case="pageable-copy-rails",
        grid=(
            *crossed(num_workers=(2, 4, 6, 8, 12), pin_memory=(None, True)),
            *crossed(num_workers=(6, 12), prefetch_factor=(4,), pin_memory=(True,)),
            *crossed(feed=("vram", "ram"), pin_memory=(None, True)),
        ),
        turns=3,
    ),
    Contest(
        case="tiny-batch-patches",
        grid=(
            *crossed(num_workers=(1, 2, 4, 8, 12), prefetch_factor=(1, 2, 4)),
            *crossed(feed=("vram",)),
        ),
        turns=3,
    ),
)
CONTESTS: Mapping[str, tuple[Contest, ...]] = {"cpu": _OF_LOADERS, "cuda": _OF_DEVICES}
