"""Tuning of several ranks: what is asked of it, what is refused, and searches held on two real ranks."""

import json
import signal
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from stoker import tune
from stoker.cli import main
from stoker.errors import UsageError
from stoker.scratch.outcome import first_to_fail
from stoker.scratch.ranks import no_progress
from stoker.tune.ledger import Ledger
from stoker.tune.meaning import Probe, judge
from stoker.tune.ranks import refuse_spawned, refuse_sweep
from stoker.tune.settings_file import use

SCRIPT = """
    import time, torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, Dataset, DistributedSampler

    class Slow(Dataset):
        def __len__(self):
            return 3200
        def __getitem__(self, at):
            time.sleep(0.002)
            return torch.full((4,), at / 3200)

    dist.init_process_group("gloo")
    data = Slow()
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(50):
        for x in DataLoader(data, batch_size=8, sampler=DistributedSampler(data)):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Two ranks that wait for their samples."""
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


def test_what_is_not_done_is_said() -> None:
    """With what to do instead; one process may do all of it."""
    refuse_spawned(1)
    refuse_sweep(1)
    with pytest.raises(UsageError, match=r"starts 4 ranks itself.*--nproc 4 SCRIPT"):
        refuse_spawned(4)
    with pytest.raises(UsageError, match="--lr with 2 ranks"):
        refuse_sweep(2)


@pytest.mark.parametrize(
    ("env", "words", "code", "says"),
    [
        ({"WORLD_SIZE": "2", "RANK": "0"}, ["--nproc", "2"], 2, "leave one of the two out"),
        ({"WORLD_SIZE": "2", "RANK": "1"}, [], 0, ""),
        ({}, ["--nproc", "2", "--lr"], 2, "--lr with 2 ranks"),
    ],
)
def test_the_verb_asks_for_ranks_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    env: dict[str, str],
    words: list[str],
    code: int,
    says: str,
) -> None:
    """By an option or by a launcher, of which only the first process does something."""
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["stoker", "tune", *words, "train.py"])
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) if code else nullcontext() as ended:
        main()
    assert ended is None or ended.value.code == code
    assert says in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_settings_of_ranks_are_used_with_ranks(tmp_path: Path) -> None:
    """The line to copy has a launcher in it; a search is resumed with as many."""
    assert use("stoker.toml", "train.py", 1) == "stoker run --with stoker.toml train.py"
    assert use("s.toml", "train.py", 2) == "torchrun --nproc-per-node 2 -m stoker run --with s.toml train.py"
    Ledger.begin(tmp_path / "search", {"command": ["train.py"], "ranks": 2})
    with pytest.raises(UsageError, match="a search with 2 ranks, not 1: resume it with --nproc 2"):
        Ledger.resume(tmp_path / "search", {"command": ["train.py"], "ranks": 1})


def test_a_change_means_the_same_only_where_it_does_on_every_rank() -> None:
    """The gravest rank counts, and is named."""
    first = Probe(ids=[[0, 1], [2, 3]], batches=[1, 2], losses=[1.0, 0.9])
    second = Probe(ids=[[4, 5], [6, 7]], batches=[3, 4], losses=[1.1, 0.8])
    plain = replace(first, others=(second,))
    same = judge("same", plain, [plain, plain])
    assert (same.kind, same.by) == ("same", "2 losses are bit-identical on all 2 ranks")
    mixed = judge("same", replace(first, others=(replace(second, ids=[[4, 5], [7, 6]]),)), [plain, plain])
    assert (mixed.kind, mixed.holds) == ("optimization", False)
    assert mixed.by == "rank 1: other samples, or in another order, from batch 2 on"


@pytest.mark.parametrize(
    ("exits", "errors", "rank"),
    [
        ({}, {}, None),
        ({1: 0, 0: 0}, {}, 0),
        ({0: 1 << 8, 1: 1 << 8}, {0: "RuntimeError: Connection closed by peer", 1: "MemoryError"}, 1),
        ({0: 1 << 8, 1: signal.SIGKILL}, {0: "RuntimeError: Connection reset by peer"}, 1),
        ({0: signal.SIGABRT, 1: 1 << 8}, {1: "MemoryError"}, 1),
    ],
)
def test_the_rank_that_failed_first_is_to_blame(
    exits: dict[int, int], errors: dict[int, str], rank: int | None
) -> None:
    """Not one that ended earlier because it had lost that one."""
    assert first_to_fail(exits, errors) == rank


def test_a_rank_that_is_behind_is_named() -> None:
    """Where all stand at the same step, none is."""
    assert no_progress(60, {0: 8, 1: 7}) == "rank 1: no progress for 60 s, at step 7"
    assert no_progress(60, {0: 7, 1: 7}) == "no progress for 60 s, at step 7"
    assert no_progress(60, {0: 3, 1: None}) == "rank 1: no progress for 60 s, at step n/a"


@pytest.mark.slow
def test_workers_are_found_for_two_ranks(script: Path, tmp_path: Path) -> None:
    """Only what ran on both, faster beyond doubt, and checked on both."""
    found = tune.find_workers([str(script)], budget=90, home=tmp_path, ranks=2)
    assert found.tuned.settings["num_workers"] > 0, found.tuned
    assert found.tuned.ratio is not None
    assert found.tuned.ratio.low > 1.02
    kept = next(one for one in found.tuned.tried if one.outcome == "kept")
    assert kept.reason == "40 losses are bit-identical on all 2 ranks"
    assert json.loads((found.folder / "search.json").read_text())["ranks"] == 2


@pytest.mark.slow
def test_torchrun_tunes_its_ranks(script: Path, tmp_path: Path) -> None:
    """The first process starts them aside; the settings say how to use them."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, "-m", "stoker", "tune", "--budget", "90", "--json", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["settings"], told
    written = (tmp_path / "stoker.toml").read_text()
    assert "torchrun --nproc-per-node 2 -m stoker run --with stoker.toml" in written
