"""The live view: beside the script's output on a terminal, plain lines without one."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from stoker.watch import Step
from stoker.watch.account import Account
from stoker.watch.live import lines, plain_line
from stoker.watch.tally import Tally

SCRIPT = """
import sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
print(sys.stdout.isatty(), sys.stderr.isatty(), flush=True)
net = torch.nn.Linear(4, 1); optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(60, 4)))):
    time.sleep(0.04)
    net(x).sum().backward(); optimizer.step()
    if number % 20 == 0: print("the script says", number, flush=True)
"""


def on_a_terminal(folder: Path, rows: int = 24, columns: int = 100) -> str:
    """Run the script under Stoker on a terminal of this size; all that reached the terminal."""
    (folder / "train.py").write_text(SCRIPT)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "stoker", "run", "train.py"],
        stdin=slave, stdout=slave, stderr=slave, cwd=folder, env={**environment, "TERM": "xterm-256color"},
    )  # fmt: skip
    os.close(slave)
    seen = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        seen += part
    os.close(master)
    assert process.wait(timeout=60) == 0
    return seen.decode()


def test_the_view_keeps_the_last_rows_and_gives_them_back(tmp_path: Path) -> None:
    """The script scrolls above the view; at the end the whole screen scrolls again."""
    seen = on_a_terminal(tmp_path)
    assert "\x1b[1;21r" in seen
    assert seen.rindex("\x1b[r") > seen.rindex("\x1b[1;21r")
    assert "the script says 40" in seen
    assert "True True" in seen
    assert re.search(r"step \d+ · .* sustained", seen)
    assert seen.index("observing cost") > seen.rindex("\x1b[r")


def test_a_screen_too_small_is_left_alone(tmp_path: Path) -> None:
    """With hardly any rows nothing is drawn, and the summary still comes."""
    seen = on_a_terminal(tmp_path, rows=6)
    assert "\x1b[1;" not in seen
    assert "observing cost" in seen


def test_without_a_terminal_there_are_plain_lines(tmp_path: Path) -> None:
    """Lines without control characters, on stderr; stdout is the script's alone."""
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "run", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "False False",
        *(f"the script says {number}" for number in (0, 20, 40)),
    ]
    assert "stoker: " in done.stderr
    assert "\x1b" not in done.stderr


@pytest.fixture
def account() -> Account:
    """A run of three steps."""
    tally = Tally()
    for number in range(3):
        tally.add(
            Step(
                step=number, t=time.time() + number, samples=8, loader=0, wait=0.6, copy=0.0,
                forward=0.2, backward=0.1, update=0.05, other=0.05,
            )
        )  # fmt: skip
    return Account(goal=103, steps=3, tally=tally)


@pytest.mark.parametrize("width", [200, 80, 20])
def test_every_line_fits(account: Account, width: int) -> None:
    """Whatever the width, three lines and no more than the width."""
    drawn = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines(account, width)]
    assert len(drawn) == 3
    assert max(len(line) for line in drawn) <= width
    assert "wait" in drawn[1]


def test_the_eta_is_of_the_steps_that_are_left(account: Account) -> None:
    """100 steps to go at one a second."""
    assert "run ends in 1 m 40 s" in plain_line(account)
