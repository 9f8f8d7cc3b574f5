"""The error tree. Every message says what is wrong, with the value, and what to do.

StokerError
├── UsageError (ValueError)          the caller asked for something that cannot be; exit code 2
│   ├── ScriptNotFound               no such script or module to run
│   ├── NotebookBroken               a notebook that cannot be read, or run as a script
│   ├── RecordNotFound               no run record at that place
│   ├── RecordBroken                 a record that cannot be read
│   ├── RecordSchemaUnknown          a record written by another version
│   ├── SourceBroken                 a source's files or samples that cannot be read or put into batches
│   ├── StateBroken                  a state of an order that cannot be read
│   ├── OrderChanged                 a resume with another order than the state's
│   ├── RanksDisagree                ranks with different settings, or at different steps
│   ├── NotPackable                  samples that a tier cannot hold: no tensors, or not all alike
│   ├── NotTransformable             a batch without the images that a transform is for
│   ├── CheckpointBroken             a training's checkpoint that is not as it was written
│   ├── WrongSetting                 a setting that a config does not have, or a value that it cannot take
│   ├── WrongSettings                all settings of a config that are wrong
│   ├── QueryRefused                 a query that the database refuses, or whose columns are no samples
│   ├── JobRefused                   a job that cannot be asked for: which field, and what is allowed
│   ├── NoSuchJob (LookupError)      no job of that id
│   ├── KeyTaken                     an idempotency key that was used for another job
│   ├── MoveRefused                  what the state of a job does not allow
│   └── NotPermitted                 a file or folder that may not be read or written
├── SourceChanged                    the data of a source changed, in use or since a state was taken
├── StoreError                       an object store did not do what was asked
│   ├── StoreUnreachable             no usable answer from its endpoint, after all retries
│   ├── AccessRefused                credentials missing, wrong, or without that right
│   ├── NoSuchBucket                 no bucket or container of that name
│   └── NoSuchObject (FileNotFoundError)   no object with that key
├── StageFailed                      staging ended with files missing
│   └── NoSpace                      too little room on the disk
├── DatabaseUnreachable (ConnectionError)   no connection to a database, or none that lasts
├── RankLost (ConnectionError)       a rank that ended, or did not come to where the others waited for it
├── ReaderDied                       worker processes of a feed that die again and again
├── NoRoom (MemoryError)             samples do not fit where a tier was to hold them
├── ScratchFailed                    a scratch run could not be held: no platform for it, or it broke
├── DiagnosisFailed                  a script or record in which no step could be observed
├── CellFailed                       a notebook's cell raised an error in its scratch run
├── TrialFailed                      a script that cannot be tried with a change, or without one
├── TrainingFailed                   a training that cannot go on: no memory, no disk, a loss not finite
├── LeaseLost                        a job that is another process's by now
├── EngineFailed                     an engine that could not start, find or stop a job
│   └── EngineAway                   one that can start none for now: jobs wait for it
├── ClusterFailed                    a cluster that cannot be reached, or whose nodes lack what is needed
│   ├── NodeLost                     a node that went away, with what ran on it
│   └── NodeUnfit                    a node that is there, and lacks what is needed
├── JobsUnreachable (ConnectionError)   no usable answer from a jobs server
├── TokenRefused (PermissionError)   a jobs server's token, missing or wrong
├── JobEnded                         a job without a result: failed, cancelled or lost
├── BenchFailed                      a benchmark's child process ended wrongly
└── MissingExtra (ImportError)       an optional dependency is not installed; exit code 2
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class StokerError(Exception):
    """The root of everything that Stoker raises on purpose; the CLI prints its text alone."""

    exit_code = 1


class UsageError(StokerError, ValueError):
    """Something was asked for that cannot be."""

    exit_code = 2


class ScriptNotFound(UsageError):
    """No such script or module to run."""


class NotebookBroken(UsageError):
    """A notebook that cannot be read, or whose cells cannot be run as a script."""


class RecordNotFound(UsageError):
    """No run record at that place."""


class RecordBroken(UsageError):
    """A record that cannot be read."""


class RecordSchemaUnknown(UsageError):
    """A record whose schema this version does not know."""


class SourceBroken(UsageError):
    """A source's files or samples that cannot be read or put into batches."""


class StateBroken(UsageError):
    """A state of an order that cannot be read, or that counts what is not there."""


class OrderChanged(UsageError):
    """A resume with another order than the state's: samples would come twice or not at all."""


class RanksDisagree(UsageError):
    """Ranks with different settings, or that do not begin the same epoch at the same step."""


class NotPackable(UsageError):
    """Samples that a tier cannot hold: something in them is no tensor, or they are not all alike."""


class NotTransformable(UsageError):
    """A batch without the images that a transform is for, or with images that it cannot take."""


class CheckpointBroken(UsageError):
    """A training's checkpoint that is not as it was written, or none of them is."""


class WrongSetting(UsageError):
    """A setting that a config does not have, or a value that it cannot take.

    `path` leads to it, `allowed` are the names or values there are, where they can be counted.
    """

    def __init__(self, text: str, *, path: Sequence[str], allowed: Sequence[Any] | None = None) -> None:
        super().__init__(text)
        self.path = tuple(path)
        self.allowed = None if allowed is None else tuple(allowed)


class WrongSettings(UsageError):
    """All that is wrong with a config's settings; `each` is one of them."""

    def __init__(self, each: Sequence[WrongSetting]) -> None:
        super().__init__("; ".join(map(str, each)))
        self.each = tuple(each)


class QueryRefused(UsageError):
    """A query that the database refuses, or whose columns cannot be samples."""


class JobRefused(UsageError):
    """A job that cannot be asked for. `problems` names every field that is wrong, and what it may be."""

    def __init__(self, *problems: "Problem") -> None:
        super().__init__("; ".join(str(one) for one in problems))
        self.problems = problems


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One field that is wrong: where, how, and what it may be (`allowed` is empty where it is no choice)."""

    field: str
    text: str
    allowed: tuple[str, ...] = ()

    def __str__(self) -> str:
        told = f" (allowed: {', '.join(self.allowed)})" if self.allowed else ""
        return f"{self.field}: {self.text}{told}"


class NoSuchJob(UsageError, LookupError):
    """No job of that id."""


class KeyTaken(UsageError):
    """An idempotency key that was used for another job."""


class MoveRefused(UsageError):
    """What the state of a job does not allow: cancel one that has ended, delete one that runs."""


class NotPermitted(UsageError):
    """A file or folder that may not be read or written."""


class SourceChanged(StokerError):
    """The data of a source changed while it was in use, or since a state was taken of it."""


class StoreError(StokerError):
    """An object store did not do what was asked."""


class StoreUnreachable(StoreError):
    """No usable answer from an object store's endpoint, after all retries."""


class AccessRefused(StoreError):
    """Credentials that are missing, wrong, or without the right to do this."""


class NoSuchBucket(StoreError):
    """No bucket or container of that name."""


class NoSuchObject(StoreError, FileNotFoundError):
    """No object with that key."""


class StageFailed(StokerError):
    """Staging ended with files missing."""


class NoSpace(StageFailed):
    """Too little room on the disk for what is to be written."""


class DatabaseUnreachable(StokerError, ConnectionError):
    """No connection to a database: no server or file there, no such user or database, or lost too often."""


class RankLost(StokerError, ConnectionError):
    """A rank that ended, cannot be reached, or did not come in time to where the others waited for it."""


class ReaderDied(StokerError):
    """Worker processes of a feed that die again and again, of which one alone is replaced."""


class NoRoom(StokerError, MemoryError):
    """Samples do not fit into the memory where a tier was to hold them; a feed then takes the next tier."""


class ScratchFailed(StokerError):
    """A scratch run could not be held; what its script does is never this, but a result."""


class DiagnosisFailed(StokerError):
    """A script or record in which no step could be observed."""


class TrialFailed(StokerError):
    """A script cannot be tried with a change, or without one."""


class CellFailed(StokerError):
    """A notebook's cell raised an error in its scratch run; the message names the cell."""


class TrainingFailed(StokerError):
    """A training that cannot go on: no memory for one sample, no room on the disk, a loss not finite."""


class LeaseLost(StokerError):
    """A job that is another process's by now: whoever hears this writes nothing more and ends."""


class EngineFailed(StokerError):
    """An engine that could not start, find or stop a job."""


class EngineAway(EngineFailed):
    """An engine that can start no job for now, by no fault of the job's: it is asked again later."""


class ClusterFailed(StokerError):
    """A cluster that cannot be reached, or whose nodes lack what is needed."""


class NodeLost(ClusterFailed):
    """A node went away, with what ran on it; `node` is its name."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(f"the node {node} was lost: {reason}")
        self.node = node


class NodeUnfit(ClusterFailed):
    """A node is there, and lacks what is needed: the same Stoker, the same files."""


class JobsUnreachable(StokerError, ConnectionError):
    """No usable answer from a jobs server."""


class TokenRefused(StokerError, PermissionError):
    """A jobs server's token, missing or wrong."""


class JobEnded(StokerError):
    """A job without a result: it failed, was cancelled or was lost."""


class BenchFailed(StokerError):
    """A benchmark's child process ended wrongly, or measured nothing."""


class MissingExtra(StokerError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""

    exit_code = 2

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install 'stoker[{extra}]'")
