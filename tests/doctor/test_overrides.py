"""Settings put over a script's own, in a process of its own: which loaders get them, and how."""

import json
import subprocess
import sys
from typing import Any

import pytest

SCRIPT = """
import json, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
from stoker.doctor import overrides
settings, workers = json.loads(sys.argv[1])
overrides.put(settings, workers=workers)
data = TensorDataset(torch.arange(64.0))
made = [
    DataLoader(data, 8, num_workers=2, prefetch_factor=4, persistent_workers=True),
    DataLoader(data, 8, False, None, None, 2),
    DataLoader(data, batch_size=16),
    DataLoader(data, batch_sampler=[[0, 1], [2, 3]], num_workers=2),
]
torch.set_num_threads(2)
told = [[one.num_workers, one.batch_size, one.prefetch_factor, one.persistent_workers] for one in made]
print(json.dumps([told, torch.get_num_threads()]))
"""


def made(settings: dict[str, Any], workers: int | None = None) -> Any:
    """What loaders (with workers, by position, without, with batches of its own) have; and the threads."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([settings, workers])],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_other_workers_go_to_loaders_that_have_some() -> None:
    """By name or by position; a loader without workers stays so."""
    told, threads = made({"num_workers": 5, "batch_size": 4, "threads": 1})
    assert told == [[5, 4, 4, True], [5, 4, 2, False], [0, 16, None, False], [5, None, 2, False]]
    assert threads == 1


def test_a_loop_without_workers_gets_some() -> None:
    """Where the loader that trains has none, and only those like it."""
    told, _ = made({"num_workers": 1, "persistent_workers": True}, workers=0)
    assert [one[0] for one in told] == [2, 2, 1, 2]
    assert told[2] == [1, 16, 2, True]


STREAM = """
import json, sys
from torch.utils.data import DataLoader, IterableDataset
from stoker.doctor import overrides
class Stream(IterableDataset):
    def __iter__(self): return iter(range(6))
overrides.put({"num_workers": int(sys.argv[1]), "prefetch_factor": 3}, workers=int(sys.argv[2]))
loader = DataLoader(Stream(), 2, num_workers=int(sys.argv[2]))
print(json.dumps([loader.num_workers, sum(len(batch) for batch in loader)]))
"""


@pytest.mark.parametrize(("wanted", "has", "gets"), [(4, 0, 0), (1, 0, 1), (4, 2, 2), (1, 2, 2)])
def test_a_stream_gets_no_workers_that_would_read_it_again(wanted: int, has: int, gets: int) -> None:
    """Each worker reads all of it, unless its author shares it out: one in place of none is all it gets."""
    done = subprocess.run(
        [sys.executable, "-c", STREAM, str(wanted), str(has)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert json.loads(done.stdout) == [gets, 6 * max(1, has)]


def test_what_a_loader_without_workers_refuses_is_dropped() -> None:
    """A change to none is no error."""
    told, _ = made({"num_workers": 0, "prefetch_factor": 8})
    assert [one[0] for one in told] == [0, 0, 0, 0]
