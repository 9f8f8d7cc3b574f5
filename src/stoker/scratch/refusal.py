"""The third shield's floor: what Python would write outside of the copy is refused, by its own audit events.

An audit hook sees every call, under whatever name the script imported it, and cannot be taken out. It
does not see what a C library or another program writes; so no program is started.
"""

import os
import sys
from typing import Any

from stoker.scratch.copy_store import CopyStore

# Events with the paths that they change, by position.
_CHANGES = {
    "os.remove": (0,), "os.rmdir": (0,), "os.mkdir": (0,), "os.rename": (0, 1), "os.truncate": (0,),
    "os.chmod": (0,), "os.chown": (0,), "os.utime": (0,), "os.link": (1,), "os.symlink": (1,),
    "os.setxattr": (0,), "os.removexattr": (0,), "sqlite3.connect": (0,),
}  # fmt: skip
_STARTS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def install(store: CopyStore) -> None:
    """Refuse from now on, in this process and those it forks."""

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event in _STARTS:
            raise PermissionError(
                f"this scratch run's write shield is partial, so it starts no program: {args[0]!r}"
            )
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & _WRITING and store.covers(path):
                raise PermissionError(f"this scratch run may not write {path!r}")
        for position in _CHANGES.get(event, ()):
            if store.covers(args[position]) and args[position] != ":memory:":
                raise PermissionError(f"this scratch run may not change {args[position]!r}")

    sys.addaudithook(audit)
