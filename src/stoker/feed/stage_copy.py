"""One file copied and verified, or one that is already there checked."""

import errno
import hashlib
import os
import shutil
from typing import Any, BinaryIO

from stoker.errors import NoSpace, NoSuchObject, SourceChanged, StageFailed, StoreUnreachable
from stoker.facts.words import size as in_words
from stoker.feed.manifest import Line
from stoker.feed.sources.listing import Entry, Reading
from stoker.feed.sources.objects import Store
from stoker.feed.stage_plan import Target, md5_of
from stoker.feed.stage_view import Attempt, Progress
from stoker.feed.whole_file import whole_file

# What changes while it is read, or comes without its digest, is read again so often.
TRIES = 3
_CHUNK = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Copier:
    """Copies objects of a store to files under a target."""

    def __init__(self, store: Store, target: Target, *, ignore_etags: bool = False) -> None:
        self._store = store
        self._target = target
        self._ignore_etags = ignore_etags

    def copy(self, entry: Entry, progress: Progress) -> tuple[Line, bool]:
        """Copy an object as it is now; its line, and whether it is no longer what was listed."""
        failure: Exception | None = None
        for _ in range(TRIES):
            attempt = progress.begin()
            try:
                return self._copy_once(entry, attempt)
            except (SourceChanged, StoreUnreachable) as error:
                attempt.take_back()
                failure = error
            except NoSuchObject:
                raise
            except OSError as error:
                attempt.take_back()
                raise self.explain(error, entry) from error
        if isinstance(failure, StoreUnreachable):
            raise failure  # the next file's turn would end the same way
        raise StageFailed(f"{failure} ({TRIES} tries)") from failure

    def is_right(self, entry: Entry, wanted: str) -> bool:
        """Whether the file that is there has this digest."""
        try:
            with self._target.path(entry.key).open("rb") as file:
                return _digest_of(file, wanted.partition(":")[0]) == wanted
        except OSError:  # not there any more, or not to be read: to be copied
            return False

    def _copy_once(self, entry: Entry, attempt: Attempt) -> tuple[Line, bool]:
        with self._store.open(entry.key) as reading:
            return self._receive(entry, reading, attempt)

    def _receive(self, entry: Entry, reading: Reading, attempt: Attempt) -> tuple[Line, bool]:
        now = reading.entry
        changed = not now.is_like(entry)
        told = now if changed else entry
        md5 = None if self._ignore_etags else md5_of(now)
        kind = "md5" if md5 is not None else "blake2b"
        digest = _start(kind)
        with whole_file(self._target.place(entry.key), modified_ns=told.modified_ns) as out:
            for chunk in reading.chunks:
                digest.update(chunk)
                out.write(chunk)
                attempt.add(len(chunk))
            received = f"{kind}:{digest.hexdigest()}"
            if md5 is not None and digest.hexdigest() != md5:
                raise SourceChanged(
                    f"{entry.key!r} came with MD5 {digest.hexdigest()} where its tag says {md5}; if the "
                    "store encrypts with its own keys (KMS), its tags are no digests: --ignore-etags"
                )
            if md5 is None and _read_back(out, kind) != received:
                raise StageFailed(
                    f"{entry.key!r} is not what was written when it is read back; check the disk under "
                    f"{self._target.folder}"
                )
        return Line.of(told, received), changed

    def explain(self, error: OSError, entry: Entry) -> Exception:
        """What to tell when the disk refuses."""
        folder = self._target.folder
        if error.errno in _FULL:
            free = shutil.disk_usage(folder).free
            return NoSpace(
                f"the disk is full: {in_words(entry.size)} for {entry.key!r}, {in_words(free)} free under "
                f"{folder}; free some and start again: what is there is kept"
            )
        return StageFailed(
            f"{self._target.path(entry.key)} cannot be written: {error.strerror or error}; mend that and "
            "start again: what is there is kept"
        )


def _read_back(file: BinaryIO, kind: str) -> str:
    """The digest of what lies on disk: synced, and dropped from memory first where the system can."""
    file.flush()
    os.fsync(file.fileno())
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    file.seek(0)
    return _digest_of(file, kind)


def _digest_of(file: BinaryIO, kind: str) -> str:
    digest = _start(kind)
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return f"{kind}:{digest.hexdigest()}"


def _start(kind: str) -> Any:
    if kind == "md5":
        return hashlib.md5(usedforsecurity=False)
    return hashlib.blake2b(digest_size=16)
