"""The catalogue of the ward: every case, whether it can be run here, and a case made ready to run.

    for case in cases():
        if (reason := injectable(case)) is not None:
            continue                                     # told, never left out in silence
        with prepared(case) as ready:
            subprocess.run(ready.argv, env=ready.env, cwd=ready.cwd)
            subprocess.run(ready.command("-m", "stoker", "doctor"), env=ready.env, cwd=ready.cwd)

A case's script imports nothing of Stoker and is run by its path, from a copy in a folder of its own
with its data beside it. `renamed=True` gives it, its classes, functions, variables and options names
that say nothing.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.ward import needs
from stoker.ward.case import Case, Data, Neutral, Setup
from stoker.ward.register import device, healthy, host, ranks, reading, workers
from stoker.ward.renaming import rename
from stoker.ward.surroundings import MAKERS, SCRIPTS, Around
from stoker.ward.torchrun import torchrun

__all__ = ["Case", "Data", "Neutral", "Prepared", "Setup", "cases", "injectable", "prepared"]

_DATA_S = 180


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A case whose data is made and whose surroundings stand."""

    script: Path
    args: tuple[str, ...]
    prefix: tuple[str, ...]
    launcher: tuple[str, ...]
    env: dict[str, str]
    cwd: Path

    @property
    def argv(self) -> list[str]:
        """The script as its user starts it."""
        return self.command()

    def command(self, *tool: str) -> list[str]:
        """The same with a tool between the interpreter and the script: `-m stoker doctor`, or a path."""
        return [*self.prefix, *self.launcher, *tool, str(self.script), *self.args]


def cases() -> tuple[Case, ...]:
    """All cases, also those that cannot be run here."""
    return (*reading.CASES, *workers.CASES, *host.CASES, *device.CASES, *ranks.CASES, *healthy.CASES)


def injectable(case: Case) -> str | None:
    """Why this machine cannot run the case; `None` where it can."""
    return needs.missing(case)


@contextlib.contextmanager
def prepared(case: Case, *, renamed: bool = False) -> Iterator[Prepared]:
    """The case with its data made and its surroundings up, until the block ends."""
    with tempfile.TemporaryDirectory(prefix="run-") as home, contextlib.ExitStack() as standing:
        folder = Path(home, "project")
        folder.mkdir()
        script, args = _write_script(case, folder, renamed)
        for data in case.data:
            _make(data, folder)
        parts = [standing.enter_context(MAKERS[setup.name](setup.value, folder)) for setup in case.setup]
        yield Prepared(
            script=script,
            args=args,
            prefix=tuple(word for part in parts for word in part.prefix),
            launcher=(sys.executable,) if case.ranks == 1 else torchrun(case.ranks),
            env=_environment(parts, case.ranks),
            cwd=folder,
        )


def _write_script(case: Case, folder: Path, renamed: bool) -> tuple[Path, tuple[str, ...]]:
    source = SCRIPTS / case.script
    if not renamed:
        return Path(shutil.copy(source, folder)), case.args
    changed = rename(source.read_text())
    script = folder / "main.py"
    script.write_text(changed.text)
    return script, tuple(changed.options.get(word, word) for word in case.args)


def _make(data: Data, folder: Path) -> None:
    before = set(folder.rglob("*"))
    command = [sys.executable, str(SCRIPTS / "data" / data.maker), *data.args]
    subprocess.run(command, cwd=folder, check=True, timeout=_DATA_S)
    for path in sorted(set(folder.rglob("*")) - before):
        if path.is_file():
            _settle(path, data.cold)


def _settle(path: Path, cold: bool) -> None:
    """Have a file on the disk, and where asked nowhere else: what is not written yet cannot be dropped."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        if cold:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def _environment(parts: list[Around], ranks: int) -> dict[str, str]:
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "GLOO_SOCKET_IFNAME": "lo"}
    if ranks > 1:
        env["OMP_NUM_THREADS"] = "1"  # as torchrun would choose, which says so at length
    for part in parts:
        env.update(part.env)
    return env
