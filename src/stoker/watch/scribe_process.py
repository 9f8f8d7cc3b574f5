"""The scribe's process: rounds in on stdin, the run's account out on stdout after each.

As a thread beside the loop the scribe's work cost a 10 ms step 95 us, most of it by holding the interpreter
when the loop came back for it (H200's host, Python 3.12: 101 us with the thread, 6 with it asleep).

The process leaves the training process's session and parentage, so that a script that waits for its children
or is sent a signal meets nothing of ours, and goes on until the last round, or until the training process is
gone: a run that is killed still leaves all that it had told.
"""

import json
import os
import pickle
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from stoker.watch.account import Account
from stoker.watch.round import HEAD, Round
from stoker.watch.scribe import Scribe

# Seconds between two looks for the training process, where the kernel cannot tell of its end.
_LOOK_EVERY = 2.0
_CHUNK = 1 << 20
# What a Python is told to run. The training process waits until it has forked: by then no signal ends it, and
# none that is for the script's group reaches it. The given path comes last: a script's folder may hold a
# `json.py`.
CODE = """\
import os, signal, sys
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
    if hasattr(signal, name):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
if hasattr(os, "fork"):
    os.setsid()
    if os.fork():
        os._exit(0)
sys.path += sys.argv[2:]
from stoker.watch.scribe_process import main
main()
"""


def main() -> None:
    """Serve one run: rounds in, accounts out, and the live view on stderr where it is asked for."""
    about = json.loads(sys.argv[1])
    incoming, outgoing = os.dup(0), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    view = None
    if about["live"]:
        from stoker.watch.live import LiveView

        view = LiveView()
    scribe = Scribe(Path(about["folder"]), pid=about["pid"], started=about["started"])
    if view is not None:
        view.start()
    for message in messages(incoming, about["pid"]):
        given = Round.from_bytes(message)
        scribe.take(given)
        if given.last:
            break
        account = scribe.account()
        if view is not None:
            view.tick(account)
        _answer(outgoing, account)
    scribe.finish()
    if view is not None:
        view.finish()
    _answer(outgoing, scribe.account())


def _answer(outgoing: BinaryIO, account: Account) -> None:
    body = pickle.dumps(account)
    try:
        outgoing.write(HEAD.pack(len(body)) + body)
        outgoing.flush()
    except BrokenPipeError:  # it has gone; what it told is still to be written
        pass


def messages(descriptor: int, pid: int) -> Iterator[bytes]:
    """The whole messages that come in, until the pipe ends or the process that writes them has.

    A pipe's end is not enough to go by: forked workers hold it open, and may outlive the process that was
    killed. A message cut short by that is dropped.
    """
    waiting = bytearray()
    ended = _end_of(pid)
    gone = False
    while True:
        if sys.platform != "win32":  # there a select takes no pipes, and nobody forks
            readable = select.select([descriptor, *ended], [], [], 0 if gone else _LOOK_EVERY)[0]
            if descriptor not in readable:
                if gone:
                    return
                gone = bool(readable) or not _is_there(pid)
                continue
        piece = os.read(descriptor, _CHUNK)
        if not piece:
            return
        waiting += piece
        while len(waiting) >= HEAD.size:
            end = HEAD.size + HEAD.unpack_from(waiting)[0]
            if len(waiting) < end:
                break
            yield bytes(waiting[HEAD.size : end])
            del waiting[:end]


def _end_of(pid: int) -> list[int]:
    """A descriptor that becomes readable when the process ends; none where the kernel has none to give."""
    try:
        return [os.pidfd_open(pid)]
    except (AttributeError, OSError):  # not Linux, an old kernel, or gone already
        return []


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
