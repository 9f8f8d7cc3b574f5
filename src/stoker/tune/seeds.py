"""Another seed for a script that seeds itself: whatever it gives its generators, they get another."""

import random
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch

# What is called to seed the generators that a process has from its start. A `torch.Generator` of the script's
# own keeps its seed: what is drawn from the others differs all the same.
_SEEDING = (
    (torch, "manual_seed"),
    (torch.random, "manual_seed"),
    (torch.cuda, "manual_seed"),
    (torch.cuda, "manual_seed_all"),
    (np.random, "seed"),
    (random, "seed"),
)
# numpy's are of 32 bits.
_MOST = 2**32
# Further than the number of a rank, which scripts add to their seed.
_APART = 1_000_003


def seed_all(seed: int) -> None:
    """Seed the generators that a process has from its start."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def shift_seeds(by: int) -> None:
    """Have the script's own seeds be others from now on; those of 0 are as they are."""
    if not by:
        return
    for owner, name in _SEEDING:
        setattr(owner, name, _shifted(getattr(owner, name), by * _APART))


def _shifted(seeding: Callable[..., Any], by: int) -> Callable[..., Any]:
    @wraps(seeding)
    def shifted(*args: Any, **kwargs: Any) -> Any:
        if args:
            return seeding(_other(args[0], by), *args[1:], **kwargs)
        return seeding(
            **{name: _other(one, by) if name in ("seed", "a") else one for name, one in kwargs.items()}
        )

    return shifted


def _other(seed: Any, by: int) -> Any:
    """Of a number; None is a seed that differs by itself, and a text or a list is left."""
    return (int(seed) + by) % _MOST if isinstance(seed, (int, np.integer)) else seed
