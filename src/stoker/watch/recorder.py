"""The recorder's thread: turns what the training thread left behind into lines, twice a second.

It takes small bites and pauses after each. In one go it would hold the training thread up for as long as the
whole round takes, since that thread gives the interpreter away at every operation; a pause gives it back
while the thread is short of the device's next work. What the recorder costs in CPU time is measured and told.
"""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from stoker.watch.clock import DeviceClock
from stoker.watch.notes import WIDTH
from stoker.watch.observer import Observer
from stoker.watch.part import ready, step_of
from stoker.watch.phases import Batch
from stoker.watch.record import Writer
from stoker.watch.rehearsal import NOTES as _NOTES
from stoker.watch.rehearsal import Rehearsal
from stoker.watch.tally import Making, Tally
from stoker.watch.workers import line_of

_INTERVAL = 0.5
# Rounds from one reading of the counters to the next: about a second.
_SAMPLE_EVERY = 2
# What a note costs is tried out in the first rounds, and then once a minute.
_REHEARSED_ROUNDS = 8
_REHEARSE_EVERY = 120
# Seconds of work in one bite, and of the pause after it. With a bite for each step (14 us of work) the
# recorder took 67 us of CPU a step, with these 30 (steps of 1.5 ms, 2 cores).
_BITE = 0.0002
_BITE_PAUSE = 0.001
# Notes read at once within a bite: two steps' at a time take 1.3 us a step more, eight 0.4 less (2 cores).
_READ = 4 * _NOTES
# Steps that wait to be read for which a bite becomes twice as long, and so on.
_BACKLOG = 2000
# Seconds that the end of a run waits for the round under way.
_PATIENCE = 10.0
# Batches of a round that the summary's means are made of: parsing one takes 8 us, writing it 0.5.
_LOOKED_AT = 2


class Recorder:
    """Writes a run's record as it goes.

    `on_start` is called on its thread after the first round, `on_tick` after each round (the live view).
    `pause` waits for so many seconds and answers whether to end; a benchmark has a clock of its own.
    """

    def __init__(
        self,
        observer: Observer,
        writer: Writer,
        tally: Tally,
        sample: Callable[[], dict[str, Any]],
        on_start: Callable[[], None],
        on_tick: Callable[[], None],
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        self._observer = observer
        self._writer = writer
        self._tally = tally
        self._sample = sample
        self._on_start = on_start
        self._on_tick = on_tick
        self._steps = 0
        self._clock = DeviceClock()
        self._greeted = False
        self._rounds = 0
        self._stop = threading.Event()
        self._pause = self._stop.wait if pause is None else pause
        self._thread = threading.Thread(target=self._run, name="stoker-recorder", daemon=True)
        self.cpu_seconds = 0.0
        self.note_us: float | None = None
        self.latest: dict[str, Any] = {}
        self.making: dict[int, Making] = {}
        self.failure: str | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after a last round, with everything that can still be read."""
        self._stop.set()
        self._thread.join(timeout=_PATIENCE)
        if self._thread.is_alive():  # it may still write: nobody else does
            self.failure = f"recording stopped: a round has not ended in {_PATIENCE:.0f} s"
            return
        if self.note_us is None:  # over before the first round
            rehearsal = Rehearsal()
            rehearsal.run()
            self.note_us = rehearsal.note_us
        try:
            self._observer.reader.finish()
            self.write_round(final=True)
        except Exception as error:  # noqa: BLE001  # a device that has failed is the run's affair, not its end
            self._fail(error)

    def _run(self) -> None:
        try:
            rehearsal = Rehearsal()
            while not self._pause(_INTERVAL):
                if self._rounds < _REHEARSED_ROUNDS or not self._rounds % _REHEARSE_EVERY:
                    rehearsal.run()
                    self.note_us = rehearsal.note_us
                self.write_round()
                if not self._greeted:
                    self._greeted = True
                    self._on_start()
                self.cpu_seconds = time.thread_time()
                self._on_tick()
        except Exception as error:  # noqa: BLE001  # the run must go on; the summary and the record tell
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.failure = f"recording stopped: {type(error).__name__}: {error}"
        self._observer.close()

    def write_round(self, *, final: bool = False) -> None:
        """Make lines of all that is ready, and read the counters where it is time."""
        self._write_steps(final=final)
        self._write_batches()
        self._rounds += 1
        if self._rounds % _SAMPLE_EVERY == 1 or final:
            self.latest = self._sample()
            self._writer.add("resources", json.dumps(self.latest))
        self._writer.flush()

    def _write_steps(self, *, final: bool) -> None:
        reader, notes = self._observer.reader, self._observer.notes
        until = time.perf_counter() + _INTERVAL
        more = True
        while more:
            waiting = len(notes) // WIDTH // _NOTES
            bitten = time.perf_counter() + _BITE * (1 + waiting // _BACKLOG)
            while more and time.perf_counter() < bitten:
                more = reader.read(None if final else _READ)
                with self._observer.asking:
                    if not self._observer.capturing:
                        self._write_done(final=final)
            if more and (time.perf_counter() > until or self._rest()):
                break  # the rest in the next round: this one is flushed first

    def _rest(self) -> bool:
        """Pause after a bite; whether to end. By the plainest sleep where nothing else was asked for."""
        if self._pause != self._stop.wait:
            return self._pause(_BITE_PAUSE)
        time.sleep(_BITE_PAUSE)
        return self._stop.is_set()

    def _write_done(self, *, final: bool) -> None:
        reader = self._observer.reader
        done, device = reader.done, reader.device
        if final and device is not None and done:
            device.synchronize()
        seen = bool(reader.loaders.all)
        while done and ready(done[0]):
            parts = done.popleft()
            step = step_of(parts, self._steps, loaders_seen=seen, device=device, clock=self._clock)
            self._steps += 1
            self._tally.add(step)
            self._writer.add("steps", step.to_line())

    def _write_batches(self) -> None:
        told = self._observer.told
        for count in range(len(told)):
            loader, batch_told = told.popleft()
            line = line_of(loader, batch_told)
            self._writer.add("batches", line)
            if count < _LOOKED_AT:
                batch = Batch(**json.loads(line))
                self.making.setdefault(batch.loader, Making()).add(batch)
