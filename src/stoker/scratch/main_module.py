"""The script as a fresh `__main__`, as `python script` would have it."""

import builtins
import sys
import types
from collections.abc import Callable
from typing import Any

from stoker.watch.script import Script


def run(script: Script) -> None:
    """Run the script to its end; what it raises goes on."""
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
    # Left in place to the end: what spawn starts finds the script here, and atexit code its globals.
    sys.modules["__main__"] = main
    exec(script.code(), main.__dict__)


def report_uncaught(tell: Callable[[str], None]) -> None:
    """Have an uncaught exception told, and shown from the script's first frame on."""
    shown = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        tell(f"{kind.__name__}: {error}")
        # What is shown is the error's own; the argument counts only where it has none.
        error.__traceback__ = _from_script(trace)
        shown(kind, error, error.__traceback__)

    sys.excepthook = excepthook


def _from_script(trace: types.TracebackType | None) -> types.TracebackType | None:
    link = trace
    while link is not None:
        if link.tb_frame.f_code is run.__code__ and link.tb_next is not None:
            return link.tb_next
        link = link.tb_next
    return trace
