"""The scribe: makes a run's record, and an account of it, of what the training process notes.

It has a process of its own (`scribe_process.py`), and imports no torch.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from stoker.facts.sample import Sampler
from stoker.watch.account import Account, LoaderAccount
from stoker.watch.clock import DeviceClock
from stoker.watch.part import meetings_of, ready, step_of
from stoker.watch.phases import Batch
from stoker.watch.reader import Reader
from stoker.watch.record import LineWriter
from stoker.watch.round import Round
from stoker.watch.tally import Making, Tally

# Batches of a round that the summary's means are made of: parsing one takes 8 us, writing it 0.5.
_LOOKED_AT = 2


class Scribe:
    """Turns rounds into the record's lines, and into an account of the run."""

    def __init__(self, folder: Path, *, pid: int, started: float) -> None:
        self._writer = LineWriter(folder)
        self._sampler = Sampler(own=pid)
        self._started = started
        self._reader = Reader()
        self._clock = DeviceClock()
        self._tally = Tally()
        self._making: dict[int, Making] = {}
        self._known: list[dict[str, Any]] = []
        self._workers: list[int] = []
        self._thread: int | None = None
        self._goal: int | None = None
        self._steps = 0
        self._paused = 0.0
        self._latest: dict[str, Any] = {}
        self._failure: str | None = None

    def take(self, given: Round) -> None:
        """Write down one more round."""
        if self._failure is not None:
            return
        try:
            self._read(given)
            self._write_steps()
            self._write_batches(given)
            if given.counters is not None:
                read = self._sampler.read(self._workers, thread=self._thread, last=given.last)
                self._latest = {**read, **given.counters}
                self._writer.add("resources", json.dumps(self._latest))
            self._writer.flush()
        except Exception as error:  # noqa: BLE001  # the run must go on; the summary and the record tell
            self._failure = f"recording stopped: {type(error).__name__}: {error}"

    def finish(self) -> None:
        """No more rounds come. Steps that the device never passed are told by the host's clock."""
        if self._failure is None:
            self._reader.finish()
            self._write_steps()
            for part in (part for parts in self._reader.done for part in parts):
                part.marks.clear()
            self._write_steps()
        self._writer.close()
        self._sampler.close()

    def account(self) -> Account:
        """The run so far."""
        reader = self._reader
        return Account(
            started=self._started,
            goal=self._goal,
            steps=self._steps + len(reader.done),
            updates=reader.updates,
            notes=reader.read_notes,
            tally=self._tally,
            making=self._making,
            loaders=[
                LoaderAccount(
                    **known,
                    fed=loader.fed,
                    evaluated=loader.evaluated,
                    drawn=loader.drawn,
                    epochs=loader.epochs,
                    trains=loader.trains,
                    background=loader.background,
                )
                for known, loader in zip(self._known, reader.loaders, strict=True)
            ],
            latest=self._latest,
            scribe_pid=os.getpid(),
            cpu_seconds=time.process_time(),
            failure=self._failure or self._writer.failure,
        )

    def _read(self, given: Round) -> None:
        if given.about is not None:
            about = json.loads(given.about)
            self._goal, self._thread = about["goal"], about.get("thread")
            self._workers = [pid for loader in about["loaders"] for pid in loader.pop("workers")]
            self._known = about["loaders"]
            self._reader.loaders.know(len(self._known))
        self._clock.pass_marks(given.marks)
        self._clock.pass_pairs(given.pairs)
        self._reader.read(given.notes, given.aside, given.unix_less_clock)

    def _write_steps(self) -> None:
        done, device = self._reader.done, self._reader.device
        seen = bool(self._reader.loaders)
        while done and ready(done[0], self._clock):
            parts = done.popleft()
            for meeting in meetings_of(parts, self._steps, device=device, clock=self._clock):
                self._writer.add("meetings", meeting.to_line())
            step = step_of(parts, self._steps, loaders_seen=seen, device=device, clock=self._clock)
            self._steps += 1
            self._tally.add(step)
            self._writer.add("steps", step.to_line())
        paused = self._reader.paused
        if self._tally.began is not None:
            self._tally.began += paused - self._paused
            self._paused = paused

    def _write_batches(self, given: Round) -> None:
        for count, (loader, told) in enumerate(given.told):
            line = _batch_line(loader, told)
            self._writer.add("batches", line)
            if count < _LOOKED_AT:
                batch = Batch(**json.loads(line))
                self._making.setdefault(batch.loader, Making()).add(batch)


def _batch_line(loader: int, told: list[Any]) -> str:
    """A batch as one line of `batches.jsonl` holds it: the worker wrote most of it (`workers.Told`)."""
    _, text, handoff, pin, handoff_cpu = told
    return (
        f'{{"loader":{loader},{text.decode()},"handoff":{_seconds(handoff)},'
        f'"handoff_cpu":{_seconds(handoff_cpu)},"pin":{_seconds(pin)}}}'
    )


def _seconds(nanoseconds: int | None) -> str:
    return "null" if nanoseconds is None else f"{nanoseconds / 1e9:.7f}"
