"""`stoker.diagnose()`: a verdict on a loop of this process, from its record, in a notebook or at a prompt.

Nothing here steps: weights, the order of samples and the generators are as they were.
"""

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from stoker.doctor import report, words
from stoker.doctor.examination import Diagnosis, examine_record
from stoker.errors import UsageError
from stoker.scratch import Message
from stoker.watch import Record, Watch
from stoker.watch.hooks import unobserved
from stoker.watch.session import Session
from stoker.watch.watch import latest

# For the drain: so long after the batches that lay ready, and so many, but no longer than the most.
_SECONDS, _BATCHES, _MOST = 2.0, 8, 6.0


@dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosed:
    """A diagnosis that draws itself in a notebook, and is text at a prompt."""

    diagnosis: Diagnosis

    def to_json(self) -> dict[str, Any]:
        """Return the same object as `stoker doctor --json`."""
        return self.diagnosis.to_json()

    def markdown(self) -> str:
        """The report for an issue tracker."""
        return report.markdown_of(self.diagnosis)

    def write(self, path: str | Path | None = None) -> Path:
        """Write the report as HTML, or Markdown by its name; beside the record unless told otherwise."""
        if path is not None:
            report.check_place(Path(path))
        return report.write(self.diagnosis, None if path is None else Path(path))

    def __repr__(self) -> str:
        text, kept = StringIO(), random.getstate()
        # In a kernel a Console draws in the cell, unless it is told not to.
        words.show(self.diagnosis, Console(file=text, width=110, force_jupyter=False))
        random.setstate(kept)  # rich draws numbers for its links
        return text.getvalue().strip()

    def _repr_html_(self) -> str:
        return report.inline(self.diagnosis)


def diagnose(run: Watch | str | Path | None = None, *, drain: "DataLoader[Any] | None" = None) -> Diagnosed:
    """Say what holds a loop up, from what was observed of it: in this process now or last, or in a record.

    With `drain=loader` some batches are drawn from a copy of that loader, for the rate that it has alone. In
    a notebook the result draws itself.
    """
    session = _session(run) if run is None or isinstance(run, Watch) else None
    record = Record.open(run) if session is None else None  # type: ignore[arg-type]
    held = () if drain is None else (_drain(drain),)
    if session is not None:
        if not session.finished:
            session.describe()  # what it has until now is on disk then
            if session.observer.here():
                session.observer.end_pause()  # what a diagnosis takes is no step's
        record = Record.open(session.folder)
    assert record is not None
    return Diagnosed(diagnosis=examine_record(record, held))


def _session(run: Watch | None) -> Session:
    session = latest() if run is None else run._session
    if session is None:
        raise UsageError(
            "nothing has been observed in this process yet: iterate over stoker.Watch(loader) for some steps "
            "first, or name a record: stoker.diagnose('latest')"
        )
    return session


def _drain(loader: "DataLoader[Any]") -> Message:
    """What a loader gives with nobody computing, past what lies ready at first."""
    if not isinstance(loader, DataLoader):
        raise UsageError(f"drain takes a DataLoader, not {type(loader).__name__}: leave it out, or give that")
    if isinstance(loader.dataset, IterableDataset) and not loader.num_workers:
        raise UsageError(
            "this loader reads a stream in this process, and what is drawn from it would be missing in "
            "training: leave drain out, or give the loader workers"
        )
    ready = loader.num_workers * ((loader.prefetch_factor or 0) + 1)
    drawn, seconds, began = 0, 0.0, time.perf_counter()
    with _generators_kept(loader), unobserved():
        batches = iter(_twin(loader))
        while time.perf_counter() - began < _MOST and (seconds < _SECONDS or drawn - ready < _BATCHES):
            before = time.perf_counter()
            try:
                next(batches)
            except StopIteration:
                break
            drawn += 1
            if drawn > ready:
                seconds += time.perf_counter() - before
        del batches  # and its workers with it
    body = {"batches": max(0, drawn - ready), "seconds": seconds}
    return Message(kind="drain", body=body, at=time.perf_counter() - began)


def _twin(loader: "DataLoader[Any]") -> "DataLoader[Any]":
    """The same loader with an iterator of its own: a loop that stands in the other goes on undisturbed."""
    twin = copy(loader)
    twin.__dict__["_iterator"] = None
    return twin


@contextmanager
def _generators_kept(loader: "DataLoader[Any]") -> Iterator[None]:
    """Random numbers go on afterwards as if nothing had been drawn."""
    numpy = sys.modules.get("numpy")
    held = [one for part in _parts_of(loader) for one in vars(part).values()]
    own = [(one, state) for one in held if (state := _state_of(one, numpy)) is not None]
    kept = torch.get_rng_state(), random.getstate(), None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(kept[0])
        random.setstate(kept[1])
        if numpy is not None:
            numpy.random.set_state(kept[2])
        for generator, (restore, state) in own:
            restore(generator, state)


def _parts_of(loader: "DataLoader[Any]") -> list[Any]:
    """The loader, what it takes samples by, and the samplers and datasets that those hold in turn."""
    found: list[Any] = []
    left: list[Any] = [loader, loader.sampler, loader.batch_sampler, loader.dataset, loader.collate_fn]
    while left:
        one = left.pop()
        if hasattr(one, "__dict__") and not any(one is known for known in found):
            found.append(one)
            left += [held for held in vars(one).values() if isinstance(held, Sampler | Dataset)]
    return found


def _state_of(one: Any, numpy: Any) -> tuple[Callable[[Any, Any], object], Any] | None:
    """What a generator of random numbers stands at, and how it is put back there; None of what is none."""
    if isinstance(one, torch.Generator):
        return torch.Generator.set_state, one.get_state()
    if isinstance(one, random.Random):
        return random.Random.setstate, one.getstate()
    if numpy is not None and isinstance(one, numpy.random.RandomState):
        return numpy.random.RandomState.set_state, one.get_state()
    if numpy is not None and isinstance(one, numpy.random.Generator):
        return lambda it, state: setattr(it.bit_generator, "state", state), one.bit_generator.state
    return None
