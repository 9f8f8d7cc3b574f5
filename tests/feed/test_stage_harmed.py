"""Staging and keeping where the disk refuses, and over a manifest that was harmed."""

import errno
import os
from pathlib import Path

import pytest

from stoker.feed.manifest import NAME, Manifest
from stoker.feed.sources.objects import Store
from stoker.feed.stage import Stage
from stoker.feed.whole_file import PART
from stoker.feed.write_through import WriteThrough

FILES = {f"class{number % 2}/{number}.bin": bytes([number]) * (number + 5) for number in range(6)}


@pytest.fixture
def local(tmp_path: Path) -> Store:
    (tmp_path / "src").mkdir()
    store = Store(tmp_path / "src")
    for key, data in FILES.items():
        store.put(key, data)
    return store


def staged(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.bin")}


def without_room(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def read_only(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


@pytest.mark.parametrize("step_ns", [100, 10**9, 2 * 10**9])
def test_a_disk_that_cuts_times_off_has_what_it_was_given(
    local: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_ns: int
) -> None:
    """As sshfs and FAT do: nothing is copied again there, and what was written through is read from it."""
    exact = os.utime

    def cut_off(path: Path, times: None = None, *, ns: tuple[int, int] = (0, 0)) -> None:
        exact(path, ns=(ns[0], ns[1] // step_ns * step_ns))

    odd = 1_700_000_001_123_456_789
    for key in FILES:
        exact(tmp_path / "src" / key, ns=(odd, odd))
    monkeypatch.setattr(os, "utime", cut_off)
    Stage(local, tmp_path / "dst").run()
    again = Stage(local, tmp_path / "dst").run()
    assert (again.copied, again.kept) == (0, len(FILES))
    key = next(iter(FILES))
    exact(tmp_path / "src" / key, ns=(odd, odd + 1))
    assert Stage(local, tmp_path / "dst").run().copied == 1
    kept = WriteThrough(local, tmp_path / "kept", local.gather())
    list(kept.fetch(list(FILES)))
    (tmp_path / "src" / key).unlink()
    assert bytes(kept.view(key)) == FILES[key]


def test_a_folder_that_may_not_be_written_to_keeps_nothing_and_reads_on(
    local: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a killed process left a part in it: neither is there to be tried, nor to be removed."""
    listing = local.gather()
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / f"{PART}0123").touch()
    for name in ("touch", "unlink"):
        monkeypatch.setattr(Path, name, read_only)
    monkeypatch.setattr("stoker.feed.write_through.whole_file", read_only)
    kept = WriteThrough(local, folder, listing)
    with pytest.warns(UserWarning, match="nothing more is kept"):
        assert [bytes(data) for data in kept.fetch(list(FILES))] == list(FILES.values())


def test_a_manifest_without_room_for_another_copy_stands_as_it_was(
    local: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are there, and so are their lines."""
    monkeypatch.setattr(Manifest, "fold", without_room)
    assert Stage(local, tmp_path / "dst").run().copied == len(FILES)
    assert staged(tmp_path / "dst") == FILES
    assert Stage(local, tmp_path / "dst").run().kept == len(FILES)


@pytest.mark.parametrize("line", ['{"removed": true}', '{"key": [1], "removed": true}', '{"key": 3}', "[]"])
def test_a_harmed_line_of_the_manifest_is_left_out(local: Store, tmp_path: Path, line: str) -> None:
    """What it may have told of is looked at anew."""
    Stage(local, tmp_path / "dst").run()
    with (tmp_path / "dst" / NAME).open("a") as file:
        file.write(f"{line}\n")
    assert Stage(local, tmp_path / "dst").run().kept == len(FILES)
