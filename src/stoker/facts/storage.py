"""Storage under a path: the file system's kind, and how fast it reads, measured in about two seconds.

Reads only, never follows a link out of the path, and never waits for a mount that hangs.
"""

import os
import random
import shutil
import stat
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from stoker.errors import NotPermitted, UsageError
from stoker.facts import mounts, residency
from stoker.facts.values import Reads, Storage, StorageKind

# Two seconds in all: people wait for a check. A mount that hangs is given up on after ten.
_LIST_S, _SEQUENTIAL_S, _FILES_S, _HUNG_S = 0.4, 0.8, 0.8, 10.0
_SEQUENTIAL_BYTES = 256 << 20
_CHUNK = 4 << 20
_FILE_BYTES = 1 << 20
_LISTED, _SAMPLED = 20_000, 64
# A smaller file ends before the rate of a device shows.
_LARGE = 8 << 20


@dataclass(frozen=True, kw_only=True)
class _Timed:
    seconds: float
    bytes: int
    share_before: float | None
    fetched: int | None


def read(path: Path) -> Storage:
    """Find out what lies under a path, and read from it."""
    found: list[Storage] = []
    raised: list[Exception] = []

    def look() -> None:
        try:
            storage = describe(path)
            found.append(storage)
            found.append(_measure_or_say(storage))
        except (UsageError, OSError) as error:
            raised.append(error)

    # A dead NFS server blocks a system call for ever; only another thread can be left waiting in it.
    thread = threading.Thread(target=look, name="stoker-storage", daemon=True)
    thread.start()
    thread.join(_HUNG_S)
    if thread.is_alive():
        reason = f"no answer in {_HUNG_S:.0f} s: the mount hangs"
        if found:
            return replace(found[0], reason=reason)
        return Storage(path=str(path), mount_point=None, file_system=None, kind="unknown", reason=reason)
    if raised:
        error = raised[0]
        if isinstance(error, UsageError):
            raise error
        raise NotPermitted(f"cannot look at {path}: {error}; give --data a path that can be read") from error
    return found[-1]


def describe(path: Path) -> Storage:
    """Describe the file system under a path, without reading from it."""
    try:
        real = path.expanduser().resolve(strict=True)
        mode = real.stat().st_mode
    except FileNotFoundError:
        raise UsageError(
            f"no such file or folder: {path}; give --data the place where the training data lies"
        ) from None
    except PermissionError:
        raise NotPermitted(
            f"{path} may not be reached by this user; check its permissions, or its folders'"
        ) from None
    except RuntimeError as error:  # a link that leads to itself, or a home that is not known
        raise UsageError(f"{path} leads nowhere ({error}); give --data a real path") from None
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise UsageError(
            f"{path} is neither a file nor a folder; give --data the place where the training data lies"
        )
    if not os.access(real, os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0)):
        raise NotPermitted(f"{path} may not be read by this user; check its permissions")
    mount = mounts.find(real)
    total, free = _space(real)
    if mount is None:
        return Storage(
            path=str(real),
            mount_point=None,
            file_system=None,
            kind="unknown",
            total_bytes=total,
            free_bytes=free,
        )
    return Storage(
        path=str(real),
        mount_point=mount.point,
        file_system=mount.file_system,
        kind=mounts.kind_of(mount),
        source=mount.source,
        device=mounts.device_name(mount.device),
        rotational=mounts.is_rotational(mount.device),
        total_bytes=total,
        free_bytes=free,
    )


def _measure_or_say(storage: Storage) -> Storage:
    try:
        reads = measure(Path(storage.path), storage.kind)
    except OSError as error:
        return replace(storage, reason=f"reading failed: {error}")
    return replace(
        storage, reads=reads, reason=None if reads is not None else "no readable file under the path"
    )


def measure(path: Path, kind: StorageKind) -> Reads | None:
    """Read one large file in order and a sample of small ones whole; `None` when there is nothing to read."""
    started = time.monotonic()
    files = [(path, path.stat().st_size)] if path.is_file() else list(_list(path, started + _LIST_S))
    files = [(file, size) for file, size in files if size > 0]
    if not files:
        return None
    reads = Reads()
    largest, size = max(files, key=lambda entry: entry[1])
    on_block_device = kind in ("local", "overlay")
    if size >= _LARGE or len(files) == 1:
        timed = _read_large(largest, size)
        if timed is not None:
            reads = replace(
                reads,
                sequential_mb_s=timed.bytes / 1e6 / timed.seconds if timed.seconds > 0 else None,
                sequential_bytes=timed.bytes,
                sequential_cold=_cold([timed], kind, on_block_device),
            )
    small = [file for file, _ in files if file != largest]
    # Seeded, so that two checks read the same files; spread, since neighbours are read ahead together.
    sample = random.Random(0).sample(small, min(_SAMPLED, len(small)))
    times = _read_small(sample)
    if times:
        latencies = sorted(timed.seconds * 1e3 for timed in times)
        spent = sum(timed.seconds for timed in times)
        reads = replace(
            reads,
            files=len(times),
            files_bytes=sum(timed.bytes for timed in times),
            files_per_s=len(times) / spent if spent > 0 else None,
            file_median_ms=statistics.median(latencies),
            file_p90_ms=latencies[min(len(latencies) - 1, int(0.9 * len(latencies)))],
            files_cold=_cold(times, kind, on_block_device),
        )
    return replace(reads, seconds=time.monotonic() - started)


def _list(folder: Path, deadline: float) -> Iterator[tuple[Path, int]]:
    """List files below a folder until the time is up. Links are not followed: nothing outside is touched."""
    folders, seen = [folder], 0
    while folders:
        try:
            entries = os.scandir(folders.pop())
        except OSError:
            continue  # a folder that may not be listed has siblings that may
        with entries:
            for entry in entries:
                if seen >= _LISTED or (seen and time.monotonic() > deadline):
                    return
                seen += 1
                try:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
                    elif entry.is_file(follow_symlinks=False):
                        yield Path(entry.path), entry.stat(follow_symlinks=False).st_size
                except OSError:
                    continue  # removed since it was listed


def _read_large(file: Path, size: int) -> _Timed | None:
    length = min(size, _SEQUENTIAL_BYTES)
    descriptor = _open(file)
    if descriptor is None:
        return None
    try:
        residency.request_eviction(descriptor, length)
        share = residency.resident_share(descriptor, length)
        before = residency.device_bytes_read()
        buffer = memoryview(bytearray(_CHUNK))
        begun = time.perf_counter()
        done = 0
        while done < length and time.perf_counter() - begun < _SEQUENTIAL_S:
            got = os.readv(descriptor, [buffer]) if hasattr(os, "readv") else len(os.read(descriptor, _CHUNK))
            if got == 0:
                break
            done += got
        seconds = time.perf_counter() - begun
        after = residency.device_bytes_read()
    finally:
        os.close(descriptor)
    fetched = None if before is None or after is None else after - before
    return _Timed(seconds=seconds, bytes=done, share_before=share, fetched=fetched)


def _read_small(files: list[Path]) -> list[_Timed]:
    deadline = time.monotonic() + _FILES_S
    times: list[_Timed] = []
    for file in files:
        if times and time.monotonic() > deadline:
            break
        timed = _read_whole(file)
        if timed is not None:
            times.append(timed)
    return times


def _read_whole(file: Path) -> _Timed | None:
    """Time open, read and close, as a dataset does them; making the file cold stands outside the time."""
    begun = time.perf_counter()
    descriptor = _open(file)
    opened = time.perf_counter() - begun
    if descriptor is None:
        return None
    try:
        length = min(os.fstat(descriptor).st_size, _FILE_BYTES)
        residency.request_eviction(descriptor, length)
        share = residency.resident_share(descriptor, length)
        before = residency.device_bytes_read()
        begun = time.perf_counter()
        got = len(os.read(descriptor, _FILE_BYTES))
        seconds = time.perf_counter() - begun
        after = residency.device_bytes_read()
    finally:
        begun = time.perf_counter()
        os.close(descriptor)
    closed = time.perf_counter() - begun
    fetched = None if before is None or after is None else after - before
    return _Timed(seconds=opened + seconds + closed, bytes=got, share_before=share, fetched=fetched)


def _open(file: Path) -> int | None:
    try:
        # A file swapped for a link or a pipe since it was listed is not followed, and not waited on.
        guards = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        return os.open(file, os.O_RDONLY | guards)
    except OSError:
        return None


def _cold(times: list[_Timed], kind: StorageKind, on_block_device: bool) -> bool | None:
    """Judge all reads together: cold or warm only when every one was shown to be so."""
    if kind == "tmpfs":
        return None  # it lives in memory: there is no cold read of it
    verdicts = {
        residency.judge(
            share_before=timed.share_before,
            fetched=timed.fetched,
            read=timed.bytes,
            on_block_device=on_block_device,
        )
        for timed in times
    }
    return verdicts.pop() if len(verdicts) == 1 else None


def _space(path: Path) -> tuple[int | None, int | None]:
    try:
        room = shutil.disk_usage(path)
    except OSError:
        return None, None
    return room.total, room.free
