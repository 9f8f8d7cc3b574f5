"""What a run has come to so far: what the live view, the summary and the trainers' loggers read."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.watch.tally import Making, Tally


@dataclass(frozen=True, kw_only=True)
class LoaderAccount:
    """A loader, and what became of its batches."""

    id: int
    name: str
    length: int | None
    settings: Mapping[str, Any]
    fed: int = 0
    evaluated: int = 0
    drawn: int = 0
    epochs: int = 0
    trains: bool = True
    background: bool = False

    def to_json(self) -> dict[str, Any]:
        """The loader as `rank.json` holds it."""
        return {
            "id": self.id,
            "name": self.name,
            "length": self.length,
            "trains": self.trains,
            "fed": self.fed,
            "evaluated": self.evaluated,
            "epochs": self.epochs,
            "background": self.background,
            **self.settings,
        }


@dataclass(frozen=True, kw_only=True)
class Account:
    """One rank's run until now.

    `steps` are those that have ended, also where the device has still to pass them; those in the tally it
    has. `updates` are more where several optimizers take turns.
    """

    started: float = field(default_factory=time.time)
    goal: int | None = None
    steps: int = 0
    updates: int = 0
    notes: int = 0
    tally: Tally = field(default_factory=Tally)
    making: Mapping[int, Making] = field(default_factory=dict)
    loaders: Sequence[LoaderAccount] = ()
    latest: Mapping[str, Any] = field(default_factory=dict)
    scribe_pid: int | None = None
    cpu_seconds: float = 0.0
    failure: str | None = None

    def remaining_steps(self) -> float | None:
        """Steps left: of the total that was told, else of this epoch; None where neither is known."""
        if self.goal is not None:
            return max(0, self.goal - self.steps)
        trained = [loader for loader in self.loaders if loader.fed]
        if not trained or not self.steps:
            return None
        loader = trained[-1]
        if loader.length is None:
            return None
        draws_per_step = max(1.0, loader.fed / self.steps)
        return max(0, loader.length - loader.drawn) / draws_per_step
