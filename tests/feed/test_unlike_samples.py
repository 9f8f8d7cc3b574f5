"""Datasets whose samples cannot be kept in rows of one size: read as a DataLoader reads them, or refused."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from stoker.errors import NotPackable, UsageError
from stoker.feed import Feed
from stoker.feed.sources.npy import NpySource
from stoker.feed.sources.torch import TorchSource

OPTIONS: dict[str, Any] = {"device": "cpu", "workers": 0}


def test_samples_of_many_shapes_come_in_batches_of_one() -> None:
    """As from a DataLoader; what hinders holding them is told."""
    samples = [torch.full((1 + number % 3,), float(number)) for number in range(30)]
    with closing(Feed(samples, **OPTIONS)) as feed:
        assert [batch[0].tolist() for batch in feed] == [sample.tolist() for sample in samples]
        assert (feed.tier, "float32[2], but those before were float32[1]" in feed.why) == ("source", True)
    alike = np.arange(0, 30, 3)
    with closing(Feed(samples, subset=alike, **OPTIONS)) as feed:  # only those that are used are looked at
        assert feed.tier == "ram"
        assert torch.cat(list(feed))[:, 0].tolist() == alike.tolist()


def test_a_rare_sample_of_another_shape_is_told_with_what_to_do() -> None:
    """It was among none that were looked at; read each time, it comes."""
    samples = [torch.zeros(4 if number == 101 else 3) for number in range(300)]
    with (
        closing(Feed(samples, **OPTIONS)) as feed,
        pytest.raises(NotPackable, match=r"float32\[4\], but .* float32\[3\].*tier='source'"),
    ):
        list(feed)
    with closing(Feed(samples, tier="source", **OPTIONS)) as feed:
        assert len(list(feed)) == 300


class Box(torch.Tensor):
    """As torchvision's: what is done to it hangs on its class."""


def test_tensors_of_a_class_of_their_own_stay_what_they_are() -> None:
    """Held, they would come back as plain ones."""
    boxes = [torch.full((3,), float(number)).as_subclass(Box) for number in range(8)]
    with closing(Feed(boxes, 4, tier="ram", **OPTIONS)) as feed:
        assert [type(batch) for batch in feed] == [Box, Box]
        assert "batch is a Box: kept, it would come back as a plain tensor" in feed.why


def without_none(samples: list[Any]) -> Any:
    return default_collate([sample for sample in samples if sample is not None])


@pytest.mark.parametrize("disk", [False, True])
def test_a_collate_that_leaves_samples_out_is_told_with_what_to_do(tmp_path: Path, disk: bool) -> None:
    """A row that is missing would leave it open whose the others are."""
    samples = [None if number == 101 else torch.zeros(3) for number in range(300)]
    given = {**OPTIONS, "batch_size": 10, "collate_fn": without_none}
    where: dict[str, Any] = {"tier": "source", "cache": tmp_path} if disk else {"tier": "ram"}
    with (
        closing(Feed(samples, **given, **where)) as feed,
        pytest.raises(NotPackable, match=r"a batch of 10 samples has 9 rows.*subset=.*tier='source'"),
    ):
        list(feed)
    with closing(Feed(samples, **given, tier="source")) as feed:
        assert sum(map(len, feed)) == 299


def test_a_collate_that_would_not_be_used_is_refused(tmp_path: Path) -> None:
    """With what to give in its place; torch's own says nothing that a source does not do."""
    np.save(tmp_path / "a.npy", np.arange(6.0))
    source = NpySource(tmp_path)
    with pytest.raises(UsageError, match=r"collate_fn with a NpySource.*TorchSource\(dataset, collate_fn\)"):
        Feed(source, 2, collate_fn=len, **OPTIONS)
    assert len(list(Feed(source, 2, collate_fn=default_collate, **OPTIONS))) == 3
    assert list(Feed(TorchSource(source, len), 2, **OPTIONS)) == [2, 2, 2]
