"""What trials share: servers that are started once, and what is made once to be copied.

A server that a trial kills is started again by it, on the same port and with the same data.
"""

import contextlib
import shutil
import urllib.parse
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from stoker.bench.faults import samples
from stoker.errors import BenchFailed
from stoker.ward import s3
from stoker.ward.postgres import PostgresServer

BUCKET = "faults"


class Services:
    """Started when first asked for, ended with the block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._parts = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._parts.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @cached_property
    def s3(self) -> s3.RunningServer:
        """A store with the numbered images under `train/`."""
        home = self.folder / "s3"
        home.mkdir()
        server = self._parts.enter_context(s3.serve(home, BUCKET))
        made = self.made("images", lambda folder: samples.make("images", folder))
        store = server.store(f"{BUCKET}/train")
        for path in sorted(made.rglob("*.png")):
            store.put(path.relative_to(made).as_posix(), path.read_bytes())
        return server

    @cached_property
    def postgres(self) -> PostgresServer:
        """A server with the numbered samples in a table."""
        server = self._parts.enter_context(PostgresServer())
        values = ", ".join(
            f"({number}, '{{{','.join(f'{value:g}' for value in samples.row_of(number).tolist())}}}')"
            for number in range(samples.COUNT)
        )
        server.run(
            "CREATE TABLE samples (id int PRIMARY KEY, x float4[] NOT NULL)",
            f"INSERT INTO samples VALUES {values}",
        )
        return server

    def new_database(self, name: str) -> str:
        """The URL of an empty database on the PostgreSQL server."""
        self.postgres.run(f'CREATE DATABASE "{name}"')
        parts = urllib.parse.urlsplit(self.postgres.tcp_url)
        return urllib.parse.urlunsplit(parts._replace(path=f"/{name}"))

    def made(self, name: str, make: Callable[[Path], object]) -> Path:
        """A folder that is made once; to be read, or copied."""
        place = self.folder / "made" / name
        if not place.exists():
            part = place.with_name(f"{name}.part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            make(part)
            part.rename(place)
        return place

    def copy_of(self, name: str, make: Callable[[Path], object], target: Path) -> Path:
        """A copy of such a folder, times of files and all, for a trial to harm."""
        shutil.copytree(self.made(name, make), target, symlinks=True)
        return target

    def require_postgres(self) -> None:
        """Whether the server came back from a kill with all of its rows: else the trial says nothing."""
        found = self.postgres.run("SELECT count(*) FROM samples")
        if int(found) != samples.COUNT:
            raise BenchFailed(f"PostgreSQL came back with {found} of {samples.COUNT} rows: run it again")
