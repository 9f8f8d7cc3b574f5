"""Staging: what is copied, what is kept, what is refused, and what is told."""

import hashlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import NoSpace, NotPermitted, StoreUnreachable, UsageError
from stoker.feed.manifest import NAME, Manifest
from stoker.feed.sources.images import ImageSource
from stoker.feed.sources.listing import Reading
from stoker.feed.sources.objects import Store
from stoker.feed.stage import Selection, Stage, summary
from stoker.feed.stage_plan import LOCK, Target
from stoker.feed.stage_view import Progress, SilentView
from stoker.feed.whole_file import PART, remove_leftovers, whole_file
from stoker.feed.write_through import WriteThrough

from .pictures import write_classes
from .s3 import S3Server

FILES = {
    f"class{c}/{n:02d}.bin": hashlib.sha256(f"{c}{n}".encode()).digest() * (n * 37 + 1)
    for c in range(4)
    for n in range(6)
}


def fill(store: Store, files: dict[str, bytes] = FILES) -> None:
    for key, data in files.items():
        store.put(key, data)


def staged(folder: Path) -> dict[str, bytes]:
    """Every file under a final name, but for staging's own."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (NAME, LOCK) and not path.name.startswith(PART)
    }


@pytest.fixture(params=["s3", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path, prefix: str) -> Store:
    """The same set on a server and in a folder."""
    if request.param == "folder":
        (tmp_path / "source").mkdir()
        store = Store(tmp_path / "source")
    else:
        server: S3Server = request.getfixturevalue("s3_server")
        store = server.store(prefix)
    fill(store)
    return store


@pytest.fixture
def local(tmp_path: Path) -> Store:
    (tmp_path / "source").mkdir()
    store = Store(tmp_path / "source")
    fill(store)
    return store


@pytest.mark.service
def test_everything_is_copied_once(store: Store, tmp_path: Path) -> None:
    """Every byte; a second run finds all there, and reading them again finds them right."""
    target = tmp_path / "dst"
    first = Stage(store, target).run()
    assert staged(target) == FILES
    assert (first.copied, first.copied_bytes, first.kept) == (24, sum(map(len, FILES.values())), 0)
    again = Stage(store, target).run()
    assert (again.copied, again.kept, again.checked) == (0, 24, 0)
    checked = Stage(store, target, Selection(verify=True)).run()
    assert (checked.copied, checked.kept, checked.checked) == (0, 0, 24)


@pytest.mark.service
def test_the_manifest_tells_size_and_digest(store: Store, tmp_path: Path) -> None:
    """The store's MD5 where its tag is one, else our own; the time of change is the source's."""
    target = tmp_path / "dst"
    Stage(store, target).run()
    lines = Manifest(target, store.url).lines()
    for entry in store.list():
        data, line = FILES[entry.key], lines[entry.key]
        kind, _, digest = line.digest.partition(":")
        if store.folder is None:
            assert (kind, digest) == ("md5", hashlib.md5(data).hexdigest())
        else:
            assert (kind, digest) == ("blake2b", hashlib.blake2b(data, digest_size=16).hexdigest())
        assert line.size == len(data)
        assert (target / entry.key).stat().st_mtime_ns == entry.modified_ns


def test_only_what_is_missing_changed_or_damaged_is_copied(local: Store, tmp_path: Path) -> None:
    """By size and time; damage that keeps both is found by --verify."""
    target = tmp_path / "dst"
    Stage(local, target).run()
    keys = list(FILES)
    (target / keys[0]).unlink()
    (target / keys[1]).write_bytes(b"other")
    local.put(keys[2], FILES[keys[2]][::-1])
    status = (target / keys[3]).stat()
    (target / keys[3]).write_bytes(bytes(len(FILES[keys[3]])))
    os.utime(target / keys[3], ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert Stage(local, target).run().copied == 3
    outcome = Stage(local, target, Selection(verify=True)).run()
    assert (outcome.copied, outcome.checked) == (1, 24)
    assert staged(target) == {**FILES, keys[2]: FILES[keys[2]][::-1]}


def test_a_file_that_nobody_vouches_for_is_copied_again(local: Store, tmp_path: Path) -> None:
    """Without its line in the manifest, size and time are not enough."""
    target = tmp_path / "dst"
    Stage(local, target).run()
    (target / NAME).unlink()
    assert Stage(local, target).run().copied == 24


@pytest.mark.service
def test_without_its_line_a_file_is_checked_by_the_store_s_md5(
    s3_server: S3Server, prefix: str, tmp_path: Path
) -> None:
    """And need not be copied again."""
    store = s3_server.store(prefix)
    fill(store)
    target = tmp_path / "dst"
    Stage(store, target).run()
    (target / NAME).unlink()
    outcome = Stage(store, target).run()
    assert (outcome.copied, outcome.checked) == (0, 24)
    assert Stage(store, target).run().kept == 24


@pytest.mark.service
def test_a_seeded_subset_is_the_one_that_images_take(store: Store, tmp_path: Path) -> None:
    """`--classes 2 --seed 5` stages what `ImageSource(classes=2, seed=5)` would read from the source."""
    target = tmp_path / "dst"
    Stage(store, target, Selection(classes=2, seed=5)).run()
    pictures = tmp_path / "pictures"
    write_classes(pictures, {f"class{c}": 1 for c in range(4)})
    assert {key.partition("/")[0] for key in staged(target)} == set(
        ImageSource(pictures, classes=2, seed=5).classes
    )
    Stage(store, target, Selection(classes=["class0", "class1", "class2", "class3"])).run()
    assert staged(target) == FILES


def test_patterns_choose_files(local: Store, tmp_path: Path) -> None:
    """Without a slash for the name, with one for the whole key; exclude wins."""
    Stage(local, tmp_path / "a", Selection(include=["0[12].bin"], exclude=["class3/*"])).run()
    assert sorted(staged(tmp_path / "a")) == [f"class{c}/{n}.bin" for c in range(3) for n in ("01", "02")]
    Stage(local, tmp_path / "b", Selection(include=["class1/*"])).run()
    assert {key.partition("/")[0] for key in staged(tmp_path / "b")} == {"class1"}
    with pytest.raises(UsageError, match="none of them chosen"):
        Stage(local, tmp_path / "c", Selection(include=["*.jpg"])).run()


def test_a_dry_run_writes_nothing(local: Store, tmp_path: Path) -> None:
    """It says what would be copied, also into a folder that is there."""
    outcome = Stage(local, tmp_path / "dst").run(dry_run=True)
    assert (outcome.copied, outcome.copied_bytes) == (24, sum(map(len, FILES.values())))
    assert not (tmp_path / "dst").exists()
    assert "would copy 24 files" in summary(outcome)
    (tmp_path / "dst").mkdir()
    before = (tmp_path / "dst").stat()
    Stage(local, tmp_path / "dst").run(dry_run=True)
    assert (tmp_path / "dst").stat().st_mtime_ns == before.st_mtime_ns


class Meddled(Store):
    """A store that something happens to each time an object is opened."""

    def __init__(self, folder: Path, meddle: Callable[[str, Reading], Reading]) -> None:
        super().__init__(folder)
        self.meddle = meddle

    def open(self, key: str) -> Reading:
        return self.meddle(key, super().open(key))


def with_chunks(reading: Reading, chunks: Iterator[bytes], etag: str | None = None) -> Reading:
    entry = reading.entry
    told = type(entry)(key=entry.key, size=entry.size, modified_ns=entry.modified_ns, etag=etag)
    return replace(reading, entry=told, chunks=chunks)


def test_bytes_without_their_digest_are_read_again(local: Store, tmp_path: Path) -> None:
    """A flipped bit on the way is noticed by the store's MD5 and does not reach a final name."""
    seen: set[str] = set()

    def flip_once(key: str, reading: Reading) -> Reading:
        data = b"".join(reading.chunks)
        etag = hashlib.md5(data).hexdigest()
        if key not in seen:
            seen.add(key)
            data = bytes([data[0] ^ 1]) + data[1:]
        return with_chunks(reading, iter([data]), etag)

    assert local.folder is not None
    outcome = Stage(Meddled(local.folder, flip_once), tmp_path / "dst").run()
    assert (outcome.failed, outcome.copied) == ({}, 24)
    assert staged(tmp_path / "dst") == FILES


def test_bytes_that_never_have_their_digest_fail(local: Store, tmp_path: Path) -> None:
    """Only those files; the message names both digests and the way out, which works."""

    def flip(key: str, reading: Reading) -> Reading:
        wrong = "0" * 32 if key.startswith("class1/") else None
        return with_chunks(reading, reading.chunks, wrong)

    assert local.folder is not None
    source = Meddled(local.folder, flip)
    outcome = Stage(source, tmp_path / "dst").run()
    assert sorted(outcome.failed) == [key for key in FILES if key.startswith("class1/")]
    assert "--ignore-etags" in outcome.failed["class1/00.bin"]
    assert "0" * 32 in outcome.failed["class1/00.bin"]
    assert staged(tmp_path / "dst") == {k: v for k, v in FILES.items() if not k.startswith("class1/")}
    assert "failed: class1/00.bin" in summary(outcome)
    assert Stage(source, tmp_path / "dst", Selection(ignore_etags=True)).run().failed == {}
    assert staged(tmp_path / "dst") == FILES


def test_a_source_that_changes_while_staging_is_noticed(local: Store, tmp_path: Path) -> None:
    """What changed since it was listed is copied as it is now; what is gone is told, not failed."""
    assert local.folder is not None
    plain = Store(local.folder)
    changed: set[str] = set()

    class Changing(Store):
        def open(self, key: str) -> Reading:
            if key == "class0/01.bin" and key not in changed:
                changed.add(key)
                plain.put(key, b"newer")
            if key == "class0/02.bin":
                (tmp_path / "source" / key).unlink(missing_ok=True)
            return super().open(key)

    outcome = Stage(Changing(local.folder), tmp_path / "dst").run()
    assert (outcome.changed, outcome.gone, outcome.failed) == (["class0/01.bin"], ["class0/02.bin"], {})
    assert (tmp_path / "dst" / "class0/01.bin").read_bytes() == b"newer"
    assert not (tmp_path / "dst" / "class0/02.bin").exists()


def test_a_file_that_never_keeps_still_fails(local: Store, tmp_path: Path) -> None:
    """It is tried a few times, and never has a final name; the others do."""
    assert local.folder is not None

    def grow(key: str, reading: Reading) -> Reading:
        if key == "class0/03.bin":
            with (tmp_path / "source" / key).open("ab") as file:
                file.write(b"+")
        return reading

    outcome = Stage(Meddled(local.folder, grow), tmp_path / "dst").run()
    assert list(outcome.failed) == ["class0/03.bin"]
    assert "changed while it was read" in outcome.failed["class0/03.bin"]
    assert staged(tmp_path / "dst").keys() == FILES.keys() - {"class0/03.bin"}


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("../x", "part that is empty"),
        ("a/../../x", "part that is empty"),
        ("/etc/x", "absolute"),
        ("a//b", "part that is empty"),
        ("a/./b", "part that is empty"),
        ("a/\0", "character"),
        ("x" * 256, "longer than 255 bytes"),
    ],
)
def test_a_key_cannot_leave_the_folder(key: str, why: str, tmp_path: Path) -> None:
    """It is refused, by name, before anything is copied."""
    with pytest.raises(UsageError, match=why):
        Target(tmp_path).check(["fine", key])


def test_a_link_in_the_folder_does_not_lead_out(local: Store, tmp_path: Path) -> None:
    """What would be written through it is not."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "dst").mkdir()
    (tmp_path / "dst" / "class2").symlink_to(outside)
    with pytest.raises(NotPermitted, match="leads out"):
        Stage(local, tmp_path / "dst").run()
    assert not list(outside.iterdir())


@pytest.mark.service
def test_folder_markers_and_our_own_names_are_skipped_and_told(
    s3_server: S3Server, prefix: str, tmp_path: Path
) -> None:
    """Objects of a staged folder that was copied to a store, and names like those of parts."""
    store = s3_server.store(prefix)
    fill(store, {"a/1.bin": b"1", NAME: b"{}", f"a/{PART}00": b"x"})
    outcome = Stage(store, tmp_path / "dst").run()
    assert staged(tmp_path / "dst") == {"a/1.bin": b"1"}
    assert sorted(outcome.skipped) == sorted([NAME, f"a/{PART}00"])
    assert "2 skipped" in summary(outcome)


def test_a_folder_of_another_source_is_refused(local: Store, tmp_path: Path) -> None:
    """So that two sets never mix; and so is a target inside the source."""
    Stage(local, tmp_path / "dst").run()
    (tmp_path / "other").mkdir()
    fill(Store(tmp_path / "other"))
    with pytest.raises(UsageError, match="holds what was staged from"):
        Stage(Store(tmp_path / "other"), tmp_path / "dst").run()
    with pytest.raises(UsageError, match="would be a copy of it"):
        Stage(local, tmp_path / "source" / "in")


def test_two_runs_in_one_folder_are_refused(local: Store, tmp_path: Path) -> None:
    """The second, while the first is at work."""

    class Second(SilentView):
        said: str | None = None

        def start(self, progress: Progress) -> None:
            with pytest.raises(UsageError, match="another `stoker stage`") as caught:
                Stage(local, tmp_path / "dst").run()
            self.said = str(caught.value)

    view = Second()
    Stage(local, tmp_path / "dst", view=view).run()
    assert view.said is not None
    assert staged(tmp_path / "dst") == FILES


def test_too_little_room_is_told_before_anything_is_copied(
    local: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is needed, what is free and what is missing."""
    real = os.statvfs(tmp_path)

    class Small:
        f_frsize, f_bavail, f_files, f_favail = 4096, 3, real.f_files, real.f_favail

    monkeypatch.setattr(os, "statvfs", lambda path: Small)
    with pytest.raises(NoSpace, match=r"staging needs .* for 24 files.*12\.0 KiB free, .* too little"):
        Stage(local, tmp_path / "dst").run()
    assert staged(tmp_path / "dst") == {}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "stoker-test", str(place)], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"no small file system can be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_fills_up_ends_the_run_and_the_next_goes_on(local: Store, small_disk: Path) -> None:
    """With the numbers; no part stays, what was copied is kept, and with room again the rest is copied."""
    hog = small_disk / "hog"

    class Hog(SilentView):
        def start(self, progress: Progress) -> None:
            with hog.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
                while True:
                    file.write(bytes(4096))
            os.truncate(hog, hog.stat().st_size - 30_000)

    with pytest.raises(NoSpace, match=r"the disk is full: .* free under"):
        Stage(local, small_disk / "dst", Selection(jobs=2), view=Hog()).run()
    some = staged(small_disk / "dst")
    assert 0 < len(some) < 24
    assert all(FILES[key] == data for key, data in some.items())
    assert not list(small_disk.rglob(f"{PART}*"))
    hog.unlink()
    outcome = Stage(local, small_disk / "dst").run()
    assert (staged(small_disk / "dst"), outcome.kept) == (FILES, len(some))


def test_a_full_disk_ends_the_keeping_not_the_reading(local: Store, small_disk: Path) -> None:
    """With a warning that says why; what was kept is still used."""
    (small_disk / "hog").write_bytes(bytes((1 << 20) - 60_000))
    kept = WriteThrough(local, small_disk / "kept", local.gather())
    with pytest.warns(UserWarning, match="nothing more is kept .*: No space left"):
        assert kept.get_many(list(FILES)) == list(FILES.values())
    assert 0 < len(staged(small_disk / "kept")) < 24
    assert kept.get_many(list(FILES)) == list(FILES.values())
    assert not list(small_disk.rglob(f"{PART}*"))


def test_watching_keeps_in_step(local: Store, tmp_path: Path) -> None:
    """New and changed files are copied, removed ones told and kept; the store may be away for a while."""
    rounds: list[str] = []
    stop = threading.Event()
    keys = list(FILES)
    away = [StoreUnreachable("no usable answer")]

    class Fickle(Store):
        def gather(self, folders: Any = None) -> Any:
            if len(rounds) == 2 and away:
                raise away.pop()
            return super().gather(folders)

    class Rounds(SilentView):
        def say(self, text: str) -> None:
            rounds.append(text)
            if len(rounds) == 1:
                local.put("class0/new.bin", b"new")
                local.put(keys[1], b"changed")
                (tmp_path / "source" / keys[2]).unlink()
            elif len(rounds) == 3:
                stop.set()

    assert local.folder is not None
    outcome = Stage(Fickle(local.folder), tmp_path / "dst", view=Rounds()).watch(every_s=0.01, stop=stop)
    assert "copied 24 files" in rounds[0]
    assert "copied 2 files" in rounds[1]
    assert f"no longer in the source, and are kept here (--delete removes them): {keys[2]}" in rounds[1]
    assert "no usable answer; next try in" in rounds[2]
    assert outcome.removed == [keys[2]]
    assert staged(tmp_path / "dst") == {**FILES, "class0/new.bin": b"new", keys[1]: b"changed"}


def test_only_when_asked_are_removed_files_deleted(local: Store, tmp_path: Path) -> None:
    """Those that staging put there; never a file of the user's own, nor another class's."""
    target = tmp_path / "dst"
    Stage(local, target).run()
    (target / "mine.txt").write_text("mine")
    keys = [key for key in FILES if key.startswith("class0/")]
    for key in (keys[0], "class1/00.bin"):
        (tmp_path / "source" / key).unlink()
    outcome = Stage(local, target, Selection(classes=["class0"], delete=True)).run()
    assert (outcome.removed, outcome.deleted) == ([keys[0]], 1)
    assert staged(target).keys() == (FILES.keys() - {keys[0]}) | {"mine.txt"}
    assert Stage(local, target, Selection(classes=["class0"])).run().removed == []


def test_a_folder_goes_with_its_last_file(local: Store, tmp_path: Path) -> None:
    """Left behind empty it would be a class of the copy, and the labels other ones than the source's."""
    target = tmp_path / "dst"
    Stage(local, target).run()
    (target / "class2" / "mine.txt").write_text("mine")
    for key in FILES:
        if key.startswith(("class0/", "class2/")):
            (tmp_path / "source" / key).unlink()
    assert Stage(local, target, Selection(delete=True)).run().deleted == 12
    assert Store(target).folders() == ["class1", "class2", "class3"]
    local.put("class0/again.bin", b"back")
    assert Stage(local, target, Selection(delete=True)).run().copied == 1


def test_parts_of_the_dead_are_removed_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    """Whoever still writes holds a lock."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / f"{PART}dead").write_bytes(b"half")
    with whole_file(tmp_path / "a" / "alive") as out:
        out.write(b"all")
        assert remove_leftovers(tmp_path) == 1
    assert staged(tmp_path) == {"a/alive": b"all"}
    with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "a" / "alive") as out:
        out.write(bytes(1 // 0))
    assert (staged(tmp_path), remove_leftovers(tmp_path)) == ({"a/alive": b"all"}, 0)


def test_a_manifest_that_a_kill_cut_off_is_read_and_written_on(local: Store, tmp_path: Path) -> None:
    """The line that was cut is left out, and the next one does not become part of it."""
    target = tmp_path / "dst"
    Stage(local, target).run()
    whole = (target / NAME).read_bytes()
    (target / NAME).write_bytes(whole[:-30])
    assert len(Manifest(target, local.url).lines()) == 23
    outcome = Stage(local, target).run()
    assert (outcome.copied, outcome.kept) == (1, 23)
    assert len(Manifest(target, local.url).lines()) == 24
