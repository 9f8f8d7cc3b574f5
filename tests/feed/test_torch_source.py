"""TorchSource: the batches that a DataLoader would give, of any map-style dataset, or a clear refusal."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from feed.workers import read_in_workers, reopened
from stoker.errors import NoRoom, SourceBroken, UsageError
from stoker.feed.generators import tell_states
from stoker.feed.sources.torch import TorchSource


class Point(NamedTuple):
    """A sample with names."""

    place: torch.Tensor
    label: int


class Made(Dataset[Any]):
    """Samples made by a function of their number."""

    def __init__(self, make: Callable[[int], Any], length: int = 10) -> None:
        self.make, self.length = make, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return self.make(index)


class Batched(Made):
    """One that is asked for several at once, and remembers it."""

    def __init__(self, make: Callable[[int], Any], length: int = 10) -> None:
        super().__init__(make, length)
        self.asked: list[list[int]] = []

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.asked.append(indices)
        return [self.make(index) for index in indices]


def as_tensor(index: int) -> torch.Tensor:
    """A tensor."""
    return torch.full((2, 3), float(index))


def as_nested(index: int) -> dict[str, Any]:
    """Everything at once."""
    return {
        "image": torch.full((3, 4), index % 256, dtype=torch.uint8),
        "array": np.full(2, index, np.float64),
        "name": f"sample {index}",
        "boxes": [torch.tensor(index), (index, float(index))],
        "point": Point(torch.tensor([index, -index]), index),
    }


def as_ragged(index: int) -> dict[str, Any]:
    """An image whose size is the sample's number."""
    return {"image": torch.zeros(3, index + 1), "label": index}


def pad(samples: list[Any]) -> dict[str, Any]:
    """A user's collate: images padded to the longest."""
    longest = max(sample["image"].shape[1] for sample in samples)
    images = [torch.nn.functional.pad(s["image"] + 1, (0, longest - s["image"].shape[1])) for s in samples]
    return {"image": torch.stack(images), "label": torch.tensor([sample["label"] for sample in samples])}


def as_list(samples: list[Any]) -> list[Any]:
    """A user's collate that leaves the samples as they are."""
    return samples


def same(one: Any, other: Any) -> bool:
    """Equal in structure, types and values."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return type(one) is type(other) and bool(np.all(one == other))


@pytest.mark.parametrize(
    "make",
    [
        as_tensor,
        as_nested,
        int,
        float,
        str,
        bytes,
        lambda n: (as_tensor(n), n),
        lambda n: Point(as_tensor(n), n),
    ],
)
def test_a_batch_is_what_default_collate_makes(make: Callable[[int], Any]) -> None:
    """Tensors, arrays, numbers, text, dicts, tuples and namedtuples, nested; in the order asked."""
    dataset = Made(make)
    wanted = np.array([7, 0, 0, 9, -1])
    expected = default_collate([dataset[int(number) % 10] for number in wanted])
    assert same(TorchSource(dataset).read(wanted), expected)


@pytest.mark.parametrize(("kind", "start"), [(Made, "fork"), (Batched, "fork"), (Batched, "spawn")])
def test_as_a_dataset_it_gives_what_its_own_gives(kind: type[Made], start: str) -> None:
    """In real workers too, sample by sample."""
    dataset = kind(as_nested)
    batches = read_in_workers(TorchSource(dataset), start)
    plain: DataLoader[Any] = DataLoader(dataset, batch_size=4)
    assert all(same(one, other) for one, other in zip(batches, plain, strict=True))
    assert same(reopened(TorchSource(dataset))[3], dataset[3])


def test_a_dataset_that_reads_by_the_batch_is_asked_by_the_batch() -> None:
    """Its `__getitems__` gets plain numbers, once a read."""
    dataset = Batched(as_tensor)
    TorchSource(dataset).read(np.array([3, -1]))
    assert dataset.asked == [[3, 9]]
    assert type(dataset.asked[0][0]) is int
    inner = TensorDataset(torch.arange(10))
    assert same(TorchSource(Subset(inner, [5, 6])).read(np.array([1, 0])), [torch.tensor([6, 5])])


def test_a_plain_list_is_a_dataset() -> None:
    """Whatever has a length and takes numbers."""
    assert TorchSource([3, 4, 5]).read(np.array([2, 0])).tolist() == [5, 3]


def test_a_number_that_is_not_there_is_an_index_error() -> None:
    """In a read and as an item."""
    source = TorchSource([3, 4, 5])
    with pytest.raises(IndexError, match="no sample 3: there are 3"):
        source.read(np.array([0, 3]))
    with pytest.raises(IndexError, match="no sample -1: there are 3"):
        source[-4]


def test_an_empty_read_has_the_fields_of_a_full_one() -> None:
    """With no rows in them; nothing at all where there are no samples."""
    nothing = np.array([], dtype=np.int64)
    batch = TorchSource(Made(as_nested)).read(nothing)
    assert (batch["image"].shape, batch["image"].dtype) == ((0, 3, 4), torch.uint8)
    assert (batch["name"], batch["point"].label.shape) == ([], (0,))
    assert TorchSource(Made(str)).read(nothing) == []
    assert TorchSource([]).read(nothing) == []


def test_ragged_samples_are_named_with_their_shapes() -> None:
    """And the cure: a collate_fn, which then puts them together."""
    with pytest.raises(SourceBroken) as raised:
        TorchSource(Made(as_ragged)).read(np.array([4, 4, 6]))
    assert str(raised.value) == (
        "these samples are not alike: image is float32 (3, 5) in sample 4 and float32 (3, 7) in sample 6. "
        "Give TorchSource a collate_fn that puts such samples into a batch."
    )
    batch = TorchSource(Made(as_ragged), collate_fn=pad).read(np.array([4, 6]))
    assert batch["image"].sum(dim=(1, 2)).tolist() == [15.0, 21.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda n: {"a": 1, "b": 2} if n == 0 else {"a": 1}, "b is int in sample 0 and absent in sample 1"),
        (lambda n: [1] * (n + 1), r"\[1\] is absent in sample 0 and int in sample 1"),
        (lambda n: (n, None), r"cannot put these samples into a batch: \[0\] \(int\), \[1\] \(NoneType\)"),
        (lambda n: None if n else 1, "the sample is int in sample 0 and NoneType in sample 1"),
        (lambda n: {str(k): torch.zeros(n) for k in range(5)}, "in sample 1, and 2 fields more"),
    ],
)
def test_what_cannot_be_put_together_is_explained(make: Callable[[int], Any], message: str) -> None:
    """Missing fields, lists of different lengths, values that default_collate does not know."""
    with pytest.raises(SourceBroken, match=message):
        TorchSource(Made(make)).read(np.array([0, 1]))


def test_a_users_error_stays_the_users() -> None:
    """What the dataset raises comes through as it is."""

    def fail(index: int) -> Any:
        raise ZeroDivisionError(index)

    with pytest.raises(ZeroDivisionError):
        TorchSource(Made(fail)).read(np.array([0]))


def test_a_batch_shares_no_memory_with_the_dataset() -> None:
    """Not even through a collate that hands the samples on, or a view of what the dataset holds."""
    held = torch.arange(12.0).reshape(4, 3)
    array = held.numpy().copy()
    for dataset, collate in (
        (TensorDataset(held), None),
        (TensorDataset(held), as_list),
        (Made(lambda n: array[n], 4), lambda samples: [torch.from_numpy(sample) for sample in samples]),
        (Made(lambda n: held[n], 4), lambda samples: {"all": held[: len(samples)], "text": ["a"]}),
        (Made(lambda n: array[n], 4), as_list),
    ):
        batch = TorchSource(dataset, collate_fn=collate).read(np.array([0, 1]))
        for leaf in torch.utils._pytree.tree_leaves(batch):
            if isinstance(leaf, (torch.Tensor, np.ndarray)):
                leaf[...] = 0
    assert torch.equal(held, torch.arange(12.0).reshape(4, 3))
    assert array.tolist() == held.tolist()


class Stream(IterableDataset[int]):
    """No numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Endless(Dataset[int]):
    """No length."""

    def __getitem__(self, index: int) -> int:
        return index


class Undecided(Endless):
    """A length that cannot be told."""

    def __len__(self) -> int:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Stream(), "Stream is an IterableDataset: .* Give it __len__ and __getitem__"),
        (Endless(), "Endless has no length: give it __len__"),
        (Undecided(), "Undecided has no length"),
        (DataLoader([1, 2]), "give the dataset inside it, loader.dataset"),  # type: ignore[arg-type]
        ({1, 2}, "set has no __getitem__"),
    ],
)
def test_what_has_no_numbered_samples_is_refused(dataset: Any, message: str) -> None:
    """With what to do instead."""
    with pytest.raises(UsageError, match=message):
        TorchSource(dataset)


def test_the_fingerprint_follows_class_length_and_samples() -> None:
    """The same for equal data; another for other data. Few samples are read, and each only twice."""
    dataset = Batched(as_nested, 1000)
    told = TorchSource(dataset).fingerprint()
    assert sum(len(asked) for asked in dataset.asked) == 16
    assert TorchSource(Batched(as_nested, 1000)).fingerprint() == told
    others = [Batched(as_nested, 999), Made(as_nested, 1000), Batched(as_tensor, 1000), Batched(str, 0)]
    assert len({told, *(TorchSource(other).fingerprint() for other in others)}) == 5


def test_a_fingerprint_of_the_datasets_own_is_taken() -> None:
    """It knows best."""
    dataset = Made(as_tensor)
    dataset.fingerprint = lambda: "mine 1"  # type: ignore[attr-defined]
    assert TorchSource(dataset).fingerprint() == "mine 1"


def with_epoch(dataset: Made, epoch: int) -> Made:
    """A dataset that knows its epoch."""
    dataset.epoch = epoch  # type: ignore[attr-defined]
    return dataset


@pytest.mark.parametrize(
    "make",
    [
        lambda n: torch.rand(3),
        lambda n: np.random.rand(3),
        lambda n: {"image": torch.rand(3), "object": (k for k in range(n))},
        lambda n: np.random.default_rng().random(3),
    ],
)
def test_random_samples_leave_the_fingerprint_alone(make: Callable[[int], Any]) -> None:
    """A resume is not told that its data changed; and nothing is missing from the generators."""
    before = tell_states()
    first, second = TorchSource(Made(make)).fingerprint(), TorchSource(Made(make)).fingerprint()
    assert first == second
    assert tell_states() == before


def test_samples_that_follow_the_epoch_leave_the_fingerprint_alone() -> None:
    """Also of a dataset inside another: their shapes count, their values do not."""
    epochs = [with_epoch(Made(lambda n, e=e: torch.tensor(n + e)), e) for e in range(2)]  # type: ignore[misc]
    first, second = (TorchSource(ConcatDataset([Subset(one, [0, 1])])).fingerprint() for one in epochs)
    assert first == second


def test_shared_memory_that_is_full_is_not_blamed_on_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker makes its batches there; torch's own words come with what to do."""

    def full(samples: Any) -> Any:
        raise RuntimeError(
            "unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)"
        )

    monkeypatch.setattr("stoker.feed.sources.torch.default_collate", full)
    with pytest.raises(NoRoom, match=r"a batch of 2 samples has no room .*--shm-size.*workers=0"):
        TorchSource([torch.zeros(2), torch.ones(2)]).read(np.array([0, 1]))
