"""The loop with its samples in memory: what is handed out is what a feed would, and only where one could."""

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from stoker.doctor.experiments import from_memory as module
from stoker.doctor.experiments.from_memory import FromMemory, HeldSamples, from_memory
from stoker.doctor.held import RING, Held
from stoker.errors import NotPackable
from stoker.facts import host

SIZE = 3


def batches(count: int = RING) -> list[dict[str, torch.Tensor]]:
    """Samples that are told apart by their numbers."""
    numbers = torch.arange(count * SIZE).view(count, SIZE)
    return [{"x": row.float().view(SIZE, 1) / 2, "label": row} for row in numbers]


def test_all_samples_of_all_batches_come_equally_often() -> None:
    """Drawn at random, each with its own label, and anew in every epoch."""
    held = HeldSamples(batches())
    firsts = []
    for _ in range(2):
        came: Counter[int] = Counter()
        for at in range(module._MOST_BATCHES):
            batch = held.next()
            assert batch["x"].view(-1).tolist() == (batch["label"] / 2).tolist()
            came.update(batch["label"].tolist())
            if not at:
                firsts.append(batch["label"].tolist())
        assert came == dict.fromkeys(range(RING * SIZE), module._MOST_BATCHES // RING)
    held.close()
    assert firsts[0] != firsts[1]


def test_large_batches_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no more memory is taken than was set; but one batch there must be."""
    size = sum(leaf.nbytes for leaf in batches()[0].values())
    for fitting, most in ((2, 2 * size), (1, size // 2)):
        monkeypatch.setattr(module, "_MOST_BYTES", most)
        held = HeldSamples(batches())
        came = {number for _ in range(fitting) for number in held.next()["label"].tolist()}
        held.close()
        assert came == set(range(fitting * SIZE))


@pytest.mark.parametrize(
    "kept",
    [
        [torch.zeros(2, 1), torch.zeros(3, 1)],
        [{"x": torch.zeros(2, 1), "lengths": torch.zeros(3)}],
        [torch.tensor(1.0)],
        [["one", "two"]],
        [{"x": [torch.zeros(1, 1)] * boxes} for boxes in (2, 3)],
        [torch.zeros(1, module._MOST_OF_SAMPLE + 1, dtype=torch.uint8)],
    ],
)
def test_batches_that_are_no_rows_of_samples_are_refused(kept: list[Any]) -> None:
    """Their samples cannot be told apart."""
    with pytest.raises(NotPackable):
        HeldSamples(kept)


@pytest.mark.parametrize(("free", "fitting"), [(None, 64), (0, None), (1 << 40, 64), (4 * 4 * 36, 4)])
def test_little_shared_memory_is_left_to_the_scripts_workers(
    monkeypatch: pytest.MonkeyPatch, free: int | None, fitting: int | None
) -> None:
    """Their batches come through it, and one that finds no room there ends the script."""
    monkeypatch.setattr(host, "read", lambda: SimpleNamespace(shm_free_bytes=free))
    if fitting is None:
        with pytest.raises(NotPackable, match="0 are free in /dev/shm"):
            module._Samples(batches())
    else:
        assert len(module._Samples(batches())) == fitting * SIZE


class Stream(IterableDataset[Any]):
    """Its samples have no numbers."""

    def __iter__(self) -> Iterator[Any]:
        return iter(torch.zeros(8, 1))


def ring(kept: list[Any]) -> Held:
    held = Held()
    for batch in kept:
        held.keep(batch)
    return held


def drawn(dataset: Dataset[Any] = TensorDataset(torch.zeros(8, 1)), **options: Any) -> Any:  # noqa: B008
    return iter(DataLoader(dataset, **options))


@pytest.mark.parametrize(
    ("held", "iterator", "told_of"),
    [
        (ring(batches()), drawn(batch_size=2), "from_memory"),
        (ring(batches()), drawn(batch_size=2, collate_fn=lambda some: default_collate(some)), None),
        (ring(batches()), drawn(batch_size=None), None),
        (ring(batches()), drawn(Stream(), batch_size=2), None),
        (ring([["one"]] * RING), drawn(batch_size=2), "unheld"),
        (ring(batches(RING - 1)), drawn(batch_size=2), None),
    ],
)
def test_a_script_that_puts_batches_together_itself_is_not_tried(
    held: Held, iterator: Any, told_of: str | None
) -> None:
    """A feed would put them together in its way too, or not hold them: what that takes is not known."""
    there = told_of == "from_memory"
    told: list[dict[str, Any]] = []
    found = list(from_memory(held, iterator, lambda kind, **body: told.append({"kind": kind, **body})))
    assert [type(one) for one in found] == [FromMemory] * there
    for condition in found:
        condition.begin()
        assert condition.held is not None
        assert condition.held.next()["x"].shape == (SIZE, 1)
        condition.tell(0.0, 1)
        condition.leave()
    assert [one["kind"] for one in told] == [told_of] * (told_of is not None)
    assert all(one["began"] <= one["t"] for one in told if there)


def test_whatever_fails_is_told_and_does_not_end_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made in the midst of a step of the script's own."""
    monkeypatch.setattr(module, "HeldLoader", lambda *_, **__: 1 / 0)
    told: list[str] = []
    assert not list(from_memory(ring(batches()), drawn(batch_size=2), lambda _, why: told.append(why)))
    assert told == ["ZeroDivisionError: division by zero"]
