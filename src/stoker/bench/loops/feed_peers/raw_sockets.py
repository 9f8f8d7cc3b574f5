"""Bare sockets with requests signed beforehand: what the server can give when a client costs next to nothing.

No retries, no checks, and every body is received into the same memory as the one before it: a limit, no
client. Of a sample only the first 8 bytes are kept.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import obstore
from obstore.store import S3Store

_ROOM = 1 << 20


def open_epochs(
    *, url: str, endpoint: str, key: str, secret: str, objects: int, batch: int, workers: int
) -> Callable[[], Iterator[Any]]:
    """An epoch is every object, over so many connections."""
    store = S3Store.from_url(
        url,
        config={
            "endpoint": endpoint,
            "access_key_id": key,
            "secret_access_key": secret,
            "region": "us-east-1",
        },
        client_options={"allow_http": True},
    )
    names = [f"{number:06d}" for number in range(objects)]
    place = urlsplit(endpoint)
    requests = [
        f"GET {signed.removeprefix(endpoint)} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode()
        for signed in obstore.sign(store, "GET", names, timedelta(hours=6))
    ]
    own = threading.local()
    pool = ThreadPoolExecutor(workers)

    def get(number: int) -> bytes:
        if not hasattr(own, "socket"):
            own.socket = socket.create_connection((place.hostname or "", place.port or 80))
            own.memory = memoryview(bytearray(_ROOM))
        own.socket.sendall(requests[number])
        return receive(own.socket, own.memory)

    def epoch() -> Iterator[Any]:
        order = np.random.default_rng().permutation(objects).tolist()
        found = pool.map(get, order)
        for at in range(0, objects, batch):
            yield [next(found) for _ in order[at : at + batch]], None

    return epoch


def receive(connection: socket.socket, memory: memoryview) -> bytes:
    """The first bytes of an answer's body, all of which is received."""
    got, end = 0, -1
    while end < 0:
        got += connection.recv_into(memory[got:]) or fail("the server closed the connection")
        end = bytes(memory[:got]).find(b"\r\n\r\n")
    head = bytes(memory[:end]).lower()
    if not head.startswith(b"http/1.1 200"):
        fail(head.decode(errors="replace"))
    due = end + 4 + int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
    while got < due:
        got += connection.recv_into(memory[got:due]) or fail("the server closed the connection")
    return bytes(memory[end + 4 : end + 12])


def fail(why: str) -> int:
    """End the process: a limit that is not whole is none."""
    raise SystemExit(f"no whole answer: {why}")
