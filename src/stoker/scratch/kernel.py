"""The system calls that Python does not offer: namespaces, mounts, prctl, Landlock. Linux only."""

import ctypes
import errno
import functools
import os
import signal
import struct

NEWNS, NEWUSER, NEWPID, NEWNET, NEWIPC = 0x0002_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000, 0x0800_0000
RDONLY, REMOUNT, BIND, REC, PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x4_0000
NOSUID, NODEV = 0x2, 0x4
DETACH = 2

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
# The same numbers on x86-64 and arm64: both use the generic table for calls added since 2019.
_MOUNT_SETATTR, _LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 442, 444, 445, 446
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_AT_FDCWD, _AT_RECURSIVE, _ATTR_RDONLY = -100, 0x8000, 0x1


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def _syscall(call: str, number: int, *words: object) -> int:
    made = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    return _check(_libc().syscall(ctypes.c_long(number), *made), call)


def unshare(flags: int) -> None:
    """Leave the namespaces named by the flags for new ones."""
    _check(_libc().unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount a file system, or bind or change a mount, as the flags say."""
    words = [os.fsencode(word) if word else None for word in (source, target, kind)]
    _check(
        _libc().mount(*words, ctypes.c_ulong(flags), os.fsencode(options) if options else None),
        f"mount {kind or 'bind'} on {target}",
    )


def unmount(target: str) -> None:
    """Take a mount away now, and its file system when nobody uses it any more."""
    _check(_libc().umount2(os.fsencode(target), DETACH), f"unmount {target}")


def forbid_writes(target: str) -> None:
    """Make a mount, and every mount below it, read-only."""
    attributes = struct.pack("QQQQ", _ATTR_RDONLY, 0, 0, 0)
    try:
        _syscall(
            f"mount_setattr {target}", _MOUNT_SETATTR,
            _AT_FDCWD, ctypes.c_char_p(os.fsencode(target)), _AT_RECURSIVE,
            ctypes.c_char_p(attributes), len(attributes),
        )  # fmt: skip
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        # Before 5.12 a mount is changed by itself, without those below it.
        mount("", target, flags=REMOUNT | BIND | RDONLY)


def change_root(folder: str) -> None:
    """Make a mount this process' root, with nothing left of the old one."""
    os.chdir(folder)
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(f"pivot_root: its number on {os.uname().machine} is not known here")
    _syscall("pivot_root", number, ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    # The old root now lies on top of the new one.
    unmount(".")
    os.chdir("/")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Be sent this signal by the kernel when the parent is gone."""
    _check(_libc().prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0), "prctl PDEATHSIG")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies."""
    _check(_libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl SUBREAPER")


def renounce_privileges() -> None:
    """Gain no rights from programs started later; Landlock asks for this."""
    _check(_libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl NO_NEW_PRIVS")


def landlock_version() -> int:
    """Return the version of Landlock that this kernel has; raise where it has none."""
    return _syscall("landlock", _LANDLOCK_CREATE, ctypes.c_void_p(None), 0, 1)


def landlock_ruleset(handled: int) -> int:
    """Return a descriptor of a new set of rules, which denies all of `handled`."""
    attributes = struct.pack("Q", handled)
    return _syscall(
        "landlock_create_ruleset", _LANDLOCK_CREATE, ctypes.c_char_p(attributes), len(attributes), 0
    )


def landlock_allow(ruleset: int, folder: int, allowed: int) -> None:
    """Allow what `allowed` names beneath an open folder (or for an open file)."""
    rule = struct.pack("=Qi", allowed, folder)
    _syscall("landlock_add_rule", _LANDLOCK_ADD, ruleset, 1, ctypes.c_char_p(rule), 0)


def landlock_restrict(ruleset: int) -> None:
    """Bind this process and all its descendants to the rules, for ever."""
    _syscall("landlock_restrict_self", _LANDLOCK_RESTRICT, ruleset, 0)
