"""Staging as it goes: a bar with rate and time left on a terminal, a plain line now and then elsewhere."""

import contextlib
import sys
import threading
import time
from typing import Any, Protocol, TextIO

from stoker.facts.words import ago, size

_EVERY_S = 10.0


class Cancelled(Exception):
    """Somebody has ended the run: raised in the threads that copy, and never further."""


class Progress:
    """What is to be done and what has been, counted by many threads, until it is cancelled."""

    def __init__(self, *, files: int, bytes: int) -> None:
        self.files, self.bytes = files, bytes
        self.files_done = self.bytes_done = 0
        self.cancelled = threading.Event()
        self._started = time.monotonic()
        self._lock = threading.Lock()

    def add_file(self) -> None:
        """One more is done."""
        with self._lock:
            self.files_done += 1

    def begin(self) -> "Attempt":
        """A file's bytes begin to come."""
        return Attempt(self)

    def add_bytes(self, count: int) -> None:
        """So many more have come."""
        with self._lock:
            self.bytes_done += count

    @property
    def rate(self) -> float | None:
        """Bytes a second since the start, stalls included; None before the first."""
        seconds = time.monotonic() - self._started
        return self.bytes_done / seconds if self.bytes_done and seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """At that rate."""
        return None if self.rate is None else max(0, self.bytes - self.bytes_done) / self.rate


class Attempt:
    """The bytes of one try at one file, so that they can be taken back."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._got = 0

    def add(self, count: int) -> None:
        """So many more have come; Cancelled if nobody wants them any more."""
        self._got += count
        self._progress.add_bytes(count)
        if self._progress.cancelled.is_set():
            raise Cancelled

    def take_back(self) -> None:
        """The try failed."""
        self._progress.add_bytes(-self._got)
        self._got = 0


class View(Protocol):
    """Where staging is shown."""

    def busy(self, doing: str) -> contextlib.AbstractContextManager[Any]:
        """Something takes a while, nobody knows how long."""

    def start(self, progress: Progress) -> None:
        """Copying begins."""

    def tick(self, progress: Progress) -> None:
        """Something may have changed."""

    def finish(self, progress: Progress) -> None:
        """Copying has ended."""

    def say(self, text: str) -> None:
        """A line of its own."""


class SilentView:
    """Shows nothing."""

    def busy(self, doing: str) -> contextlib.AbstractContextManager[Any]:
        """Something takes a while."""
        return contextlib.nullcontext()

    def start(self, progress: Progress) -> None:
        """Copying begins."""

    def tick(self, progress: Progress) -> None:
        """Something may have changed."""

    def finish(self, progress: Progress) -> None:
        """Copying has ended."""

    def say(self, text: str) -> None:
        """A line of its own."""


class LineView(SilentView):
    """Plain lines, for logs."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._next = 0.0

    def start(self, progress: Progress) -> None:
        """Tell what lies ahead."""
        self._next = time.monotonic() + _EVERY_S
        self.say(f"staging {progress.files:,} files, {size(progress.bytes)} to copy")

    def tick(self, progress: Progress) -> None:
        """A line every ten seconds."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_S
            left = progress.seconds_left
            self.say(
                f"{progress.files_done:,} of {progress.files:,} files, {size(progress.bytes_done)} of "
                f"{size(progress.bytes)}, {size(progress.rate)}/s, {ago(left)} left"
            )

    def say(self, text: str) -> None:
        """A line of its own."""
        self._out.write(f"stoker: {text}\n")
        self._out.flush()


class BarView(SilentView):
    """A bar on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as Bar

        self._console = Console(stderr=True)
        self._columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._make = Bar
        self._bar: Bar | None = None

    def busy(self, doing: str) -> contextlib.AbstractContextManager[Any]:
        """A spinner."""
        return self._console.status(doing)

    def start(self, progress: Progress) -> None:
        """Draw the bar."""
        self._bar = self._make(*self._columns, console=self._console)
        self._bar.add_task("staging", total=progress.bytes)
        self._bar.start()
        self.tick(progress)

    def tick(self, progress: Progress) -> None:
        """Move it on."""
        if self._bar is not None:
            self._bar.update(
                self._bar.task_ids[0],
                completed=progress.bytes_done,
                description=f"{progress.files_done:,} of {progress.files:,} files",
            )

    def finish(self, progress: Progress) -> None:
        """Leave it as it stands."""
        if self._bar is not None:
            self.tick(progress)
            self._bar.stop()
            self._bar = None

    def say(self, text: str) -> None:
        """A line of its own."""
        self._console.print(f"stoker: {text}", highlight=False, markup=False, soft_wrap=True)


def view_for(*, quiet: bool) -> View:
    """The view that suits where stderr goes."""
    if quiet:
        return SilentView()
    return BarView() if sys.stderr.isatty() else LineView()
