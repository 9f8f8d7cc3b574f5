"""What a batch holds: the same number for the same, wherever it lies."""

from typing import Any

import numpy as np
import pytest
import torch

from stoker.tune.contents import checksum, numbers


class Boxes:
    """It has no __repr__, and holds itself."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x, self.itself, self.lazy = x, self, lambda: x


class Slim:
    """It has no __dict__."""

    __slots__ = ("x",)

    def __init__(self, x: float) -> None:
        self.x = x


class Image:
    """It has an address in its repr, and its pixels in an array that is made when asked for."""

    def __init__(self, pixels: list[int]) -> None:
        self._core, self._pixels = object(), np.array(pixels, np.uint8)

    @property
    def __array_interface__(self) -> Any:
        """The pixels."""
        return self._pixels.__array_interface__

    def __repr__(self) -> str:
        return f"<Image at {id(self):#x}>"


def large(middle: int) -> Any:
    """So large that its repr leaves out what is in the middle."""
    array = np.zeros(5000, np.int64)
    array[2500] = middle
    return array


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (torch.ones(3), torch.ones(3), torch.zeros(3)),
        (large(1), large(1), large(2)),
        (Boxes(torch.ones(3)), Boxes(torch.ones(3)), Boxes(torch.zeros(3))),
        (Slim(1.0), Slim(1.0), Slim(2.0)),
        ([Image([1, 2])], [Image([1, 2])], [Image([1, 3])]),
        ({"a": [1, None]}, {"a": [1, None]}, {"a": [2, None]}),
        ({"a", "b", "c"}, {"c", "b", "a"}, {"a", "b", "d"}),
        (np.array([{"a": 1}, None]), np.array([{"a": 1}, None]), np.array([{"a": 2}, None])),
        (torch.eye(3).to_sparse(), torch.eye(3).to_sparse(), torch.ones(3, 3).to_sparse()),
        (np.float32(1.0), np.float32(1.0), np.float32(2.0)),
        (float("nan"), float("nan"), 0.0),
    ],
)
def test_a_checksum_is_of_what_a_batch_holds(one: Any, same: Any, other: Any) -> None:
    """And of no address."""
    assert checksum(one) == checksum(same)
    assert checksum(one) != checksum(other)


def test_what_holds_nothing_has_its_kind() -> None:
    """There is nothing else to know of it."""
    assert checksum(object()) == checksum(object())


@pytest.mark.parametrize(
    ("index", "flat"),
    [
        ([3, 1], [3, 1]),
        (np.array([3, 1]), [3, 1]),
        (torch.tensor([3, 1]), [3, 1]),
        ([torch.tensor(3), torch.tensor(1)], [3, 1]),
        (["a/1.png", "b/2.png"], ["a/1.png", "b/2.png"]),
        ([(0, 32), (5, 64)], [0, 32, 5, 64]),
        (7, [7]),
        ([None, None], []),
    ],
)
def test_what_a_sampler_gives_is_flat(index: Any, flat: list[Any]) -> None:
    """Numbers and names of samples, in whatever they come."""
    assert numbers(index) == flat


def test_any_other_index_has_a_number() -> None:
    """The same for the same."""
    assert numbers([Slim(1.0), [1, 2]]) == numbers([Slim(1.0), [1, 2]]) != numbers([Slim(2.0), [1, 2]])
    assert numbers([[1], [2, 3]]) == numbers([[1], [2, 3]]) != numbers([[1], [2, 4]])
