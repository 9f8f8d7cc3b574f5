"""The generators that a step may draw from: torch's (host and card), numpy's and Python's."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.feed.draws import key


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Where all of them stand; `cuda` is None where the device is no card."""

    torch: Tensor
    cuda: Tensor | None
    numpy: Any
    python: Any

    def to_state(self) -> dict[str, Any]:
        """Tensors and plain numbers, so that a file of it loads with `weights_only`."""
        name, words, place, has_gauss, gauss = self.numpy
        version, internal, next_gauss = self.python
        assert name == "MT19937", name
        return {
            "torch": self.torch,
            "cuda": self.cuda,
            "numpy_words": torch.from_numpy(np.asarray(words, np.int64)),
            "numpy_rest": [int(place), int(has_gauss), float(gauss)],
            "python_words": torch.tensor(internal, dtype=torch.int64),
            "python_rest": [version, next_gauss],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Drawn":
        """The same again."""
        version, next_gauss = state["python_rest"]
        return cls(
            torch=state["torch"],
            cuda=state["cuda"],
            numpy=("MT19937", state["numpy_words"].numpy().astype(np.uint32), *state["numpy_rest"]),
            python=(version, tuple(state["python_words"].tolist()), next_gauss),
        )


def read(device: torch.device) -> Drawn:
    """Where they stand now."""
    return Drawn(
        torch=torch.get_rng_state(),
        cuda=torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        numpy=np.random.get_state(),
        python=random.getstate(),
    )


def write(drawn: Drawn, device: torch.device) -> None:
    """Put them back there; a card's is left alone where it was not read."""
    torch.set_rng_state(drawn.torch)
    if device.type == "cuda" and drawn.cuda is not None:
        torch.cuda.set_rng_state(drawn.cuda, device)
    np.random.set_state(drawn.numpy)
    random.setstate(drawn.python)


def seed_all(seed: int, *parts: int) -> None:
    """Seed all of them with one number made from these."""
    mixed = key(seed, "train", *parts)
    torch.manual_seed(mixed % 2**63)
    np.random.seed(mixed % 2**32)
    random.seed(mixed)
