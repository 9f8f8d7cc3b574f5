"""Trainings of workloads in tests: small ones have one thread."""

import gc
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Small tensors gain nothing by more, and lose much where other tests have the cores beside them.

    On two busy cores the default tests of this folder took 110 s with two threads, and 37 s with one.
    """
    if request.node.get_closest_marker("slow"):
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="module")
def nothing_left() -> Iterator[None]:
    """A training is full of cycles: what it had open is closed before another file's tests count theirs."""
    yield
    gc.collect()
