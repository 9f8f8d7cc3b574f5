"""What a hook holds in the script's process: its way to report, and to end the run."""

import os
import signal
from typing import Any, NoReturn

from stoker.scratch.channel import Sender


class Child:
    """Given to the hook as its first argument.

    def count_steps(child, argument):
        register_optimizer_step_post_hook(lambda *_: child.progress(next(numbers)))
    """

    def __init__(self, sender: Sender, *, steps: int | None) -> None:
        self._sender = sender
        self._pid = os.getpid()
        self.rank, self.folder = sender.rank, sender.folder
        self.steps = steps
        """The bound that the caller set, if any."""

    def report(self, kind: str, /, **body: Any) -> None:
        """Send the caller a message of a kind of the hook's own; everything in it must be JSON-able."""
        self._sender.send(kind, body)

    def progress(self, step: int) -> None:
        """Say that a step is made. At the bound this does not return: the run ends here."""
        if os.getpid() != self._pid:
            return  # a forked worker makes no steps
        if self.steps is not None and step >= self.steps:
            self.end(step)
        self._sender.send("progress", {"step": step})

    def end(self, step: int | None = None) -> NoReturn:
        """End the run, with this as its last step; not one more line of the script runs.

        The process stops itself with all its threads; the supervisor kills it. A plain wait would let
        signal handlers and the script's other threads go on.
        """
        self._sender.send("end", {"step": step})
        self.park()

    def leave(self, step: int, ranks: int) -> NoReturn:
        """This rank has made its last step; the run ends when all of the `ranks` have left or ended."""
        self._sender.send("left", {"step": step, "ranks": ranks})
        self.park()

    def park(self) -> NoReturn:
        """Stop here, and let the run go on: it is another process of it that ends it."""
        self._sender.close()
        while True:
            os.kill(os.getpid(), signal.SIGSTOP)
