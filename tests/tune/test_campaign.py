"""200 trials that run out of memory, hang, crash, fail or fill /dev/shm: the search ends, with the truth."""

import json
import os
import random
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from test_search import STARVED

from stoker.doctor.verdict import reach
from stoker.scratch import Guards
from stoker.tune.ledger import Ledger
from stoker.tune.meaning import Probe, take
from stoker.tune.search import Search
from stoker.tune.trial import Trial, hold
from stoker.tune.tuner import Tuner

WORKERS, AHEAD = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), (1, 2, 4, 8, 16)
MODES = ("memory", "hang", "signal", "shm", "fail")
SAYS = {"memory": "stopped", "hang": "hung", "signal": "crashed", "shm": "stopped", "fail": "failed"}
SCRIPT = """
    import json, os, sys, time, torch
    from torch.utils.data import DataLoader, Dataset

    class Numbers(Dataset):
        def __len__(self):
            return 4000
        def __getitem__(self, at):
            time.sleep(0.0005)
            return torch.full((4,), at / 4000)

    def main():
        modes = json.loads(sys.argv[1])
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = DataLoader(Numbers(), batch_size=8, shuffle=True, num_workers=1)
        hoard = []
        for number, batch in enumerate(loader):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            mode = modes[f"{loader.num_workers} {loader.prefetch_factor}"] if number > 25 else "run"
            if mode == "memory":
                hoard.append(torch.ones(16 << 20))
            elif mode == "hang":
                time.sleep(1e6)
            elif mode == "signal":
                os.kill(os.getpid(), 11)
            elif mode == "fail":
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
            elif mode == "shm":
                with open(f"/dev/shm/campaign-{number}", "wb") as file:
                    file.write(bytes(32 << 20))

    main()
"""


def key(num_workers: int = 1, prefetch_factor: int = 2) -> str:
    """By what a loader has, how a trial goes wrong; the script as it is has this."""
    return f"{num_workers} {prefetch_factor}"


def left_behind(temporary: Path) -> list[str]:
    """Processes, shared memory and folders of ours."""
    found = [f"process {p.pid}" for p in psutil.process_iter() if "wrong_turns.py" in " ".join(_words(p))]
    return [
        *found,
        *(str(path) for path in Path("/dev/shm").glob("campaign-*")),
        *(str(path) for path in temporary.iterdir()),
    ]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_hundred_trials_that_go_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every search returns only what ran, says how each other trial ended, and leaves nothing behind."""
    draw = random.Random(5)
    temporary = Path(tempfile.mkdtemp(prefix="t-"))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    path = tmp_path / "wrong_turns.py"
    path.write_text(textwrap.dedent(SCRIPT))
    free, held_here = psutil.virtual_memory().available, psutil.Process().memory_info().rss
    wrong: Counter[str] = Counter()
    number = 0
    while wrong.total() < int(os.environ.get("STOKER_WRONG_TRIALS", "200")):
        number += 1
        modes = {key(w, ahead): draw.choice((*MODES, "run")) for w in WORKERS for ahead in AHEAD}
        modes[key()] = "run"
        command = [str(path), json.dumps(modes)]

        def held(
            settings: Mapping[str, Any], folder: Path, left: float, command: list[str] = command
        ) -> Trial:
            guards = Guards(ram_bytes=2 << 30, shm_headroom_bytes=_shm_free() - (1 << 30))
            return hold(command, settings, folder=folder, seconds=0.2, idle=4.0, guards=guards)

        def probed(
            settings: Mapping[str, Any], seed: int, dropout: bool, command: list[str] = command
        ) -> Probe:
            return take(command, settings, seed=seed, steps=8, dropout=dropout)

        found = Tuner(
            search=Search(verdict=reach(STARVED), run=STARVED, kinds=frozenset({"same"}), finds="workers"),
            ledger=Ledger.begin(tmp_path / f"search{number}", {"command": command}),
            hold=held,
            probe=probed,
            deadline=time.monotonic() + 120,
            ceiling=None,
            tell=lambda text: None,
        ).find()
        for one in found.tried:
            mode = modes[key(**one.settings)]
            if mode in SAYS:
                wrong[mode] += 1
                assert one.outcome in ("broken", "guarded"), (mode, one)
                assert one.reason.split(":")[0] == SAYS[mode], (mode, one)
        assert modes[key(**found.settings)] == "run", found
        assert left_behind(temporary) == []
        print(f"{wrong.total()} trials went wrong in {number} searches: {dict(wrong)}", flush=True)
    assert set(wrong) == set(MODES) or wrong.total() < len(MODES)
    assert psutil.Process().children(recursive=True) == []
    assert psutil.Process().memory_info().rss < held_here + (200 << 20)
    assert psutil.virtual_memory().available > free - (1 << 30)
    temporary.rmdir()


def _shm_free() -> int:
    return psutil.disk_usage("/dev/shm").free
