"""A store behind Azure's protocol: Microsoft's own emulator, Azurite, on loopback."""

import base64
import hashlib
import hmac
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from email.utils import formatdate
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import Feed, ObjectSource
from stoker.errors import AccessRefused, NoSuchObject
from stoker.feed.sources.objects import Store

from .ports import wait_for

# scripts/install puts it there, by npm.
AZURITE = Path(sys.prefix) / "azurite/node_modules/.bin/azurite-blob"
pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(not AZURITE.exists(), reason="no Azurite: scripts/install gets it where there is npm"),
]
# Known to everybody: the emulator has no other account.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
FILES = {f"class {number % 2}/{number}.bin": os.urandom(1000 + number) for number in range(20)}


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What a client is told of a server that has these files in `az://sets/train`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location"]
    quiet = ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    command = [str(AZURITE), *where, str(tmp_path_factory.mktemp("azure")), *quiet]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            wait_for(port, server)
            endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
            _make_container(endpoint, "sets")
            told = {"account_name": ACCOUNT, "account_key": KEY, "endpoint": endpoint}
            store = Store("az://sets/train", options=told)
            for key, data in FILES.items():
                store.put(key, data)
            yield told
        finally:
            server.kill()


def _make_container(endpoint: str, name: str) -> None:
    """Stores cannot: by a request signed as Azure says."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    told = "\n".join(f"{header}:{value}" for header, value in headers.items())
    signed = "PUT" + 12 * "\n" + f"{told}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    request = urllib.request.Request(f"{endpoint}/{name}?restype=container", method="PUT", headers=headers)
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 201


def test_objects_are_listed_and_read_by_their_keys(options: dict[str, Any]) -> None:
    """Whole, and in ranges; many at once."""
    store = Store("az://sets/train", options=options)
    assert store.folders() == ["class 0", "class 1"]
    assert {entry.key: entry.size for entry in store.list()} == {key: len(d) for key, d in FILES.items()}
    assert [bytes(data) for data in store.fetch(list(FILES))] == list(FILES.values())
    key, data = next(iter(FILES.items()))
    assert store.get_ranges(key, [(0, 4), (10, 12)]) == [data[:4], data[10:12]]
    with pytest.raises(NoSuchObject, match=r"class 0/99\.bin"):
        store.get("class 0/99.bin")


def test_a_wrong_key_is_refused(options: dict[str, Any]) -> None:
    """And told as such; it is not shown."""
    wrong = base64.b64encode(b"x" * 64).decode()
    store = Store("az://sets/train", options=options | {"account_key": wrong}, retries=0)
    with pytest.raises(AccessRefused, match="az://sets/train") as caught:
        list(store.list())
    assert wrong not in str(caught.value)


def test_a_feed_reads_each_object_once(options: dict[str, Any]) -> None:
    """By batches of several requests, in an order of its own."""
    source = ObjectSource("az://sets/train", options=options, decode=len)
    with closing(Feed(source, batch_size=8, shuffle=True, device="cpu")) as feed:
        sizes = np.concatenate([batch.numpy() for batch in feed])
    assert sorted(sizes.tolist()) == sorted(map(len, FILES.values()))
