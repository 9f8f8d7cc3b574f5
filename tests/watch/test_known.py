"""What is known of a loader without drawing from it."""

from collections.abc import Iterator

import pytest
from torch.utils.data import DataLoader, IterableDataset

from stoker.watch.known import KnownLoaders


class Stream(IterableDataset[int]):
    """Six numbers, all of them for whoever asks."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


@pytest.mark.parametrize(("data", "iterable"), [(Stream(), True), (range(6), False)])
def test_a_stream_is_told_from_what_has_indices(data: object, iterable: bool) -> None:
    """A stream's workers decide themselves what they read: that is not Stoker's to change."""
    loader: DataLoader[int] = DataLoader(data, batch_size=2)  # type: ignore[arg-type]
    assert KnownLoaders().of(loader).settings["iterable"] is iterable


def test_what_is_no_loader_of_torch_has_no_settings() -> None:
    """Nor is it called a stream."""
    assert KnownLoaders().of(iter([1, 2])).settings == {}
