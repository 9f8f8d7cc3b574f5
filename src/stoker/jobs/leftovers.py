"""What a training started and did not end: workers, ranks with a session of their own, daemons.

A runner adopts them, so that each is below it as long as it lives, whatever group or session it moved to, and
ends them before it says how the job ended: by then its slot and its cards are free. Linux alone has that;
elsewhere a training has a process group, and those that left it are not found.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection

import psutil

# Not imported, as the scribe's own parts take 0.1 s.
SCRIBE = "stoker.watch.scribe_process"
# Observers write what they were told and end by themselves once their training is gone.
_SCRIBES_S = 5.0
_NAP_S = 0.01


def adopt() -> bool:
    """Have this process be the parent of what it started and whose own parent is gone; whether it can."""
    if sys.platform != "linux":
        return False
    from stoker.scratch import kernel

    kernel.adopt_orphans()
    return True


def reap(own: Collection[int]) -> None:
    """Take away those that were adopted and have died; for our `own` who started them waits."""
    while sys.platform == "linux":
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid in own:
            return
        os.waitpid(found.si_pid, 0)


def end(child: "subprocess.Popen[bytes]", *, adopted: bool) -> None:
    """Kill what an ended child left. `adopted`: all below this process, which has no other child then."""
    assert child.poll() is not None
    if not adopted:
        if sys.platform not in ("linux", "win32"):
            _kill_group(child.pid)
        return
    from stoker.scratch import tree

    deadline = time.monotonic() + _SCRIBES_S
    # First all but the observers, of which those of ranks see that their rank is gone only then.
    while (found := tree.descendants(os.getpid())) and time.monotonic() < deadline:
        for process in found:
            if not _is_scribe(process):
                _kill(process.pid)
        tree.reap()
        time.sleep(_NAP_S)
    left = tree.end_all()
    if left:
        sys.stderr.write(f"stoker: processes {', '.join(map(str, left))} of the training will not die\n")


def _is_scribe(process: psutil.Process) -> bool:
    try:
        return any(SCRIBE in word for word in process.cmdline())
    except psutil.Error:  # it has ended, or is another user's
        return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended by itself


def _kill_group(number: int) -> None:
    try:
        os.killpg(number, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # the latter is what macOS says of a group of the dead
        pass
