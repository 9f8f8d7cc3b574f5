"""What is asked of a scratch run, and what came of it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stoker.errors import UsageError

Mechanism = Literal["overlay", "landlock", "patches"]
Outcome = Literal["done", "failed", "crashed", "stopped", "timed-out", "ended-early"]
GuardName = Literal["ram", "shm", "room", "output", "idle"]
MECHANISMS: tuple[Mechanism, ...] = ("overlay", "landlock", "patches")

_GIB = 1 << 30
# Where /dev/shm is full, what is written to it next ends a worker with SIGBUS, and nothing names the cause.
# Four pages, and no more: Docker's own has 64 MiB, which loaders may use, and where the machine's is full a
# run gets one of 64 KiB, in which a script that shares nothing is to go on.
_SHM_HEADROOM = 16 << 10


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How far the script may go. `None` is no limit.

    `steps` is kept inside the script's process by `child.progress`, so it is exact. `idle_seconds` is
    time without a message from the hook, from the script's first line on; `start_seconds` the same until its
    first step, before which data is loaded and models are compiled: as `idle_seconds` where it is None.
    """

    seconds: float | None = None
    idle_seconds: float | None = None
    start_seconds: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        for name in ("seconds", "idle_seconds", "start_seconds", "steps"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(
                    f"a scratch run's {name} is {value}; it must be more than 0, or None for no limit"
                )


@dataclass(frozen=True, kw_only=True)
class Guards:
    """What stops a script before it hurts the machine.

    `ram_bytes` is the most its processes may hold together (PSS, so shared pages count once);
    `ram_headroom_bytes` must stay free on the machine and in the memory group, whoever takes it.
    More than `shm_headroom_bytes` must stay free in its /dev/shm. `room_bytes` is for all files it writes:
    they are in memory. `output_bytes` is for its stdout and stderr. `vram_fraction` of each GPU
    is what torch may allocate there.
    """

    ram_bytes: int | None = None
    ram_headroom_bytes: int = _GIB // 2
    shm_headroom_bytes: int = _SHM_HEADROOM
    room_bytes: int = 4 * _GIB
    output_bytes: int = _GIB // 4
    vram_fraction: float | None = None

    def __post_init__(self) -> None:
        if self.vram_fraction is not None and not 0 < self.vram_fraction <= 1:
            raise UsageError(
                f"vram_fraction is {self.vram_fraction}; it is a share of the GPU, above 0 and up to 1"
            )
        if self.room_bytes < 1 << 20:
            raise UsageError(f"room_bytes is {self.room_bytes}; a script needs at least 1 MiB to write into")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One scratch run.

    `command` is what follows `python`: `("train.py", "--lr", "0.1")` or `("-m", "pkg.train")`.
    `hook` is `"module:function"`, called in the script's process as `function(child, argument)` before
    the script; if it returns a callable, that runs the script instead of the plain way.
    `writable` are folders written for real, `direct` folders read past the overlay (full speed,
    writes refused), `output` the folder that keeps stdout.txt and stderr.txt. `ranks` is how many
    processes of the script run side by side, with the variables of torchrun; a hook is called in each, and
    whichever calls `child.end` first ends them all. `offline` leaves them a loopback of their own alone.
    """

    command: tuple[str, ...]
    hook: str | None = None
    argument: Any = None
    limits: Limits = field(default_factory=Limits)
    guards: Guards = field(default_factory=Guards)
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: Path | None = None
    output: Path | None = None
    writable: tuple[Path, ...] = ()
    direct: tuple[Path, ...] = ()
    offline: bool = False
    mechanisms: tuple[Mechanism, ...] = MECHANISMS
    ranks: int = 1

    def __post_init__(self) -> None:
        if not self.command or self.command == ("-m",):
            raise UsageError("a scratch run needs a script or -m MODULE; the command is empty")
        if self.hook is not None and not all(self.hook.partition(":")[::2]):
            raise UsageError(f"hook is {self.hook!r}; write it as module:function")
        unknown = [name for name in self.mechanisms if name not in MECHANISMS]
        if unknown or not self.mechanisms:
            raise UsageError(f"unknown write shield {unknown}; there are {', '.join(MECHANISMS)}")
        if self.ranks < 1:
            raise UsageError(f"a scratch run of {self.ranks} ranks; it has 1 or more")


@dataclass(frozen=True, kw_only=True)
class Shield:
    """How the user's files were kept from the script.

    `full`: no file that the script or a program it starts writes lasts. `partial`: some could; `reason`
    says which. For `landlock`, `reason` says what a script will notice.
    """

    kind: Literal["full", "partial"]
    by: Mechanism
    reason: str = ""
    pid_namespace: bool = False


@dataclass(frozen=True, kw_only=True)
class Message:
    """One line from the script's process: `started`, `progress`, `end`, `error`, or a hook's own kind."""

    kind: str
    body: Mapping[str, Any]
    at: float
    """Seconds since the run began."""
    rank: int = 0


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a scratch run.

    `done`: it made its bounded steps or the hook ended it, or, without such a bound, came to its own
    end with code 0. `ended-early`: it came to its end before the bound, or the caller ended it.
    """

    outcome: Outcome
    reason: str
    exit_code: int | None = None
    signal: int | None = None
    guard: GuardName | None = None
    shield: Shield | None = None
    seconds: float
    steps: int | None = None
    messages: tuple[Message, ...] = ()
    stderr_tail: str = ""
    stdout_tail: str = ""
    left: tuple[int, ...] = ()
    """Processes that could not be ended; empty but for ones that stand uninterruptibly in the kernel."""


def is_posix() -> bool:
    """Say whether this platform has what a scratch run is built of: fork, FIFOs, sessions."""
    return os.name == "posix"
