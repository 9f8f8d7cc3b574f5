"""A run in a notebook: what lies between a cell's last step and the next cell is nobody's time.

A loop over several cells waits for its user in between, for minutes or for a night. That is neither
`other` of the next step nor a stall in the sustained rate, so it is left out of both.
"""

import sys
from collections.abc import Callable
from typing import Any

from stoker.watch.session import Session


def leave_out_pauses(session: Session) -> Callable[[], None]:
    """Do so for this session if this is a notebook's kernel; return what ends it."""
    shell = _shell()
    if shell is None:
        return lambda: None

    def before_cell(*_: Any) -> None:
        observer = session.observer
        if session.finished or not observer.here():  # a loop on a thread of its own goes on between cells
            return
        observer.end_pause()

    shell.events.register("pre_run_cell", before_cell)
    return lambda: shell.events.unregister("pre_run_cell", before_cell)


def _shell() -> Any:
    """IPython's shell, where there is one; it is never imported for this."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()
