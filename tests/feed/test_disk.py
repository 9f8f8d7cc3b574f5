"""The disk tier: the source's samples, from the disk once they are there, under a cap, in any process."""

import multiprocessing
import os
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from feed.disk_tiers import check_all, folder_of, make_cold, tier_over
from feed.numbered import Numbered, assert_same
from stoker.errors import MissingExtra, NotPackable, UsageError
from stoker.feed.layout import Layout
from stoker.feed.tiers import caches, direct_queue
from stoker.feed.tiers.batch_memory import fresh_rows
from stoker.feed.tiers.direct_queue import DirectQueue
from stoker.feed.tiers.disk import DiskTier
from stoker.feed.tiers.pack import IN_USE, PAGE, Content, bytes_of
from stoker.feed.tiers.page_cache import PageCache

# A row of few bytes, of a piece that is not a whole number of pages, of one that is, and of an odd one.
SIZES = [3, 5000, 8192, 5001]


@pytest.mark.parametrize("numbers", SIZES)
@pytest.mark.parametrize("direct", [True, False])
def test_a_second_epoch_comes_from_the_disk(tmp_path: Path, numbers: int, direct: bool) -> None:
    """Small rows and large: the source is asked once for a sample; warm or cold, the bits are the same."""
    source = Numbered(200, numbers=numbers)
    tier = tier_over(source, tmp_path, direct=direct)
    check_all(tier)
    source.asked.clear()
    assert tier.complete
    check_all(tier)
    assert (source.asked, tier.hits, tier.misses, tier.damaged) == ([], 200, 200, 0)
    make_cold(tier)
    check_all(tier)
    check_all(tier)
    assert (source.asked, tier.hits, tier.misses, tier.damaged) == ([], 400, 0, 0)


def test_the_page_cache_says_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows after they were written, none of a file cut short; each for itself where they differ."""
    path = tmp_path / "rows"
    path.write_bytes(bytes(100 * 5000))
    numbers = np.random.default_rng(0).permutation(100)
    with path.open("r+b") as file:
        page_cache = PageCache(file.fileno(), stride=5000)
        assert page_cache.held(numbers).all()
        assert page_cache.held(numbers[:0]).tolist() == []
        monkeypatch.setattr(page_cache, "_holds_all", lambda: False)
        monkeypatch.setattr(page_cache, "_look_up", lambda rows: rows % 7 > 0)
        for _ in range(2):
            assert page_cache.held(numbers).tolist() == (numbers % 7 > 0).tolist()
        os.truncate(path, 99 * 5000)
        assert not page_cache.held(numbers).any()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a queue of Linux")
def test_who_leaves_a_queue_early_waits_for_its_reads(tmp_path: Path) -> None:
    """No read is in flight after that, so that the memory can be somebody else's; and the queue goes on."""
    path, count, nothing = tmp_path / "rows", 600, 255
    expected = np.repeat(np.arange(count) % nothing, PAGE).astype(np.uint8).reshape(count, PAGE)
    path.write_bytes(expected.tobytes())
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        queue = DirectQueue(file)
        rows, offsets = fresh_rows(count, PAGE), np.arange(count) * PAGE
        vectors = np.stack([rows.ctypes.data + offsets, np.full(count, PAGE)], axis=1).astype(np.uint64)
        vectors = vectors.reshape(count, 1, 2)
        rows[:] = nothing
        reads = queue.read(offsets, vectors, PAGE, [rows])
        next(reads)
        assert list(direct_queue._in_flight.values()) == [[rows]]
        reads.close()
        assert not direct_queue._in_flight
        assert np.array_equal(rows[: direct_queue._DEPTH], expected[: direct_queue._DEPTH])
        offsets[7] = count * PAGE  # beyond the end
        came = list(queue.read(offsets, vectors, PAGE, [rows]))
        assert sorted(np.concatenate([done for done, _ in came])) == list(range(count))
        assert [at for done, good in came for at in done[~good].tolist()] == [7]
        assert np.array_equal(np.delete(rows, 7, axis=0), np.delete(expected, 7, axis=0))
        assert not direct_queue._in_flight
    finally:
        os.close(file)


def test_a_batch_is_the_callers_own(tmp_path: Path) -> None:
    """What is done to a batch is not seen in the next one."""
    tier = tier_over(Numbered(20), tmp_path)
    for _ in range(2):
        tier.read(np.arange(20))["values"].fill_(-1)
    check_all(tier)
    assert (tier.misses, tier.damaged) == (20, 0)


def test_a_batch_that_is_kept_is_never_written_again(tmp_path: Path) -> None:
    """However it is kept: memory is used again only when the last tensor, view or array of it is gone."""
    tier = tier_over(Numbered(300), tmp_path)
    tier.fill()
    numbers = np.arange(100)
    tensor, view = tier.read(numbers)["values"], tier.read(numbers)["values"][3:5]
    array = tier.read(numbers)["values"].numpy()
    storage = tier.read(numbers)["values"].untyped_storage()
    address = tier.read(numbers)["values"].data_ptr()
    assert tier.read(numbers)["values"].data_ptr() == address  # nobody had it any more
    for _ in range(5):
        others = [tier.read(100 + numbers), tier.read(200 + numbers)]
    expected = Numbered(300).read(numbers)["values"]
    assert torch.equal(tensor, expected)
    assert torch.equal(view, expected[3:5])
    assert np.array_equal(array, expected.numpy())
    assert bytes(storage[:4000]) == expected.numpy().tobytes()[:4000]
    assert_same(others[1], Numbered(300).read(200 + numbers))


def test_the_same_number_may_come_twice_in_a_batch(tmp_path: Path) -> None:
    """Before it is on the disk and after; numbers below 0 count from the end, and wrong ones are told."""
    source = Numbered(30)
    tier = tier_over(source, tmp_path)
    wanted = np.array([5, 7, 5, 29, 5])
    for _ in range(2):
        assert_same(tier.read(np.array([5, 7, 5, -1, 5])), Numbered(30).read(wanted))
    assert sorted(source.asked) == [0, 5, 7, 29]  # 0: the first look at a sample
    with pytest.raises(IndexError, match="no sample 30"):
        tier.read(np.array([30]))
    assert tier.read(np.array([], np.int64))["values"].shape == (0, 5000)


def test_a_sample_can_have_many_tensors_or_one(tmp_path: Path) -> None:
    """A bare tensor, more leaves than one read scatters into, and more than one call can write."""

    class Shaped(Numbered):
        def read(self, indices: Any) -> Any:
            batch = super().read(indices)
            if self.version == "one":
                return batch["values"]
            count = {"many": 20, "too many": os.sysconf("SC_IOV_MAX") // 2 + 1}[self.version]
            return [(batch["values"][:, k : k + 3], batch["number"] + k) for k in range(count)]

    for version in ("one", "many", "too many"):
        tier = tier_over(Shaped(10, version=version), tmp_path)
        expected = tier.layout.flatten(Shaped(10, version=version).read(np.arange(10)))
        for _ in range(2):
            got = tier.layout.flatten(tier.read(np.arange(10)))
            assert all(torch.equal(a, b) and a.is_contiguous() for a, b in zip(got, expected, strict=True))


class Odd(Numbered):
    """Tensors that do not lie as they read, of all sizes; the keys come in another order each time."""

    def read(self, indices: Any) -> Any:
        values, number = super().read(indices).values()
        turned = torch.view_as_complex(values[:, :6].reshape(-1, 3, 2)).conj()
        leaves = {
            "apart": values[:, 1:12:3],
            "swapped": values[:, :12].view(-1, 3, 4).transpose(1, 2),
            "conjugate": turned,
            "negative": turned.imag,
            "learned": (values[:, :5] * 1.0).requires_grad_(),
            "same": number[:1].new_zeros(1, 3).expand(len(number), 3),
            "odd": values[:, :7] > 2**23,
            "half": values[:, :3].bfloat16(),
            "nothing": values[:, :0],
            "number": number,
        }
        names = sorted(leaves, reverse=bool(len(self.asked) % 2))
        return {name: leaves[name] for name in names}


@pytest.mark.parametrize("there", [0, 1, 10])
def test_however_a_tensor_lies_the_batch_is_dense_and_the_same(tmp_path: Path, there: int) -> None:
    """None, some or all on the disk: one kind of batch, the keys in one order."""
    tier = tier_over(Odd(10), tmp_path)
    tier.fill(range(there))
    expected = {name: leaf.detach() for name, leaf in Odd(10).read(np.arange(10)).items()}
    for _ in range(2):
        got = tier.read(np.arange(10))
        assert_same(got, expected)
        assert list(got) == sorted(expected, reverse=True)  # as the first look at a sample had them
        assert not any(leaf.requires_grad or leaf.is_conj() or leaf.is_neg() for leaf in got.values())
    assert (tier.hits, tier.misses, tier.damaged) == (there + 10, 10 - there, 0)


def test_a_batch_of_which_nothing_is_there_is_not_copied(tmp_path: Path) -> None:
    """It is the source's own, and what is done to it is not seen on the disk."""

    class Remembering(Numbered):
        last: Any = None

        def read(self, indices: Any) -> Any:
            self.last = super().read(indices)
            return self.last

    source = Remembering(20)
    tier = tier_over(source, tmp_path)
    got = tier.read(np.arange(20))
    assert {name: leaf.data_ptr() for name, leaf in got.items()} == {
        name: leaf.data_ptr() for name, leaf in source.last.items()
    }
    got["values"].fill_(-1)
    assert_same(tier.read(np.arange(20)), Numbered(20).read(np.arange(20)))
    assert (tier.hits, tier.misses, tier.damaged) == (20, 20, 0)


def test_a_source_that_gives_too_few_is_told(tmp_path: Path) -> None:
    """Whichever way its samples would go, none of them is written."""

    class Short(Numbered):
        def read(self, indices: Any) -> Any:
            return super().read(indices[: max(1, len(indices) - 1)])

    tier = tier_over(Short(20), tmp_path)
    for ask in (lambda: tier.read(np.arange(5)), lambda: tier.read(np.array([3, 3, 4])), tier.fill):
        with pytest.raises(NotPackable, match=r"a batch of \d+ samples has \d+ rows"):
            ask()
    pack = tier._open.get().pack
    assert pack is not None
    assert not pack.entries(np.arange(20)).any()


def test_fill_writes_what_is_not_there(tmp_path: Path) -> None:
    """All samples or some; a second fill has nothing to do, and a new start finds them."""
    source = Numbered(300)
    tier = tier_over(source, tmp_path)
    assert (tier.fill([1, 2, 250]), tier.complete) == (3, False)
    assert (tier.fill(), tier.fill(), tier.complete) == (297, 0, True)
    again = Numbered(300)
    tier = tier_over(again, tmp_path)
    assert tier.complete
    check_all(tier)
    assert again.asked == [0]


@pytest.mark.parametrize(
    ("sizes", "stride", "entry"),
    [
        ([98_304, 8], 98_304, 16),  # a patch and its label: rows of whole pages, side by side
        ([8, 98_304, 1, 5000], 106_496, 24),
        ([98_304], 98_304, 8),
        ([1000, 8], 1024, 8),  # short rows lie as they are
        ([16] * 2000, 32_768, 72),  # no more than a few stand in the entry
    ],
)
def test_small_leaves_of_long_rows_stand_in_the_entries(sizes: list[int], stride: int, entry: int) -> None:
    """With the checksum, which every process has in memory: what is left of a row begins at a page."""
    batch = [torch.zeros(1, size, dtype=torch.uint8) for size in sizes]
    content = Content(fingerprint="a", transform="", samples=7, layout=Layout.of(batch))
    assert (content.stride, content.entry_bytes) == (stride, entry)
    assert sorted([*content.in_row, *content.in_entry]) == list(range(len(sizes)))


def test_another_source_or_transform_has_its_own_cache(tmp_path: Path) -> None:
    """The key is the fingerprint, the transform, the length and the layout."""
    tiers = [
        tier_over(Numbered(50), tmp_path),
        tier_over(Numbered(50, version="b"), tmp_path),
        tier_over(Numbered(50), tmp_path, transform_id="cropped"),
        tier_over(Numbered(51), tmp_path),
        tier_over(Numbered(50, numbers=4999), tmp_path),
    ]
    for tier in tiers:
        tier.fill()
    for tier in tiers:
        check_all(tier)
    assert len({tier.content.key for tier in tiers}) == 5


def test_the_cap_holds_for_all_caches_together(tmp_path: Path) -> None:
    """The longest unused goes first, one in use never; what does not fit is kept in part."""
    one = tier_over(Numbered(100), tmp_path)
    size = one.content.bytes_of(100)
    caches_kept = []
    for version in "abc":
        tier = tier_over(Numbered(100, version=version), tmp_path, cap_bytes=3 * size)
        tier.fill()
        caches_kept.append(folder_of(tier))
        tier.close()
    one.close()
    os.utime(caches_kept[1] / IN_USE, ns=(0, 0))
    held = tier_over(Numbered(100), tmp_path, cap_bytes=3 * size)
    new = tier_over(Numbered(100, version="d"), tmp_path, cap_bytes=3 * size)
    assert [folder.exists() for folder in caches_kept] == [True, False, True]
    new.fill()
    more = tier_over(Numbered(250, version="e"), tmp_path, cap_bytes=3 * size)
    assert [folder.exists() for folder in caches_kept] == [True, False, False]
    assert "of 250 samples" in more.why
    assert not more.complete
    more.fill()
    taken = sum(file.stat().st_blocks * 512 for file in tmp_path.rglob("*") if file.is_file())
    assert taken <= 3 * size
    for tier in (held, new, more, more):
        check_all(tier)
    assert more.hits > 0


def test_a_cap_can_be_raised_and_lowered(tmp_path: Path) -> None:
    """More rows are kept from then on, or fewer; below one row none are, and what was there goes."""
    size = bytes_of(100, 50, 20_480, 16)

    def kept(cap_bytes: int) -> int:
        tier = tier_over(Numbered(100), tmp_path, cap_bytes=cap_bytes)
        check_all(tier)
        check_all(tier)
        words = tier.why.split()
        tier.close()
        return int(words[1]) if words[0] == "disk:" else 0

    assert [kept(size), kept(2 * size), kept(size)] == [50, 100, 50]
    taken = sum(file.stat().st_blocks * 512 for file in tmp_path.rglob("*") if file.is_file())
    assert taken <= size
    assert kept(0) == 0
    assert [found.name for found in tmp_path.iterdir()] == [caches.LOCK]


def test_nothing_but_caches_is_removed(tmp_path: Path) -> None:
    """A folder whose name looks like one, files, and folders of other names stay."""
    (tmp_path / ("0" * 32)).mkdir()
    (tmp_path / ("0" * 32) / "thesis.txt").write_text("mine")
    (tmp_path / "data").mkdir()
    tier = tier_over(Numbered(10), tmp_path, cap_bytes=1)
    assert "no room for a row of 20480 bytes" in tier.why
    assert (tmp_path / ("0" * 32) / "thesis.txt").read_text() == "mine"
    assert (tmp_path / "data").exists()


def test_too_little_free_space_means_no_writing(tmp_path: Path) -> None:
    """Less than the reserve is left at the start: nothing is made. Later: writing pauses. Samples come."""
    source = Numbered(10)
    tier = tier_over(source, tmp_path, reserve_bytes=1 << 60)
    assert "no room" in tier.why
    check_all(tier)
    opened = tier_over(source, tmp_path)
    opened._open.get()._reserve = 1 << 60
    check_all(opened)
    assert opened.fill() == 0
    assert "writing pauses" in opened.why
    opened._open.get()._reserve = 0
    assert opened.fill() == 10
    assert "pauses" not in opened.why


def read_in_child(tier: DiskTier, told: Any) -> None:
    torch.set_num_threads(1)  # as a DataLoader's workers do: torch's own threads do not outlive a fork
    check_all(tier)
    told.send((tier.hits, tier.misses))


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # that is what is tried here
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_opens_its_own(tmp_path: Path, method: str) -> None:
    """Forked after reads by the parent's threads, or spawned with the tier pickled."""
    tier = tier_over(Numbered(60), tmp_path)
    tier.fill()
    make_cold(tier)
    check_all(tier)
    told, told_there = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context(method).Process(target=read_in_child, args=(tier, told_there))  # type: ignore[attr-defined]
    child.start()
    assert told.poll(60)
    assert told.recv() == (60, 0)
    child.join(60)
    assert child.exitcode == 0
    check_all(tier)
    assert (tier.hits, tier.misses) == (120, 0)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # DataLoader's own default on Linux
def test_it_is_a_dataset_for_a_data_loader(tmp_path: Path) -> None:
    """With workers, over two epochs; all samples are on the disk after the first."""
    tier = tier_over(Numbered(64), tmp_path)
    for _ in range(2):
        numbers = [
            n for batch in DataLoader(tier, batch_size=8, num_workers=2) for n in batch["number"].tolist()
        ]
        assert numbers == list(range(64))
        assert tier.complete


def test_threads_share_a_tier(tmp_path: Path) -> None:
    """Reads and write-throughs of several threads at once, over the same samples."""
    tier = tier_over(Numbered(80), tmp_path)
    threads = [threading.Thread(target=check_all, args=(tier,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tier.complete
    assert (tier.hits + tier.misses, tier.damaged) == (320, 0)


def test_closing_lets_go(tmp_path: Path) -> None:
    """No descriptor stays open after close, nor when a tier is dropped; the next read opens it again."""
    tier = tier_over(Numbered(20), tmp_path)
    tier.close()
    assert open_under(tmp_path) == []
    check_all(tier)
    assert open_under(tmp_path) != []
    tier.close()
    pickle.loads(pickle.dumps(tier)).close()
    assert open_under(tmp_path) == []


def open_under(folder: Path) -> list[Path]:
    found = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.exists()]
    return [path for path in found if path.is_relative_to(folder)]


def test_what_cannot_be_kept_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No samples, text in them, samples that differ in shape, a missing package."""

    class Text(Numbered):
        def read(self, indices: Any) -> Any:
            return {"name": ["a"] * len(indices)}

    class Ragged(Numbered):
        def read(self, indices: Any) -> Any:
            return {"values": torch.zeros(len(indices), 1 + int(max(indices)))}

    with pytest.raises(UsageError, match="no samples"):
        tier_over(Numbered(0), tmp_path)
    with pytest.raises(NotPackable, match="str"):
        tier_over(Text(3), tmp_path)
    with pytest.raises(NotPackable, match=r"float32\[6\], but those before were float32\[1\]"):
        tier_over(Ragged(9), tmp_path).read(np.array([5]))
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(MissingExtra, match=r"stoker\[disk\]"):
        tier_over(Numbered(3), tmp_path)
