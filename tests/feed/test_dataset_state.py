"""What a dataset is made of, by a digest; what a sample is made of, by its form."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from stoker.errors import NotPackable
from stoker.feed.dataset_state import state_digest
from stoker.feed.sample_form import SampleForm


class Crops:
    """Settings, numbers, and something that cannot be pickled."""

    def __init__(self, size: int = 8, numbers: Any = None, lock: bool = False) -> None:
        self.size, self.numbers = size, numbers
        self.lock = threading.Lock() if lock else None


def test_the_same_dataset_has_the_same_digest() -> None:
    """Made anew, and with what cannot be pickled."""
    for given in ({}, {"numbers": torch.arange(9)}, {"numbers": np.arange(9)}, {"lock": True}):
        assert state_digest(Crops(**given)) == state_digest(Crops(**given))


@pytest.mark.parametrize("other", [{"size": 9}, {"numbers": torch.arange(9)}, {"numbers": np.arange(1, 10)}])
def test_another_dataset_has_another_digest(other: dict[str, Any]) -> None:
    """Another setting or other numbers; also of one inside another."""
    plain = Crops(numbers=np.arange(9))
    assert state_digest(Crops(**{"numbers": np.arange(9), **other})) != state_digest(plain)
    inside, beside = Subset(plain, [1, 2]), Subset(plain, [1, 3])  # type: ignore[arg-type, var-annotated]
    assert state_digest(inside) != state_digest(beside)


def test_a_memory_map_is_not_read(tmp_path: Path) -> None:
    """64 GiB of nothing: only its size and first numbers count."""
    path = tmp_path / "volume"
    with path.open("wb") as file:
        file.truncate(64 << 30)
    volume = np.memmap(path, np.uint8, "r")
    assert state_digest(Crops(numbers=volume)) == state_digest(Crops(numbers=volume))


def test_a_sample_comes_back_as_it_was() -> None:
    """Containers, types and bits."""
    samples: list[Any] = [
        ({"x": torch.tensor([at, -0.0]), "y": np.array([at], np.uint16)}, at, at / 3, at > 1)
        for at in range(3)
    ]
    form = SampleForm.of(samples[0])
    for before, after in zip(samples, form.unstack(form.stack(samples)), strict=True):
        assert type(after) is tuple
        assert after[1:] == before[1:]
        assert [type(value) for value in after] == [dict, int, float, bool]
        assert after[0]["x"].tolist() == before[0]["x"].tolist()
        assert (after[0]["y"].dtype, after[0]["y"].tolist()) == (np.uint16, before[0]["y"].tolist())


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        ([("text", 1)], "holds a str"),
        ([(1, 2), (1, 2.0)], "not alike"),
        ([torch.zeros(2), torch.zeros(3)], "side by side"),
        ([1 << 70], "side by side"),
    ],
)
def test_what_cannot_come_back_is_refused(samples: list[Any], says: str) -> None:
    """With the reason."""
    with pytest.raises(NotPackable, match=says):
        SampleForm.of(samples[0]).stack(samples)
