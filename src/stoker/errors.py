"""The error tree. Every message says what is wrong, with the value, and what to do.

StokerError
├── UsageError (ValueError)          the caller asked for something that cannot be; exit code 2
│   ├── ScriptNotFound               no such script or module to run
│   ├── RecordNotFound               no run record at that place
│   ├── RecordBroken                 a record that cannot be read
│   ├── RecordSchemaUnknown          a record written by another version
│   └── NotPermitted                 a file or folder that may not be read or written
├── BenchFailed                      a benchmark's child process ended wrongly
└── MissingExtra (ImportError)       an optional dependency is not installed; exit code 2
"""


class StokerError(Exception):
    """The root of everything that Stoker raises on purpose; the CLI prints its text alone."""

    exit_code = 1


class UsageError(StokerError, ValueError):
    """Something was asked for that cannot be."""

    exit_code = 2


class ScriptNotFound(UsageError):
    """No such script or module to run."""


class RecordNotFound(UsageError):
    """No run record at that place."""


class RecordBroken(UsageError):
    """A record that cannot be read."""


class RecordSchemaUnknown(UsageError):
    """A record whose schema this version does not know."""


class NotPermitted(UsageError):
    """A file or folder that may not be read or written."""


class BenchFailed(StokerError):
    """A benchmark's child process ended wrongly, or measured nothing."""


class MissingExtra(StokerError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""

    exit_code = 2

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install 'stoker[{extra}]'")
