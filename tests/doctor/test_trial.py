"""The experiments inside the loop: no epoch is stretched, and the parts come in order."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, Sampler, TensorDataset
from torch.utils.data import dataloader as torch_dataloader

from stoker.doctor import trial
from stoker.doctor.experiments.from_memory import FromMemory
from stoker.doctor.parts import Parts
from stoker.doctor.trial import Trial
from stoker.watch.session import Plan, Session


class _Ended(Exception):
    """The run is over."""


class FakeChild:
    """Keeps what is reported; ends the loop by an exception, where a real one ends its process."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []

    def report(self, kind: str, /, **body: Any) -> None:
        self.told.append((kind, body))

    def progress(self, step: int) -> None:
        pass

    def end(self, step: int | None = None) -> None:
        raise _Ended


def held_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, loader: Iterable[Any], **more: Any
) -> tuple[FakeChild, list[int]]:
    """A loop over that loader with a trial in it: what is told, and the epochs' lengths."""
    monkeypatch.setattr(
        torch_optimizer, "_global_optimizer_post_hooks", torch_optimizer._global_optimizer_post_hooks.copy()
    )
    session = Session(Plan(name="it", root=folder))
    session.start()
    kind = vars(torch_dataloader)["_BaseDataLoaderIter"]
    kept = {name: getattr(kind, name) for name in ("__next__", "_reset", "_next_index")}
    child = FakeChild()
    parts = Parts(
        warm_steps=3, observe_steps=20, observe_seconds=0.0, replay_steps=50, replay_seconds=0.0,
        drain_seconds=0.05, drain_most=2.0, storage_seconds=0.0, **more,
    )  # fmt: skip
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    epochs: list[int] = []
    try:
        Trial(child, session, parts)  # type: ignore[arg-type]
        for _ in range(40):
            epochs.append(0)
            for (x,) in loader:
                epochs[-1] += 1
                net(x).sum().backward()
                optimizer.step()
                time.sleep(0.001)
    except _Ended:
        pass
    finally:
        for name, own in kept.items():
            setattr(kind, name, own)
        session.finish("done")
    return child, epochs


DATA = TensorDataset(torch.arange(74.0).view(37, 2))
PARTS = ["first", "began", "observed", "replay", "batch", "drain", "finished"]


class Unsized(Sampler[int]):
    """Does not say how long it is."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(37))

    def __len__(self) -> int:
        raise NotImplementedError


def test_a_sampler_that_does_not_say_its_length_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an iterable dataset without one is."""
    child, _ = held_in(tmp_path, monkeypatch, DataLoader(DATA, sampler=Unsized()))
    assert [kind for kind, _ in child.told] == PARTS


class Turns:
    """Batches of one loader and of another, by turns."""

    def __iter__(self) -> Iterator[Any]:
        drawn = [iter(DataLoader(DATA)), iter(DataLoader(DATA, batch_size=2))]
        for _ in range(18):
            yield from map(next, drawn)


def test_loaders_that_take_turns_are_not_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held batches of one would leave the other's waiting in what computing is said to take."""
    child, _ = held_in(tmp_path, monkeypatch, Turns())
    assert [kind for kind, _ in child.told] == ["first", "began", "observed", "finished"]
    assert "several loaders feed the steps" in child.told[-1][1]["why"]


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, True)])
def test_epochs_have_no_more_batches_than_they_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, persistent: bool
) -> None:
    """Held batches count as the epoch's own, drained ones are missing from it; and all parts are told of."""
    loader = DataLoader(DATA, num_workers=workers, persistent_workers=persistent)
    child, epochs = held_in(tmp_path, monkeypatch, loader)
    kinds = [kind for kind, _ in child.told]
    assert kinds == PARTS
    assert max(epochs) == 37
    assert epochs[:2] == [37, 37]
    assert min(epochs) >= 1
    told = dict(child.told)
    assert told["replay"]["began"] < told["replay"]["t"]
    assert told["observed"]["draws"] == 20
    assert told["drain"]["batches"] > 0
    assert told["batch"] == {"bytes": 8, "padding": None, "dataset": 37}


class Slow(TensorDataset):
    """A loop waits for its samples."""

    def __getitem__(self, number: int) -> Any:
        time.sleep(0.005)
        return tuple(tensor[number] for tensor in self.tensors)


@pytest.mark.parametrize(
    ("loader", "least", "tried"),
    [
        (DataLoader(Slow(*DATA.tensors)), None, True),
        (DataLoader(Slow(*DATA.tensors), num_workers=1), None, True),
        (DataLoader(Slow(*DATA.tensors)), 1.0, False),
        (
            DataLoader(Slow(*DATA.tensors), collate_fn=lambda some: (torch.stack([x for (x,) in some]),)),
            None,
            False,
        ),
    ],
)
def test_a_loop_that_waits_is_tried_with_its_samples_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: Iterable[Any], least: float | None, tried: bool
) -> None:
    """After all else, and in epochs as long as its own; not where too little would be gained."""
    monkeypatch.setattr(FromMemory, "most", 0.2)
    if least is not None:
        monkeypatch.setattr(trial, "_WORTH_PROBING", least)
    child, epochs = held_in(tmp_path, monkeypatch, loader, device=True)
    assert [kind for kind, _ in child.told] == [*PARTS[:-1], *["from_memory"] * tried, "finished"]
    assert max(epochs) == 37
    if tried:
        told = dict(child.told)
        assert told["from_memory"]["t"] > told["from_memory"]["began"]
