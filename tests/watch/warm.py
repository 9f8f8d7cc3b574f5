"""`stoker WORDS` by a process that has torch imported already: it starts in a moment, not in 3 seconds.

A server imports what every such command imports, and forks for each. What is forked is a process of its own,
with its own output, and ends as an interpreter does. A line of JSON a request, the exit code for an answer.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

WAIT_S = 120.0
# What a command would import by itself before its first step; the last is imported by an optimizer's step.
IMPORTED = ("stoker.cli", "stoker.watch.launcher", "torch.utils.data", "torch._dynamo")


class WarmStoker:
    """The tests' end of the server."""

    def __init__(self, *options: str) -> None:
        self._server = subprocess.Popen(
            [sys.executable, *options, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, *words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
        """Run one command to its end."""
        assert self._server.stdin and self._server.stdout
        print(json.dumps({"words": words, "cwd": str(cwd)}), file=self._server.stdin, flush=True)
        code = int(self._server.stdout.readline())
        out, err = ((cwd / name).read_text() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(["stoker", *words], code, out, err)

    def close(self) -> None:
        """The server ends when nothing more can be asked of it."""
        assert self._server.stdin and self._server.stdout
        self._server.stdin.close()
        assert self._server.wait(WAIT_S) == 0
        self._server.stdout.close()


def take_over(asked: dict[str, Any]) -> None:
    """Become the command: its folder, its files for 0, 1 and 2, its words."""
    os.chdir(asked["cwd"])
    sys.path[0] = asked["cwd"]  # as `python -m stoker` has it
    for number, name in enumerate((os.devnull, "stdout", "stderr")):
        file = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.argv = ["stoker", *asked["words"]]


def serve() -> None:
    """Fork for each request. In what is forked, the command's own exit leaves the loop."""
    for name in IMPORTED:
        importlib.import_module(name)
    from stoker.cli import main

    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            take_over(json.loads(line))
            main()
            sys.exit()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
