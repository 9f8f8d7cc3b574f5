"""SAR patches from `.npy` shards: which file a sample is in, the 90/10 split, and patches as images."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from stoker.errors import SourceBroken, UsageError
from stoker.feed.draws import key
from stoker.feed.permutation import permute
from stoker.feed.sources.base import Indices, checked
from stoker.feed.sources.npy import NpySource


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One file of the index: the numbers of its samples run from `first` on."""

    name: str
    first: int
    length: int


class SarSource(NpySource):
    """The patches of a folder of shards, each an image of one channel: (1, 256, 256) in the real set.

    >>> source = SarSource("shards")  # doctest: +SKIP
    >>> source.locate(626_650)        # doctest: +SKIP
    (Shard(name='scene_039.npy', first=619038, length=16021), 7612)
    """

    def __init__(self, folder: str | Path, pattern: str = "*.npy") -> None:
        super().__init__(folder, pattern)
        if len(self.sample_shape) != 2 or self.dtype != torch.float32:
            kind = str(self.dtype).removeprefix("torch.")
            raise SourceBroken(
                f"the shards in {self.folder} hold samples of {self.sample_shape} {kind}: SAR patches are "
                "float32 with two axes, e.g. (256, 256). Save them so, or give another folder."
            )
        ends = self._ends.tolist()
        self.shards = tuple(
            Shard(name=file.path.name, first=end - file.shape[0], length=file.shape[0])
            for file, end in zip(self._files, ends, strict=True)
        )

    def locate(self, sample: int) -> tuple[Shard, int]:
        """The file that a sample is in, and its row there."""
        number = int(checked([sample], len(self))[0])
        shard = self.shards[int(np.searchsorted(self._ends, number, side="right"))]
        return shard, number - shard.first

    def read(self, indices: Indices) -> torch.Tensor:
        """The patches of these samples: (B, 1, H, W)."""
        patches: torch.Tensor = super().read(indices)
        return patches.unsqueeze(1)


def split(samples: int, *, share: float = 0.9, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers of the samples to train on and of those to validate on, by the seed; each ascending.

    >>> train, valid = split(696_278)
    >>> len(train), len(valid)
    (626650, 69628)
    """
    cut = int(samples * share)
    if not 0 < cut < samples:
        raise UsageError(
            f"{samples} samples with a share of {share:g} to train on leave {cut} and {samples - cut}: both "
            "need one at least; give more samples or another share"
        )
    mixed = permute(np.arange(samples), samples, key(seed, "split"))
    return np.sort(mixed[:cut]), np.sort(mixed[cut:])
