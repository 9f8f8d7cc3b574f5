"""A store behind plain HTTP: a real WebDAV server, which lists what it has from its root on."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.errors import NoSuchObject, UsageError
from stoker.feed.manifest import Line, Manifest
from stoker.feed.sources.objects import Store

from .ports import wait_for

pytestmark = pytest.mark.service
FILES = {f"class {number % 2}/{number}.bin": os.urandom(1000 + number) for number in range(20)}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that has these files two folders below its root."""
    root = tmp_path_factory.mktemp("dav")
    (root / "sets" / "sets").mkdir(parents=True)
    for key, data in FILES.items():
        path = root / "sets" / "train" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = "from wsgidav.server.server_cli import run; run()"
    where = ["--host", "127.0.0.1", "--port", str(port), "--root", str(root), "--auth", "anonymous"]
    with subprocess.Popen([sys.executable, "-c", run, *where], stderr=subprocess.PIPE, text=True) as server:
        try:
            wait_for(port, server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


def test_keys_are_relative_to_the_address(address: str) -> None:
    """What is listed can be read by the key that it is listed with."""
    store = Store(f"{address}/sets/train")
    assert store.folders() == ["class 0", "class 1"]
    assert sorted(entry.key for entry in store.list()) == sorted(FILES)
    assert {entry.key: entry.size for entry in store.list("class 1")} == {
        key: len(data) for key, data in FILES.items() if key.startswith("class 1/")
    }
    assert [bytes(data) for data in store.fetch(list(FILES))] == list(FILES.values())
    opened = store.open("class 0/0.bin")
    assert opened.entry.key == "class 0/0.bin"
    assert b"".join(opened.chunks) == FILES["class 0/0.bin"]


def test_an_object_that_is_not_there_is_said_so(address: str) -> None:
    """With its key."""
    with pytest.raises(NoSuchObject, match=r"class 0/99\.bin"):
        Store(f"{address}/sets/train").get("class 0/99.bin")


def test_a_password_is_told_nowhere(address: str, tmp_path: Path) -> None:
    """Neither in what is shown nor in what is written; a folder staged before, with it, is still known."""
    secret = address.replace("http://", "http://anna:open%20sesame@")
    store = Store(f"{secret}/sets/train")
    assert sorted(entry.key for entry in store.list()) == sorted(FILES)
    shown = f"http://anna:***@{address.removeprefix('http://')}/sets/train"
    assert (store.url, repr(store)) == (shown, f"Store({shown!r})")
    with pytest.raises(NoSuchObject) as failed:
        store.get("class 0/99.bin")
    assert "sesame" not in str(failed.value)
    for wrong in ("ftp://anna:sesame@host/set", "http://anna:sesame@/set?sesame"):
        with pytest.raises(UsageError) as refused:
            Store(wrong).get("x")
        assert "sesame" not in str(refused.value)
    before = Manifest(tmp_path, f"{secret}/sets/train")
    before._source = f"{secret}/sets/train"  # as it was written once
    before.add(Line(key="a", size=1, modified_ns=1, etag=None, digest="md5:0"))
    before.close()
    assert "sesame" in before.path.read_text()
    after = Manifest(tmp_path, store.url)
    after.require_source()
    after.fold()
    assert "sesame" not in after.path.read_text()
    with pytest.raises(UsageError, match=r"staged from http://anna:\*\*\*@"):
        Manifest(tmp_path, f"{secret}/sets/val").require_source()


def test_a_folder_may_have_the_name_of_the_one_above(address: str) -> None:
    """Of those that a server lists, only the listed one itself is left out."""
    assert Store(f"{address}/sets").folders() == ["sets", "train"]
    assert Store(address).folders() == ["sets"]
