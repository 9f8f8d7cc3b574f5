"""Progressive resizing: images grow from epoch to epoch; small ones, at first, cost far less to train on."""

from dataclasses import dataclass, field, replace
from typing import Any

from stoker.errors import UsageError
from stoker.feed.crops import Samples
from stoker.feed.transforms import BatchTransform, ImageTransform

# Sizes are multiples of it: a network that halves five times uses all of such an image, and a compiled step
# is made anew for only a few of them.
STEP = 32


@dataclass(frozen=True, kw_only=True)
class Growing(BatchTransform):
    """An image transform whose size grows from `start` in epoch 0 to its own in epoch `until`.

    >>> growing = Growing(transform=ImageTransform(size=224), start=128, until=6)
    >>> [growing.size(epoch) for epoch in range(8)]
    [128, 128, 160, 160, 192, 192, 224, 224]
    """

    transform: ImageTransform
    start: int
    until: int
    end: int = field(init=False)

    def __post_init__(self) -> None:
        size = self.transform.size
        if not isinstance(size, tuple) or size[0] != size[1]:
            raise UsageError(f"a transform of size {size}: images that grow need one side for both")
        if not 1 <= self.start <= size[0] or self.until < 1:
            raise UsageError(
                f"from {self.start} pixels to {size[0]} in {self.until} epochs: begin with at least 1 and "
                "not above the end, and take at least 1 epoch"
            )
        object.__setattr__(self, "end", size[0])

    def size(self, epoch: int) -> int:
        """Pixels a side in an epoch."""
        if epoch >= self.until:
            return self.end
        grown = self.start + (self.end - self.start) * epoch / self.until
        return max(self.start, int(grown) // STEP * STEP)

    @property
    def random(self) -> bool:
        """Whether the result hangs on the seed and the epoch: it does, on the latter at least."""
        return True

    def fingerprint(self) -> str:
        """A text of all settings: equal when the same is done."""
        return f"{self.transform.fingerprint()} from {self.start} until {self.until}"

    def __call__(self, batch: Any, *, samples: Samples, seed: int, epoch: int) -> Any:
        """The batch with its images at this epoch's size."""
        sized = replace(self.transform, size=self.size(epoch))
        return sized(batch, samples=samples, seed=seed, epoch=epoch)
