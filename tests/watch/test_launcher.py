"""A script under `stoker run` behaves as it does under plain Python, and its record is complete."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from warm import WarmStoker

from stoker.watch import Record

LOOP = """
import torch
from torch.utils.data import DataLoader, TensorDataset
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def steps(n):
    for (x,) in DataLoader(TensorDataset(torch.randn(n, 4)), batch_size=1):
        net(x).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""


def run(folder: Path, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Python with these words, in this folder."""
    command = [sys.executable, *words]
    return subprocess.run(
        command, capture_output=True, text=True, input=text, cwd=folder, timeout=100, check=False
    )


def both(
    folder: Path, *words: str, text: str = "", module: bool = False
) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    """The same words to Python plainly and under Stoker, with the same standard input."""
    words = ("-m", *words) if module else words
    observed = ("-m", "stoker", "run", "--quiet", "--run-id", "it", *words)
    return run(folder, *words, text=text), run(folder, *observed, text=text)


def same(folder: Path, *words: str, text: str = "", module: bool = False) -> subprocess.CompletedProcess[str]:
    """Both ways end alike, to the letter; what they printed."""
    plain, observed = both(folder, *words, text=text, module=module)
    assert observed.stdout == plain.stdout
    assert observed.stderr == plain.stderr
    assert observed.returncode == plain.returncode
    return observed


def script(folder: Path, text: str, name: str = "train.py") -> str:
    (folder / name).write_text(text)
    return name


def test_arguments_main_and_paths(tmp_path: Path) -> None:
    """argv, `__name__`, `__file__`, `__spec__`, `sys.path[0]` and options like -q are the script's."""
    script(tmp_path, "VALUE = 7\n", "beside.py")
    text = """
import sys, __main__, beside
print(sys.argv, __name__, __file__, __spec__, __package__, sys.path[0], beside.VALUE)
print(__main__.__dict__ is globals(), __builtins__ is __import__("builtins"), "__doc__" in globals())
"""
    printed = same(
        tmp_path, script(tmp_path, text), "-q", "--lr", "0.1", "--help", "--json", "-m", "x"
    ).stdout
    assert "'--lr', '0.1', '--help'" in printed


def test_a_module_with_relative_imports(tmp_path: Path) -> None:
    """`-m pkg.train` and `-m pkg` (its `__main__`) run with their package, spec and relative imports."""
    package = tmp_path / "pkg"
    package.mkdir()
    script(package, "", "__init__.py")
    script(package, "RATE = 3\n", "settings.py")
    text = """
import sys
from .settings import RATE
print(RATE, sys.argv, __name__, __package__, __spec__.name, __file__, sys.path[0])
"""
    script(package, text, "train.py")
    script(package, text, "__main__.py")
    assert "pkg.train" in same(tmp_path, "pkg.train", "--steps", "5", "--json", module=True).stdout
    assert "pkg.__main__" in same(tmp_path, "pkg", module=True).stdout


def test_standard_input_reaches_the_script(tmp_path: Path) -> None:
    """What is piped in is the script's to read."""
    name = script(tmp_path, "import sys\nprint(input(), sys.stdin.read())\n")
    assert same(tmp_path, name, text="one\ntwo\n").stdout == "one two\n\n"


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("sys.exit(3)", 3),
        ("sys.exit('no data')", 1),
        ("raise SystemExit", 0),
        ("os._exit(5)", 5),
        ("None.lr", 1),
        ("1 +", 1),
    ],
)
def test_it_ends_as_it_would_have(tmp_path: Path, ending: str, code: int) -> None:
    """Exit codes, messages and tracebacks are the same to the letter."""
    text = f"import sys, os, atexit\natexit.register(print, 'at exit')\ndef go():\n  {ending}\ngo()\n"
    assert same(tmp_path, script(tmp_path, text)).returncode == code


def test_a_failure_deep_in_a_step_has_no_frames_of_ours(tmp_path: Path) -> None:
    """A traceback through the model, the loader and its workers shows the script and torch alone."""
    text = (
        LOOP
        + """
class Bad(torch.nn.Linear):
    def forward(self, x):
        raise ValueError("bad weights")
class BadData(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): raise KeyError(f"no sample {i}")
import sys
if sys.argv[1] == "model":
    net = Bad(4, 1); optimizer = torch.optim.SGD(net.parameters(), lr=0.1); steps(2)
else:
    next(iter(DataLoader(BadData(), num_workers=int(sys.argv[1]))))
"""
    )
    name = script(tmp_path, text)
    for where in ("model", "0", "1"):
        observed = run(tmp_path, "-m", "stoker", "run", "--quiet", "--run-id", "it", name, where)
        assert "Error" in observed.stderr
        assert "stoker" not in observed.stderr
        assert observed.returncode == 1


@pytest.mark.parametrize(("sent", "outcome"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "unknown")])
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_signal_ends_it_as_it_would_have(tmp_path: Path, sent: signal.Signals, outcome: str) -> None:
    """The process dies by the same signal, and the record can be read: nothing was in the signal's way."""
    text = (
        LOOP
        + """
steps(5)
import time; time.sleep(1.5)
print("ready", flush=True)
while True: steps(50)
"""
    )
    name = script(tmp_path, text)
    for command in ([], ["-m", "stoker", "run", "--run-id", "it"]):
        with subprocess.Popen(
            [sys.executable, *command, name],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell's background job ignores SIGINT, and so would its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(sent)
            _, errors = process.communicate(timeout=30)
        assert process.returncode == -sent
        assert ("KeyboardInterrupt" in errors) == (sent == signal.SIGINT)
    record = Record.open(tmp_path / ".stoker/runs/it")
    assert record.outcome == outcome
    assert len(list(record.ranks[0].steps())) >= 5


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_killed_at_once_the_record_is_readable(tmp_path: Path) -> None:
    """After `kill -9` every whole line is there; a line cut short is left out."""
    name = script(
        tmp_path, LOOP + "steps(5)\nimport time; time.sleep(1.5)\nprint('ready', flush=True)\nsteps(10**6)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "stoker", "run", "--run-id", "it", name],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGKILL)
    record = Record.open(tmp_path / ".stoker/runs/it")
    assert record.outcome == "unknown"
    before = len(list(record.ranks[0].steps()))
    assert before >= 5
    with (record.ranks[0].folder / "steps.jsonl").open("a") as file:
        file.write('{"step": 99, "t": 1')
    assert len(list(record.ranks[0].steps())) == before


def test_json_is_one_object_and_the_script_prints_elsewhere(tmp_path: Path) -> None:
    """`--json` keeps stdout for the answer: the script's own, and its children's, goes to stderr."""
    name = script(
        tmp_path, LOOP + "import os\nsteps(6)\nprint('mine')\nos.system('echo child')\nraise SystemExit(4)\n"
    )
    done = run(tmp_path, "-m", "stoker", "run", "--json", name)
    answer = json.loads(done.stdout)
    assert done.returncode == 4
    assert answer["schema"] == 1
    assert answer["steps"] == 6
    assert set(answer["shares"]) == {"wait", "copy", "forward", "backward", "update", "other"}
    assert {"mine", "child"} <= set(done.stderr.split())


@pytest.fixture(scope="module")
def stoker() -> Iterator[WarmStoker]:
    server = WarmStoker()
    yield server
    server.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.py"], "no such script: missing.py"),
        (["."], "is a folder"),
        (["-m", "no_such_module"], "no module no_such_module"),
        (["--runs", "/proc/nowhere", "train.py"], "cannot write the run's record"),
        (["--steps", "0", "train.py"], "--steps"),
    ],
)
def test_wrong_use_is_answered(stoker: WarmStoker, tmp_path: Path, words: list[str], said: str) -> None:
    """Bad input gets a clear error, exit code 2 and no traceback; the script is not started."""
    script(tmp_path, "print('started')\n")
    done = stoker.run("run", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_may_load_with_workers(stoker: WarmStoker, tmp_path: Path) -> None:
    """Whatever starts its workers, and torchdata's loader too; what fails in one shows no frame of ours."""
    text = """
import multiprocessing, torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
class Items(torch.utils.data.Dataset):
    def __init__(self, bad=9): self.bad = bad
    def __len__(self): return 4
    def __getitem__(self, i):
        if i == self.bad: raise KeyError(f"no sample {i}")
        return torch.full((1,), float(i))
def train():
    for kind in (DataLoader, StatefulDataLoader):
        print(sum(float(x) for x in kind(Items(), num_workers=1, multiprocessing_context="fork")), flush=True)
    try:
        list(DataLoader(Items(2), num_workers=1, multiprocessing_context="fork"))
    except KeyError as error:
        print("stoker" in str(error), flush=True)
if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=train)
    child.start(); child.join()
    raise SystemExit(child.exitcode)
"""
    done = stoker.run("run", "--quiet", script(tmp_path, text), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "6.0\n6.0\nFalse\n"), done.stderr


def test_the_interpreters_own_names_are_given_back(tmp_path: Path) -> None:
    """After a Watch everything that was hooked is what it was before."""
    text = """
import builtins, threading, queue, multiprocessing.queues, torch, stoker
from torch.utils.data import DataLoader, TensorDataset, _utils, dataloader
def look():
    iterator = dataloader._BaseDataLoaderIter
    return [builtins.open, threading.Condition.wait, queue.SimpleQueue, torch.autograd.backward,
        torch.compile, multiprocessing.queues._ForkingPickler, torch.Tensor.to, DataLoader.__iter__,
        iterator.__next__, iterator.__init__, _utils.worker._worker_loop, _utils.pin_memory.pin_memory,
        torch.nn.Linear.__call__, _utils.fetch._MapDatasetFetcher.fetch, torch.optim.Optimizer.__init__]
net = torch.nn.Linear(4, 1); optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
before = look()
with stoker.Watch() as watch:
    for (x,) in DataLoader(TensorDataset(torch.randn(8, 4))):
        net(x).sum().backward(); optimizer.step()
    assert look() != before
changed = [(a, b) for a, b in zip(before, look()) if a is not b and a != b]
print(changed, len(list(watch.record.ranks[0].steps())))
"""
    done = run(tmp_path, script(tmp_path, text))
    assert done.stdout == "[] 8\n", done.stderr
