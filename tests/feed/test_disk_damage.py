"""The disk tier when things go wrong: damage, full disks, folders that cannot be written to, hung writers."""

import errno
import json
import multiprocessing
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feed.disk_tiers import check_all, folder_of, make_cold, tier_over
from feed.numbered import Numbered
from stoker.feed.tiers import caches, locks
from stoker.feed.tiers.pack import HEADER, ROWS, SUMS, WRITING


def cut_rows(folder: Path, _: Path) -> None:
    os.truncate(folder / ROWS, 1000)


def cut_sums(folder: Path, _: Path) -> None:
    os.truncate(folder / SUMS, 83)


def flip_bits(folder: Path, _: Path) -> None:
    for name, step in ((ROWS, 70_000), (SUMS, 100)):
        with (folder / name).open("r+b") as file:
            for offset in range(0, (folder / name).stat().st_size, step):
                file.seek(offset)
                bits = file.read(1)[0] ^ 0x10
                file.seek(offset)
                file.write(bytes([bits]))


def flip_small_leaves(folder: Path, _: Path) -> None:
    """What stands behind the checksums: the samples' own numbers."""
    entry = json.loads((folder / HEADER).read_text())["entry"]
    entries = np.fromfile(folder / SUMS, np.uint8).reshape(-1, entry)
    entries[::3, 8] ^= 0x10
    (folder / SUMS).write_bytes(entries.tobytes())


def swap_rows(folder: Path, _: Path) -> None:
    """Two rows with their checksums, each whole in itself."""
    told = json.loads((folder / HEADER).read_text())
    for name, size in ((ROWS, told["stride"]), (SUMS, told["entry"])):
        data = bytearray((folder / name).read_bytes())
        data[:size], data[size : 2 * size] = data[size : 2 * size], data[:size]
        (folder / name).write_bytes(data)


def bring_in_anothers(folder: Path, other: Path) -> None:
    """Files of another cache with the same sizes."""
    for name in (ROWS, SUMS):
        shutil.copy(other / name, folder / name)


def write_zeros(folder: Path, _: Path) -> None:
    """As a power cut leaves blocks that were allocated and not written."""
    size = (folder / ROWS).stat().st_size
    (folder / ROWS).write_bytes(bytes(size))


def remove_header(folder: Path, _: Path) -> None:
    (folder / HEADER).unlink()


def garble_header(folder: Path, _: Path) -> None:
    (folder / HEADER).write_text('{"format": 1, "samples"')


def bring_in_anothers_header(folder: Path, other: Path) -> None:
    shutil.copy(other / HEADER, folder / HEADER)


@pytest.mark.parametrize(
    "damage",
    [cut_rows, cut_sums, flip_bits, flip_small_leaves, swap_rows, bring_in_anothers, write_zeros,
     remove_header, garble_header, bring_in_anothers_header],
)  # fmt: skip
@pytest.mark.parametrize("cold", [False, True])
def test_damage_is_never_read(tmp_path: Path, damage: Callable[[Path, Path], None], cold: bool) -> None:
    """Whatever is not bit for bit the row it should be comes from the source, and is whole the next time."""
    tier = tier_over(Numbered(60), tmp_path)
    other = tier_over(Numbered(60, version="b"), tmp_path)
    tier.fill()
    other.fill()
    damage(folder_of(tier), folder_of(other))
    if cold:
        make_cold(tier)
    source = Numbered(60)
    tier = tier_over(source, tmp_path)
    check_all(tier)
    assert len(source.asked) > 1
    asked = len(source.asked)
    check_all(tier)
    check_all(tier_over(source, tmp_path))
    assert len(source.asked) == asked + 1
    check_all(other)


@pytest.mark.parametrize("damage", [cut_rows, flip_bits, write_zeros])
def test_damage_while_it_is_open_is_not_read_either(
    tmp_path: Path, damage: Callable[[Path, Path], None]
) -> None:
    """Rows it has not read yet are found out; a file cut short always, and it does not grow again."""
    tier = tier_over(Numbered(60), tmp_path)
    tier.fill()
    if damage is cut_rows:
        check_all(tier)
    damage(folder_of(tier), tmp_path)
    check_all(tier)
    check_all(tier)
    assert tier.damaged > 0
    assert ("was cut short" in tier.why) == (damage is cut_rows)


@pytest.mark.parametrize("gone", [False, True])
def test_small_leaves_that_are_looked_up_again_are_checked_again(tmp_path: Path, gone: bool) -> None:
    """What was found whole says nothing of what the file has now, nor where the row was gone in between."""
    tier = tier_over(Numbered(60), tmp_path)
    tier.fill(range(50))
    check_all(tier_over(Numbered(60), tmp_path))  # 10 rows are another process's, and not known here
    tier.read(np.arange(50))
    folder = folder_of(tier)
    entries = (folder / SUMS).read_bytes()
    if gone:
        (folder / SUMS).write_bytes(bytes(len(entries)))
        assert not tier.complete
        (folder / SUMS).write_bytes(entries)
    flip_small_leaves(folder, tmp_path)
    assert tier.complete
    check_all(tier)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_stops_the_writing_and_nothing_else(tmp_path: Path) -> None:
    """ENOSPC: every sample still comes, what is there from the disk, and `why` says what happened."""
    tier = tier_over(Numbered(60), tmp_path)
    tier.fill(range(30))
    pack = tier._open.get().pack
    assert pack is not None
    with Path("/dev/full").open("r+b", buffering=0) as full:
        os.dup2(full.fileno(), pack._sums_file)
    check_all(tier)
    assert f"nothing more is written: [Errno {errno.ENOSPC}]" in tier.why
    assert tier.fill() == 0
    check_all(tier)
    assert (tier.hits, tier.misses, tier.damaged) == (60, 60, 0)


def test_a_write_that_fails_halfway_stops_the_writing_and_nothing_else(tmp_path: Path) -> None:
    """A row cut off by a limit on the size of files is never read; those before it are."""
    tier = tier_over(Numbered(60), tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30 * tier.content.stride + 7000, hard))
    try:
        check_all(tier)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert f"nothing more is written: [Errno {errno.EFBIG}]" in tier.why
    check_all(tier)
    again = tier_over(Numbered(60), tmp_path)
    check_all(again)
    assert (again.complete, again.damaged) == (True, 0)


@pytest.mark.parametrize("most", [1, 19_000, 20_001])
def test_what_the_system_leaves_of_a_write_is_written_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """It takes a byte at a time, all but the end of the first tensor, or a part of the second."""
    plain = os.pwritev

    def pwritev(file: int, parts: list[memoryview], offset: int) -> int:
        return plain(file, [memoryview(b"".join(parts)[:most])], offset)

    tier = tier_over(Numbered(10), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", pwritev)
        check_all(tier)
    again = tier_over(Numbered(10), tmp_path)
    check_all(again)
    assert (again.hits, again.misses, again.damaged) == (10, 0, 0)


def test_a_disk_that_takes_nothing_more_loses_no_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither bytes nor an error, from the middle of a row on: the rows before it are there, no other is."""
    plain, left = os.pwritev, [7 * 20_024 + 9000]

    def pwritev(file: int, parts: list[memoryview], offset: int) -> int:
        data = b"".join(parts)[: left[0]]
        left[0] -= len(data)
        return plain(file, [memoryview(data)], offset)

    tier = tier_over(Numbered(60), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", pwritev)
        check_all(tier)
    assert "nothing more is written" in tier.why
    again = tier_over(Numbered(60), tmp_path)
    check_all(again)
    assert (again.hits, again.misses, again.damaged) == (7, 53, 0)


def read_as_nobody(root: Path, told: Any) -> None:
    """In a child without root's rights: what a cache that cannot be written to gives."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    found = []
    for version in ("a", "b"):
        source = Numbered(60, version=version)
        tier = tier_over(source, root)
        check_all(tier)
        found.append((tier.why, tier.hits, tier.fill()))
    told.send(found)


def test_a_folder_that_cannot_be_written_to_is_read(tmp_path: Path) -> None:
    """What is there comes from the disk; where nothing is there, all comes from the source."""
    tier = tier_over(Numbered(60), tmp_path)
    tier.fill(range(40))
    for path in (tmp_path, folder_of(tier)):
        path.chmod(0o555)
    for file in [*folder_of(tier).iterdir(), tmp_path / caches.LOCK]:
        file.chmod(0o444)
    for parent in tmp_path.parents:
        if parent.name.startswith(("pytest-", "popen-")):  # pytest's own, closed to others
            parent.chmod(0o755)
    told, told_there = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("forkserver")
    child = context.Process(target=read_as_nobody, args=(tmp_path, told_there))
    child.start()
    assert told.poll(60)
    there, absent = told.recv()
    child.join(60)
    tmp_path.chmod(0o755)
    assert "read only: [Errno 13]" in there[0]
    assert there[1:] == (40, 0)
    assert "every sample comes from the source: [Errno 13]" in absent[0]
    assert absent[1:] == (0, 0)


def test_a_root_that_is_no_folder_is_told(tmp_path: Path) -> None:
    """A file stands where the folder should be: samples come from the source, and `why` says so."""
    (tmp_path / "file").write_text("")
    tier = tier_over(Numbered(10), tmp_path / "file")
    check_all(tier)
    assert "every sample comes from the source" in tier.why


def test_a_cache_removed_by_hand_is_survived(tmp_path: Path) -> None:
    """`rm -r` under a running tier: it goes on, without writing."""
    tier = tier_over(Numbered(60), tmp_path)
    tier.fill(range(30))
    shutil.rmtree(folder_of(tier))
    check_all(tier)
    assert "nothing more is written" in tier.why


def test_a_writer_that_hangs_does_not_hang_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who keeps the write lock costs one wait; samples come, unwritten, until it is free."""
    tier = tier_over(Numbered(20), tmp_path)
    pack = tier._open.get().pack
    assert pack is not None
    monkeypatch.setattr(pack, "_patience_s", 0.01)
    with locks.locked(folder_of(tier) / WRITING, patience_s=0) as mine:
        assert mine
        check_all(tier)
        assert (tier.misses, pack._patience_s) == (20, 0.0)
    check_all(tier)
    assert tier.complete
