"""How far counts are from what chance would give."""

import math

import numpy as np
from numpy.typing import NDArray


def deviation(counts: NDArray[np.number], expected: NDArray[np.float64] | None = None) -> float:
    """Chi-square against these counts (equal ones), in standard deviations of its own: 4 is one in 30,000."""
    if expected is None:
        expected = np.full(counts.shape, counts.sum() / counts.size)
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))
