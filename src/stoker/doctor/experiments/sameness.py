"""Whether a dataset gives the same samples when they are read again: what is random must not be kept.

Asked of some samples that were read a moment ago, so that it takes little. `Feed` asks more of them before it
keeps any.
"""

from typing import Any

from torch.utils.data import Subset

from stoker.doctor.experiments.making import Maker
from stoker.doctor.experiments.passes import Pass
from stoker.feed.randomness import find_randomness

# Samples that are read twice: what draws from a generator shows in each of them.
_LEAST, _MOST = 2, 16


def why_unkept(maker: Maker, again: Pass, seconds: float) -> str | None:
    """Why kept samples would not be the script's; "" where nothing was seen, None where it cannot be told."""
    numbers = _numbers(maker.indices[0])
    if not maker.auto or not numbers:
        return None
    each = again.seconds / len(numbers)
    fitting = _MOST if each <= 0 else int(seconds / 2 / each)
    chosen = numbers[: max(_LEAST, min(_MOST, fitting))]
    try:
        found = find_randomness(Subset(maker.dataset, chosen), samples=len(chosen))
    except Exception:  # noqa: BLE001  # the user's dataset may raise anything
        return None
    return "" if found.cacheable else found.why


def _numbers(index: Any) -> list[int]:
    """The numbers of a batch's samples; none where a sampler gives something else."""
    try:
        return [int(one) for one in index]
    except (TypeError, ValueError):
        return []
