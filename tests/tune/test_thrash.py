"""A trial on a card whose memory is full again and again: ended soon, however long its steps take."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch

from stoker.tune import measure


class Ended(Exception):
    """The trial's process goes no further."""


class FakeChild:
    """What a trial says to the one that holds it."""

    rank = 0
    folder = Path()

    def __init__(self) -> None:
        self.said: list[tuple[str, dict[str, Any]]] = []

    def report(self, kind: str, /, **body: Any) -> None:
        self.said.append((kind, body))

    def progress(self, step: int) -> None:
        """Of no matter here."""

    def end(self, step: int | None = None) -> NoReturn:
        raise Ended(step)


def steps_until_ended(monkeypatch: pytest.MonkeyPatch, *, seconds: float, most: int) -> int | None:
    """After how many steps of so many seconds a trial ends that ran out of memory from the first one on."""
    now = [0.0]
    monkeypatch.setattr(measure, "time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0]))
    monkeypatch.setattr(measure, "_retries", lambda: 4)
    child: Any = FakeChild()
    session: Any = SimpleNamespace(finish=lambda outcome: None, account=SimpleNamespace(loaders=[]))
    trial = measure._Measuring(child, session, {"ranks": 1, "settings": {}, "seconds": 1e9})
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    for number in range(1, most + 1):
        now[0] += seconds
        try:
            trial._stepped(optimizer)
        except Ended:
            assert ("thrash", {"retries": 4}) in child.said
            return number
    return None


@pytest.mark.parametrize(("seconds", "after"), [(5.0, 1), (0.4, 3), (0.01, 50)])
def test_thrashing_ends_a_trial_within_a_second_or_a_step(
    monkeypatch: pytest.MonkeyPatch, seconds: float, after: int
) -> None:
    """By the step where one takes longer than a second; of short steps by the fiftieth at the latest."""
    assert steps_until_ended(monkeypatch, seconds=seconds, most=60) == after
