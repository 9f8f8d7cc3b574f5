"""Padding is told by what ends the rows of a batch; what only looks like it is not."""

import torch

from stoker.doctor.padding import read_padding, share_of_padding


def tokens(lengths: list[int], longest: int) -> torch.Tensor:
    rows = torch.randint(5, 1000, (len(lengths), longest), generator=torch.Generator().manual_seed(1))
    for row, length in zip(rows, lengths, strict=True):
        row[length:] = 0
    return rows


def test_what_follows_the_ends_is_counted() -> None:
    """Half of it, in rows of every length."""
    assert share_of_padding([[tokens([16, 8, 4, 4], 16)]]) == 0.5


def test_rows_that_are_full_have_none() -> None:
    """Whatever value they end with."""
    assert share_of_padding([[tokens([16, 16, 16, 16], 16)]]) == 0.0


def test_masks_targets_and_images_tell_nothing() -> None:
    """Two values, one dimension, or fractions."""
    mask = (tokens([16, 8, 4, 4], 16) > 0).long()
    assert share_of_padding([[mask, torch.arange(4), torch.zeros(4, 16), "text"]]) is None


def test_held_batches_tell_more_than_what_the_model_was_called_with() -> None:
    """Which is all there is where no loader is drawn from."""
    called = {"observed": {"padding": [0.25, 0.75]}}
    assert read_padding(called) == 0.5
    assert read_padding(called | {"batch": {"padding": 0.1}}) == 0.1
    assert read_padding({"observed": {"padding": []}}) is None
