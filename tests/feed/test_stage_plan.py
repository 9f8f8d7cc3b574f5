"""What lies in a folder that is staged into: whose names fit there, and which files are held already."""

import os
from pathlib import Path

import pytest

from stoker.errors import UsageError
from stoker.feed import stage_plan
from stoker.feed.sources.listing import Entry
from stoker.feed.stage_plan import Target


def test_an_object_written_anew_within_a_second_is_not_held(tmp_path: Path) -> None:
    """Stores tell times in seconds; only a disk that does so too is given that much."""
    old = Entry(key="a.bin", size=3, modified_ns=10_000_000_000)
    (tmp_path / "a.bin").write_bytes(b"old")
    os.utime(tmp_path / "a.bin", ns=(old.modified_ns, old.modified_ns))
    target = Target(tmp_path)
    assert target.holds(old)
    assert not target.holds(Entry(key="a.bin", size=3, modified_ns=11_000_000_000))
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_a_plan_that_may_not_write_holds_what_any_disk_would_have_cut(tmp_path: Path) -> None:
    """What a disk does to times is found out by writing: a dry run takes them as the coarsest cuts them."""
    (tmp_path / "a.bin").write_bytes(b"old")
    os.utime(tmp_path / "a.bin", ns=(10_000_000_000, 10_000_000_000))
    before = tmp_path.stat().st_mtime_ns
    target = Target(tmp_path)
    target.check(["a.bin"], probe=False)
    assert target.holds(Entry(key="a.bin", size=3, modified_ns=11_000_000_000))
    assert not target.holds(Entry(key="a.bin", size=3, modified_ns=12_000_000_000))
    assert tmp_path.stat().st_mtime_ns == before


def test_names_that_cannot_both_be_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that is also a folder anywhere; names that differ in case only where the disk folds it."""
    with pytest.raises(UsageError, match="'a/b' is an object and the beginning of others"):
        Target(tmp_path).check(["a/b", "a/b/c"])
    pair = ["Cat/1.jpg", "cat/2.jpg"]
    assert not stage_plan.folds_case(tmp_path)
    Target(tmp_path).check(pair)
    monkeypatch.setattr(stage_plan, "folds_case", lambda folder: True)
    with pytest.raises(UsageError, match="does not tell upper from lower case"):
        Target(tmp_path).check(pair)
