"""Runs a user's script in this interpreter as if it had been started plainly.

The script's `__main__` is a fresh module, left in place to the end, so that spawn finds the script
and not Stoker, and what runs at exit finds its globals. Nothing is caught on the way out: the exit
code, the traceback (less our frames) and death by a signal are the script's own. No signal handler
is installed.
"""

import atexit
import builtins
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from stoker.watch.script import Script
from stoker.watch.session import Session
from stoker.watch.tracebacks import without_stoker

_session: Session | None = None


def current() -> Session | None:
    """The session of the script that this process runs, if it runs one."""
    return _session


def adopt(session: Session) -> None:
    """This process is observed by a session that another started: a Watch in its script joins that."""
    global _session
    _session = session


def run(
    script: Script,
    session: Session,
    at_end: Callable[[Session], None],
    put: Callable[[], None] | None = None,
) -> None:
    """Run the script under the session; return as the script does, or raise what it raises.

    `put` alters the process once it is observed, so that what is observed is what was altered.
    """
    global _session
    _session = session
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=script.file,
        __spec__=script.spec,
        __loader__=script.loader,
        __package__=script.package,
        __cached__=None,
        __builtins__=builtins,
    )
    sys.argv = list(script.argv)
    sys.path[0] = script.path0
    sys.modules["__main__"] = main
    ending = _Ending(session, at_end)
    # Registered before anything of the script's, so called after everything of the script's.
    atexit.register(ending)
    _hide_own_frames()
    session.start()
    if put is not None:
        put()
    try:
        exec(script.code(), main.__dict__)
    except SystemExit as error:
        ending.exited(error)
        raise
    except KeyboardInterrupt:
        ending.outcome, ending.error = "interrupted", "KeyboardInterrupt"
        raise
    except BaseException as error:
        ending.outcome, ending.exit_code = "failed", 1
        ending.error = f"{type(error).__name__}: {error}"
        raise


class _Ending:
    """Finishes the session when the interpreter ends, knowing how the script did."""

    def __init__(self, session: Session, at_end: Callable[[Session], None]) -> None:
        self._session = session
        self._at_end = at_end
        self._pid = os.getpid()
        self.outcome = "done"
        self.exit_code: int | None = 0
        self.error: str | None = None

    def exited(self, error: SystemExit) -> None:
        """The script called `sys.exit`."""
        code = error.code
        self.exit_code = code if isinstance(code, int) else 0 if code is None else 1
        if self.exit_code:
            self.outcome, self.error = "failed", f"SystemExit: {code}"

    def __call__(self) -> None:
        if os.getpid() != self._pid:  # a forked child that leaves by sys.exit is not the run
            return
        self._session.finish(self.outcome, exit_code=self.exit_code, error=self.error)
        self._at_end(self._session)


def _hide_own_frames() -> None:
    """Tracebacks begin in the script. A script that sets its own hook replaces this one."""
    shown = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        link: BaseException | None = error
        while link is not None:
            link.__traceback__ = without_stoker(_below_launch(link.__traceback__))
            link = link.__cause__ or link.__context__
        shown(kind, error, error.__traceback__)

    sys.excepthook = excepthook


def _below_launch(trace: types.TracebackType | None) -> types.TracebackType | None:
    """What lies below the call that runs the script; all of it where that call is not in it."""
    link = trace
    while link is not None:
        if link.tb_frame.f_code is run.__code__:
            return link.tb_next
        link = link.tb_next
    return trace
