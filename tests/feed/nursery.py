"""A process of few imports that forks children on demand, to be killed: both ends of it.

Forked, a child works at once; started, it would import torch for a second first, and moments drawn over the
time of its writes would mostly miss them. One line of words a request, one line back:

    start FLAGS WORD...    the child's pid
    wait PID               its exit code, negative for a signal

A child tells what it does in its flags, a small file mapped by both sides, which stays as a kill found it.
"""

import mmap
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

FLAG_BYTES = 64
ENDED = FLAG_BYTES - 1  # set by a child that ends by itself; the other flags are for what it does
WAIT_S = 60.0
TESTS = Path(__file__).parents[1]


def map_flags(path: Path) -> mmap.mmap:
    """The flags as memory, shared by all who map them."""
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


# A pool of threads would not be there in a forked child.
torch.set_num_threads(1)


def serve(work: Callable[[mmap.mmap, list[str]], int]) -> None:
    """Answer requests until there are no more; `work` is what a child does, and gives its exit code."""
    for line in sys.stdin:
        verb, *words = line.split()
        if verb == "wait":
            answer = os.waitstatus_to_exitcode(os.waitpid(int(words[0]), 0)[1])
        else:
            flags = map_flags(Path(words[0]))
            answer = os.fork()
            if answer == 0:
                code = 1
                try:
                    code = work(flags, words[1:])
                except BaseException:
                    traceback.print_exc()
                    raise
                finally:
                    flags[ENDED] = 1
                    os._exit(code)
            flags.close()
        print(answer, flush=True)


class Nursery:
    """The tests' end of such a process."""

    def __init__(self, module: str, folder: Path, *words: str) -> None:
        self.folder = folder
        self.started = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        )

    def _ask(self, *words: object) -> int:
        assert self._process.stdin and self._process.stdout
        print(*words, file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def start(self, *words: object) -> tuple[int, mmap.mmap]:
        """A child's pid and its flags, all of them 0 until it sets them."""
        path = self.folder / f"flags-{self.started}"
        path.write_bytes(bytes(FLAG_BYTES))
        self.started += 1
        return self._ask("start", path, *words), map_flags(path)

    def wait(self, child: int) -> int:
        """A child's exit code."""
        return self._ask("wait", child)

    def close(self) -> None:
        """No more children; those that are left end by themselves."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        assert self._process.wait(WAIT_S) == 0
        self._process.stdout.close()
