"""Where a job's files lie. Everything that a job writes is under its own folder; ids never leave the root.

ROOT/                     `stoker serve --root` (default: .stoker/jobs)
  jobs.db                   the store, unless it is in PostgreSQL
  dispatcher.lock           one dispatcher at a time
  runs/ID/
    training/                 a script's $STOKER_JOB_FOLDER: checkpoints, metrics.jsonl
    runner.lock               one runner at a time
    attempt-1/
      plan.json                 what its process is to do
      log.txt                   all that it printed
      exit.json                 how it ended; there whole or not at all
      records/record/           the observer's record
    report.html               the doctor's, where it was asked for
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import NoSuchJob

_ID = re.compile(r"[0-9a-f]{12}")
RECORD = "record"


@dataclass(frozen=True, kw_only=True)
class JobFolder:
    """The folder of one job."""

    root: Path
    id: str

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise NoSuchJob(f"no job {self.id!r}: an id has 12 hexadecimal digits")

    @property
    def path(self) -> Path:
        """All of it."""
        return self.root / "runs" / self.id

    @property
    def training(self) -> Path:
        """What the training writes: checkpoints, metrics.jsonl, pictures."""
        return self.path / "training"

    @property
    def lock(self) -> Path:
        """Held by the one runner."""
        return self.path / "runner.lock"

    @property
    def report(self) -> Path:
        """The doctor's page."""
        return self.path / "report.html"

    def attempt(self, number: int) -> Path:
        """The files of one attempt."""
        return self.path / f"attempt-{number}"

    def plan(self, number: int) -> Path:
        """What an attempt's process is to do; written once nothing of an earlier attempt's holds any more."""
        return self.attempt(number) / "plan.json"

    def log(self, number: int) -> Path:
        """All that an attempt printed."""
        return self.attempt(number) / "log.txt"

    def record(self, number: int) -> Path:
        """The observer's record of an attempt."""
        return self.attempt(number) / "records" / RECORD

    def remove(self) -> None:
        """Remove all of it; nothing happens where it is gone."""
        if self.path.exists():
            shutil.rmtree(self.path)
