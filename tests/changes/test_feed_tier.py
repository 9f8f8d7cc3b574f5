"""A feed's tier under an unmodified loop: the same batches, from memory or a disk."""

import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.changes import feed_tier
from stoker.changes.feed_tier import _Where, pinned

HERE = Path(__file__).parent
RAM, WORKERS = {"feed": "ram"}, {"num_workers": 2, "prefetch_factor": 3}
# Each is run as it is and with the change; the same draws must be made, also after the loop.
ALIKE: dict[str, dict[str, Any]] = {
    "no workers": {},
    "2 workers": {"loader": WORKERS},
    "workers that live on": {"loader": {**WORKERS, "persistent_workers": True}},
    "a shorter last batch": {"batch": 7},
    "the last batch dropped": {"batch": 7, "loader": {"drop_last": True}},
    "left early, 2 workers": {"loader": WORKERS, "break_at": 5},
    "made anew every epoch": {"anew": True},
    "drawn one by one": {"drawn_one_by_one": True},
    "drawn one by one, 2 workers": {"drawn_one_by_one": True, "loader": WORKERS},
    "another type in one sample": {"ragged": True},
    "a dataset that the script changes": {"shifted": True},
    "a dataset that the script changes, 2 workers": {"shifted": True, "loader": WORKERS},
    "a dataset that the script changes, 2 workers that a change has live on": {
        "shifted": True,
        "loader": WORKERS,
        "also": {"persistent_workers": True},
    },
    "random": {"random": True},
    "a collate of its own": {"collate": "reversed"},
    "a collate of its own, 2 workers": {"collate": "reversed", "loader": WORKERS},
    "a collate that draws": {"collate": "noisy"},
    "a collate that draws, 2 workers": {"collate": "noisy", "loader": WORKERS},
    "a stream": {"stream": True},
    "a sample that cannot be read": {"hole": True},
}


def run(jobs: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(HERE / "loops.py")],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        timeout=170,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Each loop as it is, and with its samples in memory; `reads` counts those of the second."""
    folder = tmp_path_factory.mktemp("feed")
    jobs: list[dict[str, Any]] = []
    for at, job in enumerate(ALIKE.values()):
        whole = {"epochs": 3, **job}  # two that are held after the first
        changes = {**RAM, **job.get("also", {})}
        jobs += [{**whole, "changes": {}}, {**whole, "changes": changes, "reads": str(folder / f"reads{at}")}]
    done = run(jobs, folder)
    for at, one in enumerate(done[1::2]):
        reads = folder / f"reads{at}"
        one["reads"] = len(reads.read_text()) if reads.exists() else 0
    return dict(zip(ALIKE, zip(done[::2], done[1::2], strict=True), strict=True))


@pytest.mark.parametrize("name", ALIKE)
def test_the_loop_trains_on_the_same(pairs: dict[str, Any], name: str) -> None:
    """Ids, losses, weights and the next draw after three epochs, bit by bit; `len(loader)` too."""
    plain, fed = pairs[name]
    for part in ("ids", "losses", "weights", "drawn", "length"):
        assert fed[part] == plain[part], part


@pytest.mark.parametrize(
    "name",
    [
        "no workers",
        "2 workers",
        "workers that live on",
        "made anew every epoch",
        "a collate of its own",
        "a collate of its own, 2 workers",
        "a collate that draws",
    ],
)
def test_samples_are_read_once(pairs: dict[str, Any], name: str) -> None:
    """Beside those that are looked at before the first epoch (70 twice and some more), and 4 an epoch."""
    _, fed = pairs[name]
    looked = 2 * 70 + 16 + 2 * 8 + 4 * 3
    assert 96 <= fed["reads"] <= 96 + looked < 3 * 96
    assert fed["told"] == [line for line in fed["told"] if line.startswith("changed: DataLoader(Rows): feed")]
    assert "feed None -> ram: 5.2 KiB fits" in fed["told"][0]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("random", "draws from torch's random generator"),
        ("a collate that draws, 2 workers", "its own collate_fn draws random numbers"),
        ("a stream", "an IterableDataset"),
        ("a sample that cannot be read", "KeyError: 'no such row'"),
        ("another type in one sample", "float64"),
        ("a dataset that the script changes", "has changed its dataset"),
        ("a dataset that the script changes, 2 workers", "has changed its dataset"),
    ],
)
def test_what_cannot_be_kept_is_left_alone_and_said(pairs: dict[str, Any], name: str, says: str) -> None:
    """The loader stays as it is, or goes on as it was from there."""
    assert any("left alone: feed: " in line and says in line for line in pairs[name][1]["told"])


def test_a_cache_on_disk_outlives_a_kill(tmp_path: Path) -> None:
    """What was read before is not read again, the batches are the same, and another dataset is another."""
    disk = {"changes": {"feed": "disk"}, "epochs": 2}
    plain, killed, again, other = run(
        [
            {"changes": {}, "epochs": 2},
            {**disk, "killed_after": 7, "reads": str(tmp_path / "reads")},
            {**disk, "reads": str(tmp_path / "reads")},
            {**disk, "reads": str(tmp_path / "others")},
        ],
        tmp_path,
    )
    assert killed == {"signal": 9}
    for part in ("ids", "losses", "weights", "drawn"):
        assert again[part] == plain[part]
        assert other[part] == plain[part]
    looked = 2 * 70 + 16 + 2 * 8 + 4
    assert len((tmp_path / "reads").read_text()) == 2 * looked + 96 + 4
    assert len((tmp_path / "others").read_text()) == looked + 96 + 4
    for one in (again, other):  # as it is in the end, also where the cache was empty at first
        assert "disk cache (disk: 96 of 96 samples" in one["told"][0]
    assert str(tmp_path / ".stoker" / "cache") in again["told"][0]


def test_what_is_on_a_device_is_not_pinned() -> None:
    """A loader that pins, and whose samples are held in VRAM: there is nothing left to copy."""
    batch = {"x": torch.empty(2, device="meta"), "name": ["a", "b"]}
    assert pinned(batch) is batch


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("tier", "loader"), [("vram", {}), ("auto", {}), ("auto", {**WORKERS, "pin_memory": True})]
)
def test_batches_come_from_the_device(tmp_path: Path, tier: str, loader: dict[str, Any]) -> None:
    """The same ids and numbers, in the device's memory as soon as the model's need is known."""
    loop = {"epochs": 3, "device": "cuda", "loader": loader, "reads": str(tmp_path / "reads")}
    plain, fed = run([{**loop, "changes": {}}, {**loop, "changes": {"feed": tier}}], tmp_path)
    assert (fed["ids"], fed["losses"]) == (plain["ids"], plain["losses"])
    assert "feed None -> vram: 5.2 KiB fits" in fed["told"][0]
    assert "kept for the model (peak of 3 steps)" in fed["told"][0]


def test_what_is_let_go_of_is_told_and_not_kept() -> None:
    """A script that makes a dataset for every fold has one of them in memory, and a line of each."""

    class Held:
        why = "ram: 5 KiB fits"

    held = Held()
    where, alive = _Where(held), weakref.ref(held)  # type: ignore[arg-type]
    where.settle()
    del held
    assert (str(where), alive()) == ("ram: 5 KiB fits", None)


def test_a_feed_is_settled_once_a_batch_came_from_memory_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not when the first epoch ends: the next one's first batch still waits for the end of workers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(feed_tier, "_tier", feed_tier._Tier(wanted="ram"))
    samples = torch.utils.data.TensorDataset(torch.arange(6.0))
    loader = torch.utils.data.DataLoader(samples, batch_size=3)
    held = feed_tier._held_for(loader)
    assert held.samples is not None
    assert [len(batch) for (batch,) in feed_tier.HeldIterator(loader, held)] == [3, 3]
    assert not feed_tier.settled()
    later = feed_tier.HeldIterator(loader, held)
    assert not feed_tier.settled()
    next(later)
    assert feed_tier.settled()
    feed_tier._let_go(held)
