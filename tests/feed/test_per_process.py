"""A value that each process makes for itself, once, and never takes from another."""

import os
import pickle
import threading
import time
from pathlib import Path

import pytest

from stoker.feed.per_process import PerProcess


class Handle:
    """Writes down when it is closed, and where."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.pid = os.getpid()

    def __del__(self) -> None:
        with self.log.open("a") as log:
            log.write(f"{os.getpid()} closed {self.pid}\n")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_what_a_fork_brings_along_is_neither_used_nor_closed(tmp_path: Path) -> None:
    """A child makes its own; its parent's connection is not torn down under it."""
    log = tmp_path / "log"
    log.touch()
    value = PerProcess(lambda: Handle(log))
    parent = value.get().pid
    child = os.fork()
    if not child:
        own = value.get().pid == os.getpid()
        again = value.drop() is not None and value.get().pid == os.getpid()
        os._exit(0 if own and again else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert f"closed {parent}" not in log.read_text()
    assert value.get().pid == parent


def test_threads_share_one() -> None:
    """However many ask at once."""
    made = []

    def make() -> object:
        time.sleep(0.02)
        made.append(object())
        return made[-1]

    value = PerProcess(make)
    threads = [threading.Thread(target=value.get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_it_is_pickled_empty() -> None:
    """Only how it is made goes along."""
    value = PerProcess(os.getpid)
    value.get()
    assert pickle.loads(pickle.dumps(value))._made is None


def test_only_a_certain_one_is_dropped() -> None:
    """Who comes late, with one that was dropped before, leaves the new one alone."""
    value: PerProcess[object] = PerProcess(object)
    old = value.get()
    assert value.drop(old) is old
    assert value.drop(old) is None
    new = value.get()
    assert value.drop(old) is None
    assert value.get() is new is not old
