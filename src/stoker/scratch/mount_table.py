"""Which mounts are visible, and what lies where. Pure: made from the text of /proc/self/mountinfo."""

# Names that are no valid text are kept by surrogateescape, as os does.
# ruff: noqa: PTH123

import os
import re
from dataclasses import dataclass

# Files here are the kernel's answers, not anybody's data; an overlay over them would break them.
_KERNEL_OWN = {
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs",
    "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs",
    "selinuxfs", "sysfs", "tracefs",
}  # fmt: skip
# Whatever is mounted below these belongs to the kernel or the devices too.
_KERNEL_PLACES = ("/dev", "/proc", "/sys")


@dataclass(frozen=True, kw_only=True)
class Mount:
    """One visible mount."""

    number: int
    parent: int
    point: str
    file_system: str
    read_only: bool

    @property
    def kernel_own(self) -> bool:
        """Whether this is the kernel's, so taken as it is."""
        return self.file_system in _KERNEL_OWN or is_kernel_place(self.point)


def is_kernel_place(path: str) -> bool:
    """Say whether a path is /dev, /proc or /sys, or below."""
    return any(is_within(path, place) for place in _KERNEL_PLACES)


def is_within(path: str, folder: str) -> bool:
    """Say whether a path is a folder or lies below it, by name alone."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def read() -> list[Mount]:
    """The mounts that this process sees."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return visible(parse(file.read()))


def parse(text: str) -> list[Mount]:
    """Take /proc/self/mountinfo apart."""
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, tail = before.split(" "), after.split(" ")
        options = {*fields[5].split(","), *tail[2].split(",")}
        mounts.append(
            Mount(
                number=int(fields[0]),
                parent=int(fields[1]),
                point=re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4]),
                file_system=tail[0],
                read_only="ro" in options,
            )
        )
    return mounts


def visible(mounts: list[Mount]) -> list[Mount]:
    """Leave out what a later mount hides, and give parents before children.

    Of two mounts on one point the upper has the lower as its parent. A mount on a folder hides its
    elder siblings below that folder: had they come later, they would be its children.
    """
    numbers = {mount.number for mount in mounts}
    found: list[Mount] = []
    waiting = [mount for mount in mounts if mount.parent not in numbers or mount.parent == mount.number]
    while waiting:
        mount = waiting.pop()
        children = [other for other in mounts if other.parent == mount.number and other is not mount]
        upper = next((child for child in children if child.point == mount.point), None)
        if upper is not None:
            waiting.append(upper)
            continue
        found.append(mount)
        waiting.extend(
            child
            for child in children
            if not any(
                other is not child and other.point != child.point and is_within(child.point, other.point)
                for other in children
            )
        )
    return sorted(found, key=lambda mount: (mount.point.count("/"), len(mount.point), mount.point))


def under(mounts: list[Mount], path: str) -> Mount:
    """The mount that a path without symbolic links lies on."""
    return max(
        (mount for mount in mounts if is_within(path, mount.point)), key=lambda mount: len(mount.point)
    )


def below(mounts: list[Mount], path: str) -> list[Mount]:
    """The mounts strictly below a path, the uppermost of each branch only."""
    inside = [mount for mount in mounts if mount.point != path and is_within(mount.point, path)]
    return [
        mount
        for mount in inside
        if not any(other is not mount and is_within(mount.point, other.point) for other in inside)
    ]


def encoded(path: str) -> str:
    """A path as overlay options take it."""
    return re.sub(r"([\\,:])", r"\\\1", os.fspath(path))
