"""Storage under a path: kinds of file systems, reading that stays inside, cold only with proof."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.errors import NotPermitted, UsageError
from stoker.facts import mounts, residency, storage
from stoker.facts.mounts import Mount

MOUNTS = r"""22 1 254:1 / / rw - ext4 /dev/vda1 rw
30 22 0:40 / /data rw - nfs4 server:/export rw
31 22 0:41 / /data/my\040set rw - fuse.rclone remote:bucket rw
32 22 0:42 / /dev/shm rw - tmpfs tmpfs rw
33 22 0:43 / /data/my\040set rw - fuse.s3fs s3fs rw
"""


@pytest.mark.parametrize(
    ("path", "point", "file_system"),
    [
        ("/home/a", "/", "ext4"),
        ("/data/x", "/data", "nfs4"),
        ("/data2", "/", "ext4"),
        ("/data/my set/deep/er", "/data/my set", "fuse.s3fs"),
    ],
)
def test_the_longest_mount_wins_and_the_last_on_one_point(
    tmp_path: Path, path: str, point: str, file_system: str
) -> None:
    """A path lies on the mount nearest above it; escaped blanks are undone; a name's prefix is no parent."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(MOUNTS)
    found = mounts.find(Path(path), tmp_path)
    assert found is not None
    assert (found.point, found.file_system) == (point, file_system)


@pytest.mark.parametrize(
    ("file_system", "source", "kind"),
    [
        ("ext4", "/dev/vda", "local"),
        ("xfs", "/dev/nvme0n1p1", "local"),
        ("fuseblk", "/dev/sdb1", "local"),
        ("nfs", "a:/b", "nfs"),
        ("nfs4", "a:/b", "nfs"),
        ("fuse.s3fs", "s3fs", "object-store"),
        ("fuse.rclone", "r:b", "object-store"),
        ("fuse.gcsfuse", "bucket", "object-store"),
        ("fuse", "mountpoint-s3", "object-store"),
        ("fuse.blobfuse2", "blobfuse2", "object-store"),
        ("fuse.sshfs", "me@there:", "fuse"),
        ("overlay", "overlay", "overlay"),
        ("tmpfs", "tmpfs", "tmpfs"),
        ("cifs", "//a/b", "network"),
        ("lustre", "a@tcp:/b", "network"),
        ("9p", "hostshare", "network"),
        ("virtiofs", "share", "network"),
        ("somethingfs", "x", "unknown"),
    ],
)
def test_file_systems_are_classed_by_how_they_are_reached(file_system: str, source: str, kind: str) -> None:
    """Each kind of mount has its class; an unheard-of one is unknown, not local."""
    assert mounts.kind_of(Mount(point="/", file_system=file_system, source=source)) == kind


def test_rotation_of_a_partition_is_its_disks(tmp_path: Path) -> None:
    """A partition has no queue; its disk says whether it turns. Without a block device nothing is said."""
    disk = tmp_path / "sys/devices/sda"
    (disk / "sda1").mkdir(parents=True)
    (disk / "queue").mkdir()
    (disk / "queue/rotational").write_text("1\n")
    (disk / "sda1/uevent").write_text("MAJOR=8\nDEVNAME=sda1\n")
    (tmp_path / "sys/dev/block").mkdir(parents=True)
    (tmp_path / "sys/dev/block/8:1").symlink_to(disk / "sda1")
    assert mounts.is_rotational("8:1", tmp_path) is True
    assert mounts.device_name("8:1", tmp_path) == "sda1"
    assert mounts.is_rotational("0:40", tmp_path) is None
    assert mounts.is_rotational(None, tmp_path) is None


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(storage, "_HUNG_S", 120.0)  # a disk at which others write answers late
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    for number in range(20):
        (folder / "deep" / f"{number}.bin").write_bytes(os.urandom(10_000))
    (folder / "large.bin").write_bytes(os.urandom(9 << 20))
    return folder


def test_reading_measures_a_large_file_and_small_ones(data: Path) -> None:
    """Both rates come out, over what was really read, and the space is told."""
    found = storage.read(data)
    assert found.path == str(data.resolve())
    assert found.total_bytes is not None and found.free_bytes is not None
    reads = found.reads
    assert reads is not None
    assert (reads.sequential_bytes, reads.files, reads.files_bytes) == (9 << 20, 20, 200_000)
    assert reads.sequential_mb_s is not None and reads.sequential_mb_s > 0
    assert reads.file_median_ms is not None and reads.file_p90_ms is not None
    assert reads.file_median_ms <= reads.file_p90_ms


def test_links_out_of_the_path_are_not_followed(data: Path, tmp_path: Path) -> None:
    """What a link points to is neither listed nor read."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "huge.bin").write_bytes(b"x" * (12 << 20))
    (data / "folder").symlink_to(outside)
    (data / "file").symlink_to(outside / "huge.bin")
    reads = storage.read(data).reads
    assert reads is not None
    assert (reads.sequential_bytes, reads.files) == (9 << 20, 20)


def test_one_file_is_read_in_order(data: Path) -> None:
    """A path may be a single file: then there is no sample of small ones."""
    reads = storage.read(data / "large.bin").reads
    assert reads is not None
    assert (reads.sequential_bytes, reads.files) == (9 << 20, None)


def test_an_empty_folder_has_nothing_to_read(tmp_path: Path) -> None:
    """No file to read is said, and no rate is made up."""
    found = storage.read(tmp_path)
    assert found.reads is None
    assert found.reason is not None


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm")
def test_memory_is_neither_cold_nor_warm() -> None:
    """On tmpfs the question of cold or warm has no answer."""
    if (mount := mounts.find(Path("/dev/shm"))) is None or mounts.kind_of(mount) != "tmpfs":
        pytest.skip("/dev/shm is not a tmpfs here")
    file = Path("/dev/shm") / f"stoker-test-{os.getpid()}"
    file.write_bytes(b"x" * (9 << 20))
    try:
        found = storage.read(file)
    finally:
        file.unlink()
    assert (found.kind, found.rotational) == ("tmpfs", None)
    assert found.reads is not None and found.reads.sequential_cold is None


def test_cold_needs_proof() -> None:
    """Cold and warm are said only when residency or device reads show it."""

    def judge(share: float | None, fetched: int | None, block: bool = True) -> bool | None:
        return residency.judge(share_before=share, fetched=fetched, read=1000, on_block_device=block)

    assert judge(0.0, None) is True
    assert judge(1.0, 1000) is True
    assert judge(1.0, 0) is False
    assert judge(1.0, 0, block=False) is None
    assert judge(1.0, 500) is None
    assert judge(None, None) is None
    assert residency.judge(share_before=0.0, fetched=0, read=0, on_block_device=True) is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mincore by Linux' rules")
def test_a_file_just_written_is_resident(tmp_path: Path) -> None:
    """mincore sees what lies in the page cache, whatever the file's size."""
    file = tmp_path / "file"
    file.write_bytes(b"x" * 10_000)
    with file.open("rb") as opened:
        assert residency.resident_share(opened.fileno(), 10_000) == 1.0
        assert residency.resident_share(opened.fileno(), 0) is None


def test_a_missing_path_is_wrong_use(tmp_path: Path) -> None:
    """The error names the path and what to do."""
    with pytest.raises(UsageError, match=r"no such file or folder: .*nowhere; give --data"):
        storage.read(tmp_path / "nowhere")


def test_a_pipe_is_wrong_use(tmp_path: Path) -> None:
    """Something that is neither file nor folder is refused, and not waited on."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        storage.read(tmp_path / "pipe")


def test_a_path_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    """A folder without permission is an error with a word on permissions."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    if os.access(closed, os.R_OK):
        # Root may read everything: ask as nobody.
        ask = (
            "import os, sys\nfrom pathlib import Path\n"
            "from stoker.errors import NotPermitted\nfrom stoker.facts import storage\n"
            "os.setgid(65534); os.setuid(65534)\n"
            "try:\n    storage.read(Path(sys.argv[1]))\nexcept NotPermitted as error:\n    print(error)\n"
        )
        command = [sys.executable, "-c", ask, str(closed)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert "may not be re" in done.stdout, done.stderr
        return
    with pytest.raises(NotPermitted, match="may not be read"):
        storage.read(closed)


def test_an_overlay_is_told_from_what_it_lies_on(tmp_path: Path) -> None:
    """Inside a mount namespace with an overlay, the path's file system is the overlay."""
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    (tmp_path / "lower/file").write_bytes(b"x" * 1000)
    options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    ask = (
        "import sys; from pathlib import Path; from stoker.facts import storage\n"
        "found = storage.read(Path(sys.argv[1])); print(found.kind, found.reads is not None)"
    )
    # The shell's words, so that mount and reader share the namespace, which ends with them.
    script = 'mount -t overlay overlay -o "$1" "$2" && exec "$3" -c "$4" "$2"'
    words = [options, f"{tmp_path}/merged", sys.executable, ask]
    try:
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script, "sh", *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"no overlay may be mounted here: {done.stderr.strip()}")
    assert done.stdout.split() == ["overlay", "True"], done.stderr
