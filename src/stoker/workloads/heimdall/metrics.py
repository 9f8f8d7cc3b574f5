"""How an estimate of positions is judged: by its error in metres, and by whether it knows how sure it is."""

import math
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from stoker.errors import UsageError
from stoker.workloads.heimdall.locator import Estimate


class ErrorQuantile(Metric):  # type: ignore[misc]
    """A quantile of the distances between estimate and truth, in metres: 0.5 is the median.

    Errors are kept, 4 bytes each: a quantile of parts is not the quantile of the whole.
    """

    higher_is_better = False
    full_state_update = False
    errors: list[Tensor]

    def __init__(self, quantile: float, **options: Any) -> None:
        super().__init__(**options)
        if not 0 <= quantile <= 1:
            raise UsageError(f"quantile is {quantile}: take 0 to 1")
        self.quantile = quantile
        self.add_state("errors", [], dist_reduce_fx="cat")

    def update(self, estimate: Estimate, position: Tensor) -> None:
        """Positions in km."""
        self.errors.append((estimate.mean - position).norm(dim=-1) * 1000)

    def compute(self) -> Tensor:
        """Of all that was seen; between two errors it is in between."""
        kept: Tensor = dim_zero_cat(self.errors)
        errors = kept.double().sort().values
        place = self.quantile * (len(errors) - 1)
        below, above = errors[math.floor(place)], errors[math.ceil(place)]
        return (below + (above - below) * (place % 1)).float()


class Coverage(Metric):  # type: ignore[misc]
    """The share of truths inside the ellipse that should hold `share` of them: best when it is that share."""

    full_state_update = False
    inside: Tensor
    seen: Tensor

    def __init__(self, share: float = 0.9, **options: Any) -> None:
        super().__init__(**options)
        # In two dimensions the squared distance in deviations is exponential, with a mean of 2.
        self.radius_squared = -2 * math.log(1 - share)
        self.add_state("inside", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("seen", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, estimate: Estimate, position: Tensor) -> None:
        """Positions in km."""
        away = estimate.standardise(position).square().sum(-1)
        self.inside += (away <= self.radius_squared).sum()
        self.seen += len(position)

    def compute(self) -> Tensor:
        """Of all that was seen."""
        return self.inside / self.seen.clamp_min(1)
