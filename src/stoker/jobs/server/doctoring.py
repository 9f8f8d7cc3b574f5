"""The doctor's visits: `stoker doctor` on a job's record, in a child, one at a time."""

import json
import queue
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from stoker.errors import MoveRefused
from stoker.feed.whole_file import whole_file
from stoker.jobs.folders import JobFolder
from stoker.jobs.job import Job
from stoker.jobs.verdict import start_doctor

_LONGEST_S = 300.0
_MOST_WAITING = 20
_NAME = "doctor.json"


class Doctor:
    """Who was asked for, who is seen now, and how it ended."""

    def __init__(self, root: Path, changed: Callable[[str], None]) -> None:
        self._root, self._changed = root, changed
        self._waiting: queue.Queue[Job | None] = queue.Queue(_MOST_WAITING)
        self._asked: set[str] = set()
        self._child: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="stoker-doctor", daemon=True)
        self._thread.start()

    def ask(self, job: Job) -> None:
        """Visit a job; MoveRefused where it has no record yet, or too many wait."""
        if not any((self._record(job, one.number) / "run.json").exists() for one in job.attempts):
            raise MoveRefused(
                f"job {job.id} has no record yet: the doctor looks at what a run left, after its first steps"
            )
        if job.id in self._asked:
            return
        self._asked.add(job.id)
        try:
            self._waiting.put_nowait(job)
        except queue.Full:
            self._asked.discard(job.id)
            raise MoveRefused(f"{_MOST_WAITING} jobs wait for the doctor already: ask again later") from None

    def told(self, id_: str) -> str | None:
        """`running`, `done`, `failed: why`, or None where it was never asked."""
        if id_ in self._asked:
            return "running"
        try:
            outcome: str = json.loads(self._place(id_).read_text())["outcome"]
        except FileNotFoundError:
            return None
        return outcome

    def has_report(self, id_: str) -> bool:
        """Whether there is a report to show."""
        return JobFolder(root=self._root, id=id_).report.is_file()

    def close(self) -> None:
        """End the visit that goes on; those that wait are forgotten."""
        self._is_closed = True
        if self._child is not None:
            self._child.kill()
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._waiting.put(None)
        self._thread.join(10)

    def _place(self, id_: str) -> Path:
        return JobFolder(root=self._root, id=id_).path / _NAME

    def _record(self, job: Job, number: int) -> Path:
        return JobFolder(root=self._root, id=job.id).record(number)

    def _work(self) -> None:
        while (job := self._waiting.get()) is not None:
            try:
                try:
                    self._keep(job.id, self._visit(job))
                finally:
                    self._asked.discard(job.id)
                if not self._is_closed:
                    self._changed(job.id)
            except Exception as error:  # noqa: BLE001 - whatever it is, those that wait are still to be seen
                shown = "".join(traceback.format_exception(error))
                sys.stderr.write(f"stoker: the doctor's visit to job {job.id}: {error}; goes on\n{shown}")

    def _keep(self, id_: str, outcome: str) -> None:
        if self._is_closed or not JobFolder(root=self._root, id=id_).path.is_dir():
            return
        try:
            with whole_file(self._place(id_)) as file:
                file.write(json.dumps({"schema": 1, "outcome": outcome}).encode())
        except OSError as error:  # the next visit is not this one's to hold up
            sys.stderr.write(f"stoker: how the doctor's visit to job {id_} ended cannot be kept: {error}\n")

    def _visit(self, job: Job) -> str:
        records = [self._record(job, one.number) for one in reversed(job.attempts)]
        record = next((one for one in records if (one / "run.json").exists()), None)
        if record is None:
            return "failed: the record is gone"
        report = JobFolder(root=self._root, id=job.id).report
        words = ("--report", str(report), "--json", str(record))
        try:
            self._child = start_doctor(*words, out=subprocess.DEVNULL, errors=subprocess.PIPE)
        except OSError as error:
            return f"failed: no process could be started: {error}"
        try:
            _, raw = self._child.communicate(timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.communicate()
            return f"failed: no verdict within {_LONGEST_S:g} s"
        if self._child.returncode:
            lines = raw.decode(errors="replace").strip().splitlines()
            why = lines[-1].removeprefix("stoker: ") if lines else f"exit code {self._child.returncode}"
            return f"failed: {why}"
        return "done"
