"""Held batches come again as they were, in new containers, whatever the loop did to them."""

from collections import UserDict

import numpy as np
import torch

from stoker.doctor.held import RING, Held


def held(batch_of: int = 2) -> Held:
    ring = Held()
    for number in range(RING):
        ring.keep({"x": torch.full((batch_of,), float(number)), "names": [f"{number}"] * batch_of})
    return ring


def test_they_come_in_turn() -> None:
    """As many as are held, then the first again."""
    ring = held()
    assert ring.full
    firsts = [float(ring.next()["x"][0]) for _ in range(RING + 1)]
    assert firsts == [0.0, 1.0, 2.0, 3.0, 0.0]


def test_a_container_is_the_loops_own() -> None:
    """What it pops or adds is not missing the next time."""
    ring = held()
    ring.next().pop("names")
    for _ in range(RING - 1):
        ring.next()
    assert ring.next()["names"] == ["0", "0"]


def test_a_tensor_that_was_changed_in_place_is_put_back() -> None:
    """Normalising a batch in place, say."""
    ring = held()
    ring.next()["x"].add_(100)
    for _ in range(RING - 1):
        ring.next()
    assert ring.next()["x"].tolist() == [0.0, 0.0]


def test_what_was_kept_is_not_the_loaders_memory() -> None:
    """A loader may fill the same tensor again."""
    ring, memory = Held(), torch.zeros(2)
    for number in range(RING):
        memory.fill_(number)
        ring.keep(memory)
    assert [float(ring.next()[0]) for _ in range(RING)] == [0.0, 1.0, 2.0, 3.0]
    assert ring.nbytes() == 8


def test_a_container_that_torch_does_not_know_is_copied_whole() -> None:
    """As tokenizers and graph libraries have them: what the loop pops is there the next time."""
    ring = Held()
    for number in range(RING):
        ring.keep(UserDict(x=torch.full((2,), float(number)), labels=np.zeros(2)))
    first = ring.next()
    first.pop("labels")[0] = 9
    for _ in range(RING - 1):
        ring.next()
    again = ring.next()
    assert again["labels"].tolist() == [0.0, 0.0]
    assert again["x"].tolist() == [0.0, 0.0]
