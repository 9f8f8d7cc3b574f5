"""The recorder: sends what the training thread noted to the scribe, twice a second.

Its thread takes the notes as they are, asks the device for the times of the events that have passed, and
waits for the scribe's answer: all else is done in the scribe's own process (`scribe.py`), where it takes
nothing of the interpreter that trains.
"""

import json
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from stoker.watch.account import Account
from stoker.watch.device import Device
from stoker.watch.observer import Observer
from stoker.watch.rehearsal import Rehearsal
from stoker.watch.round import HEAD, Round
from stoker.watch.scribe_process import CODE

_INTERVAL = 0.5
# Rounds from one reading of the counters to the next: about a second.
_SAMPLE_EVERY = 2
# What a note costs is tried out in the first rounds, and then once a minute.
_REHEARSED_ROUNDS = 8
_REHEARSE_EVERY = 120
# Seconds that the end of a run waits for its last round, and that any other round may take.
_PATIENCE = 10.0
_ANSWER = 30.0
# Events that are read at once, and seconds until the next. While they are read the loop waits for the
# interpreter: all of a round's at once took 1.9 ms of CPU beside steps of 10 ms (H200's host).
_BITE = 8
_REST = 0.001
# So many bites a round at most; with more events to read they become larger.
_BITES = 64
_HOME = str(Path(__file__).parents[2])


class Recorder:
    """Has a run's record written as it goes.

    `on_start` is called on its thread after the first round. `live` is the descriptor to draw the live view
    on. `pause` waits for so many seconds and answers whether to end; a benchmark has a clock of its own.
    """

    def __init__(
        self,
        observer: Observer,
        folder: Path,
        *,
        started: float,
        goal: Callable[[], int | None],
        on_start: Callable[[], None] = lambda: None,
        live: int | None = None,
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        self._observer = observer
        self._about: dict[str, Any] = {"folder": str(folder), "started": started, "live": live is not None}
        self._live = live
        self._goal = goal
        self._on_start = on_start
        self._scribe: subprocess.Popen[bytes] | None = None
        self._answer = pickle.dumps(Account(started=started, goal=goal()))
        self._told_about: str | None = None
        self._rounds = 0
        self._greeted = False
        self._closed = False
        self._one_at_a_time = threading.Lock()
        self._stop = threading.Event()
        self._pause = self._stop.wait if pause is None else pause
        self._thread = threading.Thread(target=self._run, name="stoker-recorder", daemon=True)
        self.thread_seconds = 0.0
        self.note_us: float | None = None
        self._failure: str | None = None
        self._device_failure: Exception | None = None

    @property
    def account(self) -> Account:
        """The run as of the last round."""
        return pickle.loads(self._answer)  # type: ignore[no-any-return]

    @property
    def failure(self) -> str | None:
        """Why recording has stopped; None while it goes on."""
        return self._failure or self.account.failure

    def start(self) -> None:
        """Begin."""
        self._about["pid"] = os.getpid()
        try:
            self._scribe = subprocess.Popen(
                [sys.executable, "-P", "-c", CODE, json.dumps(self._about), _HOME, *_path()],
                bufsize=0,  # a forked worker must not have something to flush
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL if self._live is None else self._live,
            )
            if os.name == "posix":
                # It leaves the family at once: no child that the script could meet.
                self._scribe.wait(_ANSWER)
                for pipe in (self._scribe.stdin, self._scribe.stdout):
                    assert pipe is not None
                    os.set_blocking(pipe.fileno(), False)
        except Exception as error:  # noqa: BLE001  # an odd interpreter or path must not end the run
            self._fail(error)
            return
        self._thread.start()

    def stop(self) -> None:
        """End after a last round, with everything that can still be read."""
        self._stop.set()
        if not self._thread.ident:
            return
        self._thread.join(timeout=_PATIENCE)
        if self._thread.is_alive():
            self._failure = f"recording stopped: the last round has not ended in {_PATIENCE:.0f} s"
        else:
            self._close()

    def exchange(self, *, last: bool = False) -> None:
        """Send a round now, and wait for the account of it."""
        if os.getpid() != self._about.get("pid"):  # before the lock, which a fork may have copied locked
            return
        with self._one_at_a_time:
            scribe = self._scribe
            if scribe is None or self._failure is not None or self._closed:
                return
            assert scribe.stdin is not None
            assert scribe.stdout is not None
            try:
                with _held_sigpipe():
                    _send(scribe.stdin.fileno(), self._round(last=last).to_bytes())
                size = HEAD.unpack(_receive(scribe.stdout.fileno(), HEAD.size))[0]
                self._answer = _receive(scribe.stdout.fileno(), size)
            except BrokenPipeError:
                self._fail(ChildProcessError("the process that writes the record has ended"))
            except Exception as error:  # noqa: BLE001  # the run must go on; the summary and the record tell
                self._fail(error)
            except BaseException as error:  # Ctrl-C: its answer would be taken for the next one's
                self._fail(error)
                raise
            self._rounds += 1

    def _run(self) -> None:
        rehearsal = Rehearsal()
        while not self._pause(_INTERVAL):
            if self._rounds < _REHEARSED_ROUNDS or not self._rounds % _REHEARSE_EVERY:
                rehearsal.run()
                self.note_us = rehearsal.note_us
            self.exchange()
            if not self._greeted:
                self._greeted = True
                self._on_start()
            self.thread_seconds = time.thread_time()
        if self.note_us is None:  # over before the first round
            rehearsal.run()
            self.note_us = rehearsal.note_us
        self._let_device_end()
        self.exchange(last=True)
        if self._device_failure is not None:
            self._fail(self._device_failure)

    def _let_device_end(self) -> None:
        """Wait for the device, so that the last steps have their times."""
        device = self._observer.device
        if device is not None and self._observer.events.marks:
            try:
                device.synchronize()
            except Exception as error:  # noqa: BLE001  # that is the run's affair, not its end
                self._device_failure = error

    def _round(self, *, last: bool) -> Round:
        observer = self._observer
        notes = observer.notes
        # Notes before what other threads drew, loaders after both: none may be told of later than its draw.
        taken = notes[:]
        del notes[: len(taken)]
        aside, told = _drain(observer.aside), _drain(observer.told)
        about = self._describe()
        marks, pairs = self._read_events(rest=0.0 if last else _REST)
        counted = last or not self._rounds % _SAMPLE_EVERY
        return Round(
            notes=taken,
            aside=aside,
            told=told,
            marks=marks,
            pairs=pairs,
            unix_less_clock=time.time() - time.perf_counter_ns() / 1e9,
            about=about,
            counters={"allocator": _allocator(observer.device)} if counted else None,
            last=last,
        )

    def _read_events(self, *, rest: float) -> tuple[list[float], list[float]]:
        """The device's times since the last round, in small bites with a rest after each.

        A device that has failed tells no more: the steps from there on have the host's clock alone.
        """
        events = self._observer.events
        marks: list[float] = []
        bite = max(_BITE, len(events.marks) // _BITES)
        while self._device_failure is None:
            with self._observer.asking:
                if self._observer.capturing:
                    return marks, []
                try:
                    taken = events.take_marks(bite)
                    marks += taken
                    if len(taken) < bite:
                        return marks, events.take_pairs()
                except Exception as error:  # noqa: BLE001  # the notes of this round are good; told at the end
                    self._device_failure = error
            time.sleep(rest)
        events.forget()
        return marks, []

    def _describe(self) -> str | None:
        """What is known of the loaders, the goal and the thread that trains; None where nothing changed."""
        loaders = [
            {
                "id": loader.id,
                "name": loader.name,
                "settings": loader.settings,
                "length": loader.length,
                "workers": loader.workers,
            }
            for loader in list(self._observer.loaders.all)
        ]
        known = {"goal": self._goal(), "thread": self._observer.native, "loaders": loaders}
        about = json.dumps(known, default=str)
        if about == self._told_about:
            return None
        self._told_about = about
        return about

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = f"recording stopped: {type(error).__name__}: {error}"
        self._observer.close()
        self._close()

    def _close(self) -> None:
        scribe, self._closed = self._scribe, True
        if scribe is None:
            return
        for pipe in (scribe.stdin, scribe.stdout):
            if pipe is not None:
                pipe.close()
        if os.name != "posix":
            scribe.wait()


@contextmanager
def _held_sigpipe() -> Iterator[None]:
    """A script may have asked to die of a broken pipe; not of this one."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        yield
    finally:
        if signal.SIGPIPE not in before and signal.SIGPIPE in signal.sigpending():
            signal.sigtimedwait({signal.SIGPIPE}, 0) if hasattr(signal, "sigtimedwait") else None
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _path() -> list[str]:
    """Where this process finds modules; entries may be anything."""
    return [entry for entry in sys.path if isinstance(entry, str)]


def _await(descriptor: int, event: int) -> None:
    """Wait until a pipe can be used. Blocking ones, where nothing can be polled, wait by themselves."""
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(_ANSWER * 1e3):
        raise TimeoutError(f"the process that writes the record has not answered in {_ANSWER:.0f} s")


def _send(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        if os.name == "posix":
            _await(descriptor, select.POLLOUT)
        left = left[os.write(descriptor, left) :]


def _receive(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if os.name == "posix":
            _await(descriptor, select.POLLIN)
        piece = os.read(descriptor, size - len(data))
        if not piece:
            raise BrokenPipeError
        data += piece
    return data


def _drain(waiting: deque[Any]) -> list[Any]:
    """All that is there; who adds goes on adding."""
    return [waiting.popleft() for _ in range(len(waiting))]


def _allocator(device: Device | None) -> dict[str, int] | None:
    """The CUDA allocator's counters, on the model's device; None where there are none.

    This thread has a current device of its own, which is none of the script's affair.
    """
    if "torch.cuda" not in sys.modules or not torch.cuda.is_initialized():
        return None
    try:
        # As torch.cuda.memory_stats() without its flattening of some 200 names, which takes most of its time.
        stats = torch.cuda.memory_stats_as_nested_dict(None if device is None else device.index)
    except RuntimeError:  # another allocator was plugged in
        return None
    return {
        "allocated": stats["allocated_bytes"]["all"]["current"],
        "allocated_peak": stats["allocated_bytes"]["all"]["peak"],
        "reserved": stats["reserved_bytes"]["all"]["current"],
        "reserved_peak": stats["reserved_bytes"]["all"]["peak"],
        "retries": stats["num_alloc_retries"],
        "ooms": stats["num_ooms"],
        "segments": stats["segment"]["all"]["allocated"],
        "device_allocs": stats["num_device_alloc"],
    }
