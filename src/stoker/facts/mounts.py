"""Mounts: which file system lies under a path, what kind that is, and what device carries it."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from stoker.facts.values import StorageKind

_NFS = {"nfs", "nfs4"}
_NETWORK = {
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph-fuse", "fuse.glusterfs", "gfs2", "glusterfs", "gpfs",
    "afpfs", "lustre", "ncpfs", "ocfs2", "orangefs", "panfs", "smb2", "smb3", "smbfs", "virtiofs", "webdav",
    "wekafs",
}  # fmt: skip
_OBJECT_STORES = {
    "blobfuse", "blobfuse2", "cloudfuse", "cosfs", "cunofs", "gcsfuse", "geesefs", "goofys", "juicefs",
    "mount-s3", "mountpoint-s3", "obsfs", "ossfs", "rclone", "riofs", "s3backer", "s3fs", "s3ql", "yas3fs",
}  # fmt: skip
_TMPFS = {"tmpfs", "ramfs", "hugetlbfs"}
_OVERLAY = {"overlay", "aufs", "fuse.fuse-overlayfs", "unionfs"}
_LOCAL = {
    "apfs", "bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "fat32", "fuseblk", "hfs",
    "iso9660", "jfs", "msdos", "nilfs2", "ntfs", "ntfs3", "reiserfs", "squashfs", "udf", "ufs", "vfat", "xfs",
    "zfs",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Mount:
    """One mounted file system. `device` is the kernel's major:minor number, where it tells one."""

    point: str
    file_system: str
    source: str
    device: str | None = None


def find(path: Path, root: Path = Path("/")) -> Mount | None:
    """Find the mount that a resolved path lies on."""
    mounts = _read(root)
    inside = [mount for mount in mounts if _contains(mount.point, path)]
    # Of two mounts on one point the later hides the earlier.
    longest = max((len(mount.point) for mount in inside), default=0)
    return next((mount for mount in reversed(inside) if len(mount.point) == longest), None)


def kind_of(mount: Mount) -> StorageKind:
    """Class a file system by how it is reached."""
    name = mount.file_system.lower()
    if name in _NFS:
        return "nfs"
    if name in _NETWORK:
        return "network"
    if name in _TMPFS:
        return "tmpfs"
    if name in _OVERLAY:
        return "overlay"
    if name in _LOCAL:
        return "local"
    if name.startswith(("fuse", "macfuse", "osxfuse")):
        told = {name.partition(".")[2], mount.source.lower().partition(":")[0]}
        return "object-store" if told & _OBJECT_STORES else "fuse"
    return "unknown"


def parse_mountinfo(text: str) -> list[Mount]:
    """Take /proc/self/mountinfo apart."""
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, tail = before.split(), after.split()
        if len(fields) >= 5 and len(tail) >= 2:
            mounts.append(
                Mount(point=_plain(fields[4]), file_system=tail[0], source=_plain(tail[1]), device=fields[2])
            )
    return mounts


def is_rotational(device: str | None, root: Path = Path("/")) -> bool | None:
    """Say whether a block device turns. Network and memory file systems have no block device: `None`."""
    if device is None or device.startswith("0:"):
        return None
    block = root / "sys/dev/block" / device
    # A partition has no queue of its own; its disk, the folder above, does.
    for flag in (block / "queue/rotational", block / "../queue/rotational"):
        try:
            return flag.read_text().strip() == "1"
        except OSError:
            continue
    return None


def device_name(device: str | None, root: Path = Path("/")) -> str | None:
    """Return a block device's name (vda1, nvme0n1p2, md0)."""
    if device is None or device.startswith("0:"):
        return None
    try:
        text = (root / "sys/dev/block" / device / "uevent").read_text()
    except OSError:
        return None
    match = re.search(r"^DEVNAME=(.+)$", text, re.MULTILINE)
    return match[1] if match else None


def _read(root: Path) -> list[Mount]:
    try:
        return parse_mountinfo((root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        pass  # not Linux: psutil knows the mounts, without device numbers
    return [
        Mount(point=part.mountpoint, file_system=part.fstype or "unknown", source=part.device)
        for part in psutil.disk_partitions(all=True)
    ]


def _contains(point: str, path: Path) -> bool:
    if sys.platform == "win32":
        return str(path).lower().startswith(point.lower())
    return path.is_relative_to(point)


def _plain(text: str) -> str:
    """Undo the kernel's octal escapes (\\040 is a blank)."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
