"""A node's side: commands that are started once, heard to the last byte, and end with whoever has them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.cluster.charge import Charge
from stoker.cluster.nodes import Heard, Order

PATIENCE_S = 60.0


@pytest.fixture
def charge() -> Iterator[Charge]:
    """One whose commands are ended."""
    made = Charge()
    yield made
    made.stop()


def order(code: str, **env: str | None) -> Order:
    return Order(words=("-c", code), cwd="/", env=env)


def hear_all(charge: Charge, number: int) -> Heard:
    """All that one command prints, and its code."""
    out = err = b""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        [heard] = charge.hear(number, [(len(out), len(err))])
        out, err = out + heard.out, err + heard.err
        if heard.code is not None:
            return Heard(out=out, err=err, code=heard.code)
        time.sleep(0.01)
    raise AssertionError(f"not over in {PATIENCE_S} s: {out!r} {err!r}")


def test_a_command_is_heard_to_its_last_byte(charge: Charge) -> None:
    """More than a pipe holds and more than is kept at once; its code comes after its last byte."""
    charge.start(
        1, [order("import sys; sys.stdout.write('x' * 3_000_000); sys.stderr.write('y'); sys.exit(3)")]
    )
    heard = hear_all(charge, 1)
    assert (len(heard.out), heard.err, heard.code) == (3_000_000, b"y", 3)


def test_an_answer_that_was_lost_is_given_again(charge: Charge) -> None:
    """Bytes are kept until they are said to have arrived."""
    charge.start(1, [order("print('once')")])
    assert hear_all(charge, 1).out == b"once\n"
    charge.start(2, [order("import signal; print('lost', flush=True); signal.pause()")])
    until = time.monotonic() + PATIENCE_S
    while not charge.hear(2, [(0, 0)])[0].out and time.monotonic() < until:
        time.sleep(0.01)
    assert charge.hear(2, [(0, 0)])[0].out == b"lost\n"
    assert charge.hear(2, [(0, 0)])[0].out == b"lost\n"
    assert charge.hear(2, [(5, 0)])[0].out == b""


def test_a_start_that_comes_twice_is_one(charge: Charge, tmp_path: Path) -> None:
    """One under an earlier number is none; and what was never started has nothing to tell."""
    count = f"open({str(tmp_path / 'count')!r}, 'a').write('-')"
    assert charge.hear(1, [(0, 0)]) == []
    charge.start(1, [order(count)])
    charge.start(1, [order(count)])
    assert hear_all(charge, 1).code == 0
    assert (tmp_path / "count").read_text() == "-"


def test_variables_are_put_over_the_node_s_own_and_taken_away(
    charge: Charge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ray's own setting of threads is."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    show = "import os; print(os.environ.get('OMP_NUM_THREADS'), os.environ.get('RANK'))"
    charge.start(1, [order(show, OMP_NUM_THREADS=None, RANK="3")])
    assert hear_all(charge, 1).out == b"None 3\n"


def test_what_cannot_be_started_is_told(charge: Charge) -> None:
    """As a command that failed, with the reason."""
    charge.start(1, [Order(words=("-c", ""), cwd="/no/such/folder")])
    heard = hear_all(charge, 1)
    assert heard.code == 127
    assert b"/no/such/folder" in heard.err


def test_a_signal_reaches_a_command(charge: Charge) -> None:
    """And its death by it shows in its code."""
    charge.start(1, [order("import signal; print('up', flush=True); signal.pause()")])
    while not charge.hear(1, [(0, 0)])[0].out:
        time.sleep(0.01)
    charge.signal(signal.SIGTERM)
    assert hear_all(charge, 1).code == -signal.SIGTERM


def test_a_command_that_nobody_asks_after_is_killed() -> None:
    """Its node was cut off, and the work is another's by now; who asks again is told of the kill."""
    lonely = Charge(unheard_s=0.2)
    lonely.start(1, [order("import signal; print('up', flush=True); signal.pause()")])
    while not lonely.hear(1, [(0, 0)])[0].out:
        time.sleep(0.01)
    time.sleep(1.0)
    heard = hear_all(lonely, 1)
    assert (heard.out, heard.code) == (b"up\n", -signal.SIGKILL)
    lonely.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's word for it is Linux's")
def test_a_command_dies_with_the_process_that_has_it(tmp_path: Path) -> None:
    """By whatever death: a worker that Ray kills takes its training along."""
    code = (
        "import sys, time\n"
        "from stoker.cluster.charge import Charge\n"
        "from stoker.cluster.nodes import Order\n"
        "charge = Charge()\n"
        "charge.start(1, [Order(words=('-c', 'import os, time; print(os.getpid(), flush=True); "
        "time.sleep(600)'), cwd='/')])\n"
        "while not charge.hear(1, [(0, 0)])[0].out: time.sleep(0.01)\n"
        "print(charge.hear(1, [(0, 0)])[0].out.decode(), flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        worker.kill()
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return  # dead; nobody has waited for it yet
        time.sleep(0.01)
    raise AssertionError(f"process {pid} outlived its parent")
