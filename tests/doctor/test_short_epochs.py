"""Epochs of one batch: each is waited for from `iter()` on, and that is no start of workers."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import stoker
from stoker.doctor.evidence import Evidence, LoaderFacts, read
from stoker.doctor.examination import examine_record
from stoker.doctor.model import Change, predict
from stoker.doctor.verdict import reach
from stoker.scratch import Message
from stoker.watch import Record


class Naps(Dataset[torch.Tensor]):
    """Naps for every sample."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.01)
        return torch.ones(2)


def trained(folder: Path, loader: "DataLoader[torch.Tensor]", epochs: int) -> Record:
    """The record of a loop over a whole set at a time, which computes next to nothing."""
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with stoker.Watch(runs=folder) as watch:
        for _ in range(epochs):
            net(next(iter(loader))).sum().backward()
            optimizer.step()
    return watch.record


def look_at_waiting(record: Record) -> None:
    """Nothing is started, and the run is not healthy."""
    found = examine_record(record)
    assert (found.evidence.shares["wait"] or 0) > 0.5
    assert found.evidence.lost == pytest.approx(found.evidence.shares["wait"])
    assert found.verdict.cause != "healthy"
    assert "worker-startup" in found.verdict.eliminated


def test_a_batch_that_the_loop_makes_is_waited_for(tmp_path: Path) -> None:
    """And what computing takes is told by held batches, less the beginning of an epoch in each step."""
    record = trained(tmp_path, DataLoader(Naps(), batch_size=4), 12)
    look_at_waiting(record)
    run = read(record, [Message(kind="replay", body={"began": 0.0, "t": time.time()}, at=0.0)], {}, {})
    assert run is not None
    assert run.compute is not None
    assert run.compute < 0.04 < run.step


def test_a_batch_of_a_worker_that_was_there_before_is_waited_for(tmp_path: Path) -> None:
    """With persistent workers an epoch begins with an empty queue all the same."""
    look_at_waiting(
        trained(tmp_path, DataLoader(Naps(), batch_size=4, num_workers=1, persistent_workers=True), 12)
    )


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_starting_workers_is_told_from_making_the_first_batch(tmp_path: Path) -> None:
    """Of what an epoch begins with, the batch would be waited for whoever makes it."""
    run = examine_record(trained(tmp_path, DataLoader(Naps(), batch_size=4, num_workers=1), 8)).evidence
    assert run.make is not None
    assert run.make > 0.04
    assert run.starts == 1
    assert run.starting == pytest.approx(run.startup - run.make / run.step)
    assert run.lost == pytest.approx((run.shares["wait"] or 0) - run.starting)


def one_batch(**more: Any) -> Evidence:
    """A loop of 10 ms that makes its own batch of 90 in every step, the first of an epoch each."""
    plain = Evidence(
        step=0.1, shares={"wait": 0.9, "other": 0.0}, starts=1.0, steps=40, samples=4.0, compute=0.01,
        loader=0.09, drawn=LoaderFacts(name="L", workers=0, batch_size=4, epochs=40, length=100),
        making={"batches": 40, "read": 0.09, "cpu": 0.001}, host={"usable_cores": 8.0},
    )  # fmt: skip
    return Evidence(**{**vars(plain), **more})


def test_workers_gain_nothing_where_every_epoch_is_left_after_a_batch() -> None:
    """Its queue is empty whenever it is asked; the first batch takes as long as ever."""
    told = predict(one_batch(), (Change(change="num_workers", value=2),))
    assert told is not None
    assert told.rate.mid <= 1.12 / 0.1


def test_a_loop_that_waits_is_never_called_healthy() -> None:
    """Whatever its waiting is booked as; unless held batches save nothing."""
    drawn = LoaderFacts(name="L", workers=2, batch_size=4, epochs=1)
    starts: dict[str, Any] = {"drawn": drawn, "startup": 0.9, "starts": 0.0, "loader": None, "making": {}}
    assert reach(one_batch(**starts, compute=None)).cause == "unknown"
    assert reach(one_batch(**starts, compute=0.098)).cause == "healthy"
