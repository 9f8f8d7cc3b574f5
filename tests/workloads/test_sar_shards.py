"""SAR data: what a made patch is, how shards are laid out, and how a set is split."""

from pathlib import Path

import numpy as np
import pytest
import torch

from stoker import Feed
from stoker.errors import SourceBroken, UsageError
from stoker.workloads.sar.scenes import HIGH_DB, LOW_DB, draw_patch
from stoker.workloads.sar.shards import REAL_FILES, REAL_SAMPLES, make_shards, make_sparse, share_out
from stoker.workloads.sar.source import SarSource, split


def test_speckle_has_the_variance_that_its_looks_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """On even ground, log-intensity varies by trigamma(looks), whatever the ground's brightness."""
    decibels_each = (HIGH_DB - LOW_DB) * np.log(10) / 10
    for ground in (-16.0, -4.0):
        monkeypatch.setattr(
            "stoker.workloads.sar.scenes._draw_scene",
            lambda rng, side, ground=ground: np.full((side, side), ground),
        )
        for looks in (4, 16):
            trigamma = np.pi**2 / 6 - sum(1 / k**2 for k in range(1, looks))
            patch = draw_patch(0, 1, looks=looks)
            assert patch.dtype == np.float32
            assert np.isclose((patch * decibels_each).var(), trigamma, rtol=0.03)


def test_a_patch_is_the_same_whatever_set_it_is_in(tmp_path: Path) -> None:
    """Sample k hangs on the seed alone, not on how many samples and files there are."""
    few = SarSource(make_shards(tmp_path / "few", samples=5, files=2, side=32))
    many = SarSource(make_shards(tmp_path / "many", samples=9, files=4, side=32))
    other = SarSource(make_shards(tmp_path / "other", samples=5, files=2, side=32, seed=1))
    indices = np.arange(5)
    assert torch.equal(few.read(indices), many.read(indices))
    assert not torch.equal(few.read(indices), other.read(indices))
    assert 0 <= few.read(indices).min() < few.read(indices).max() <= 1


def test_making_goes_on_where_it_ended(tmp_path: Path) -> None:
    """A shard that is there is not made again; one that is missing is."""
    make_shards(tmp_path, samples=6, files=3, side=32)
    first, *_, last = sorted(tmp_path.glob("*.npy"))
    kept, whole = first.stat().st_mtime_ns, last.read_bytes()
    last.unlink()
    make_shards(tmp_path, samples=6, files=3, side=32)
    assert (first.stat().st_mtime_ns, last.read_bytes()) == (kept, whole)


def test_shards_are_ragged_and_hold_all_samples() -> None:
    """The lengths differ, none is empty, and together they are all."""
    lengths = share_out(REAL_SAMPLES, REAL_FILES, seed=0)
    assert (len(lengths), lengths.sum()) == (44, 696_278)
    assert lengths.min() >= 1
    assert len(set(lengths.tolist())) > 30
    assert share_out(3, 3, seed=0).tolist() == [1, 1, 1]
    with pytest.raises(UsageError, match="2 samples in 3 files"):
        share_out(2, 3, seed=0)


def test_the_index_tells_which_file_a_sample_is_in(tmp_path: Path) -> None:
    """The row there holds what the source reads by the sample's number."""
    source = SarSource(make_shards(tmp_path, samples=11, files=3, side=32))
    for number in range(11):
        shard, row = source.locate(number)
        assert shard.first <= number < shard.first + shard.length
        assert np.array_equal(np.load(tmp_path / shard.name)[row], source.read(np.array([number]))[0, 0])
    assert source.read(np.array([3, 3, 10])).shape == (3, 1, 32, 32)
    with pytest.raises(IndexError, match="no sample 11"):
        source.locate(11)


def test_shards_of_something_else_are_refused(tmp_path: Path) -> None:
    """Told with what was found and what is needed."""
    np.save(tmp_path / "a.npy", np.zeros((4, 8, 8, 3), np.float32))
    with pytest.raises(SourceBroken, match=r"\(8, 8, 3\) float32: SAR patches are float32 with two axes"):
        SarSource(tmp_path)


def test_the_split_is_ninety_to_ten_by_its_seed() -> None:
    """At the real size: the note's 626,650; each sample on one side; another seed, another split."""
    train, valid = split(REAL_SAMPLES)
    assert len(train) == 626_650
    assert np.array_equal(np.sort(np.concatenate([train, valid])), np.arange(REAL_SAMPLES))
    assert np.array_equal(split(REAL_SAMPLES)[0], train)
    assert not np.array_equal(split(REAL_SAMPLES, seed=1)[0], train)
    with pytest.raises(UsageError, match="both need one"):
        split(1)


def read_ids(source: SarSource, **options: object) -> list[int]:
    feed = Feed(source, batch_size=64, device="cpu", tier="source", **options)  # type: ignore[arg-type]
    found = [int(number) for batch in feed for number in batch[:, 0, 0, 0]]
    feed.close()
    return found


def test_a_sparse_set_holds_an_id_in_each_sample(tmp_path: Path) -> None:
    """Each is read once an epoch, and is the sample that its number says; the disk holds far less."""
    source = SarSource(make_sparse(tmp_path, samples=300, files=7))
    assert source.sample_shape == (256, 256)
    assert read_ids(source) == list(range(300))
    assert sorted(read_ids(source, shuffle=True)) == list(range(300))
    on_disk = sum(path.stat().st_blocks * 512 for path in tmp_path.glob("*.npy"))
    assert on_disk < 0.2 * 300 * 256 * 256 * 4


@pytest.mark.slow
def test_the_full_size_is_read_right(tmp_path: Path) -> None:
    """696,278 samples in 44 files: the seeded 20% of the training share, some of its batches by their ids."""
    source = SarSource(make_sparse(tmp_path))
    assert (len(source), len(source.shards)) == (696_278, 44)
    train, valid = split(len(source))
    feed = Feed(
        source, batch_size=256, device="cpu", tier="source", shuffle=True, subset=train, limit=125_330
    )
    assert len(feed) == -(-125_330 // 256)
    seen: list[int] = []
    for batch, _ in zip(feed, range(100), strict=False):
        seen += batch[:, 0, 0, 0].long().tolist()
    feed.close()
    assert len(set(seen)) == 100 * 256
    assert not set(seen) & set(valid.tolist())
    spread = np.linspace(0, len(source) - 1, 512).astype(np.int64)
    assert source.read(spread)[:, 0, 0, 0].long().tolist() == spread.tolist()
