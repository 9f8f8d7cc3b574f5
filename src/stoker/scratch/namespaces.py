"""Private namespaces: mounts, IPC, processes, and on request a network without interfaces."""

import fcntl
import os
import socket
import struct
from pathlib import Path

from stoker.scratch import kernel

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_CAP_SYS_ADMIN = 21


def enter(*, mounts: bool, processes: bool, offline: bool) -> None:
    """Leave the machine's namespaces; with `processes`, the next child is the first of its own.

    Without the right to do so as we are, a user namespace gives it. The user stays who they are in it.
    """
    flags = kernel.NEWNS | kernel.NEWIPC if mounts else 0
    flags |= kernel.NEWPID if processes else 0
    flags |= kernel.NEWNET if offline else 0
    if not flags:
        return
    if _may_administer():
        kernel.unshare(flags)
    else:
        user, group = os.geteuid(), os.getegid()
        kernel.unshare(flags | kernel.NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    if offline:
        _raise_loopback()


def _may_administer() -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False


def _raise_loopback() -> None:
    """Bring up 127.0.0.1, which gloo, torchrun and spawned workers may need."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(link, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(link, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))
