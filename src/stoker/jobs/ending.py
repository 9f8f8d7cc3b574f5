"""How an attempt ended: kept in a file before it is told, so that a killed runner takes no end with it."""

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.feed.whole_file import whole_file
from stoker.jobs.folders import JobFolder
from stoker.jobs.states import State
from stoker.jobs.store.holding import Holding

# As a training exits that was told to stop, and saved.
STOPPED = 128 + signal.SIGTERM
_GOES_ON = "resume goes on from the last checkpoint"
_MOST_TEXT = 500
# Of the log's end, searched for the line that says what went wrong.
_LOOKED_AT = 1 << 14


@dataclass(frozen=True, kw_only=True)
class End:
    """What became of an attempt. None: it was told to stop by a signal, and the job goes on later.

    One that was told to stop and has an error did not save, as far as can be seen. `is_loss`: nobody here had
    it stop, and it goes on as often as one may that is lost.
    """

    outcome: State | None
    error: str | None = None
    is_loss: bool = False


def write_exit(
    folder: JobFolder,
    attempt: int,
    code: int,
    *,
    stopped: bool,
    script: bool,
    killed_s: float | None = None,
    signalled: bool = False,
) -> None:
    """Keep how the training's process ended; `killed_s`: it was killed so long after it was told to stop.

    `stopped`: its runner told it to; `signalled`: somebody else did, and the runner with it.
    """
    told = {
        "code": code,
        "stopped": stopped,
        "script": script,
        "killed_s": killed_s,
        "signalled": signalled,
    }
    with whole_file(_path(folder, attempt)) as out:
        out.write(json.dumps(told).encode())


def read_exit(folder: JobFolder, attempt: int) -> Mapping[str, Any] | None:
    """What `write_exit` kept; None where the training's process did not end, or nobody saw it."""
    try:
        found: dict[str, Any] = json.loads(_path(folder, attempt).read_text())
    except FileNotFoundError:
        return None
    return found


def judge(told: Mapping[str, Any], log: Path, *, cancelled: bool) -> End:
    """What an exit means: `cancelled` says that the job was to be stopped for good."""
    code, signalled = told["code"], told.get("signalled", False)
    stopped = told["stopped"] or signalled
    # A workload that was told to stop and ends well had made its last step; of a script it cannot be known.
    if stopped and (code != 0 or told["script"]):
        error = None if code in (0, STOPPED) else _explain_stop(code, log, told.get("killed_s"))
        if cancelled:
            return End(outcome=State.CANCELLED, error=error)
        return End(outcome=None, error=error, is_loss=signalled)
    if code == 0:
        return End(outcome=State.DONE)
    return End(outcome=State.FAILED, error=_explain(code, log))


def settle(holding: Holding, id_: str, token: int, end: End) -> None:
    """Tell the store."""
    if end.outcome is None:
        why = f" ({end.error})" if end.error else ""
        told = f"told to stop by a signal: goes on from its last checkpoint{why}"
        holding.give_back(id_, token, told, is_loss=end.is_loss)
    else:
        holding.finish(id_, token, end.outcome, end.error)


def _path(folder: JobFolder, attempt: int) -> Path:
    return folder.attempt(attempt) / "exit.json"


def _explain_stop(code: int, log: Path, killed_s: float | None) -> str:
    """Why it is not to be believed that it saved."""
    if code == -signal.SIGKILL and killed_s is not None:
        return f"killed after {killed_s:g} s, before it had saved; {_GOES_ON}"
    if code == -signal.SIGTERM:
        return f"ended by SIGTERM, which it does not handle: it saved nothing then; {_GOES_ON}"
    return _explain(code, log)


def _explain(code: int, log: Path) -> str:
    """Why it failed, in a line: a signal by its name, else the last thing it said."""
    last = last_line(log)
    if code < 0:
        name = _name(-code)
        why = " (the machine may have run out of memory)" if -code == signal.SIGKILL else ""
        return f"killed by {name}{why}" + (f"; it last said: {last}" if last else "")
    return last or f"exit code {code}, without a word"


def _name(number: int) -> str:
    """A signal's name; Python has none for the real-time ones.

    >>> _name(9), _name(35)
    ('SIGKILL', 'signal 35')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_line(log: Path) -> str:
    """The last thing that a file says, without its end; empty where it says nothing, or is not there."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOOKED_AT))
            lines = file.read().decode(errors="replace").replace("\0", "\ufffd").splitlines()
    except FileNotFoundError:
        return ""
    told = [line.strip() for line in lines if line.strip()]
    return told[-1].removeprefix("stoker: ")[:_MOST_TEXT] if told else ""
