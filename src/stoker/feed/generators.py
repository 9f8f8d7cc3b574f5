"""The random generators that a process has for everyone: torch's, numpy's and random's."""

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def tell_states() -> dict[str, bytes]:
    """Where each stands: two equal answers mean that nothing was drawn between them."""
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": pickle.dumps(np.random.get_state(legacy=False)),
        "random": pickle.dumps(random.getstate()),
    }


@contextmanager
def kept_generators() -> Iterator[None]:
    """What is drawn inside is not missing afterwards: the run draws the same numbers as without it."""
    of_torch, of_numpy, of_random = (
        torch.get_rng_state(),
        np.random.get_state(legacy=False),
        random.getstate(),
    )
    try:
        yield
    finally:
        torch.set_rng_state(of_torch)
        np.random.set_state(of_numpy)
        random.setstate(of_random)
