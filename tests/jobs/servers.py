"""A real server in a thread, and plain HTTP to speak to it as any program would."""

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.jobs.server.serving import Running, Serving
from stoker.jobs.settings import Settings
from stoker.jobs.store import Store

from .kit import PATIENCE_S, SCRIPTS

BASE = "/api/training"
# The field note's own, as its curl sends it.
NOTE: dict[str, Any] = {
    "job_name": "GPU Cache Test - UHF Mixed",
    "config": {
        "dataset_ids": ["29b7b2f4-eb9b-4e22-a77f-c03f0c4ca876"],
        "batch_size": 256,
        "epochs": 1000,
        "learning_rate": 0.001,
        "preload_to_gpu": True,
        "accelerator": "auto",
    },
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        """Its body."""
        return json.loads(self.raw)


class Live:
    """A server that runs: its address, and the store behind it."""

    def __init__(self, url: str, settings: Settings) -> None:
        self.url = url
        self.settings = settings
        self.port = int(url.rpartition(":")[2])
        self.store = Store.open(settings.store_url)

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request; a body that is not bytes goes as JSON."""
        sent = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, body, sent)
            found = connection.getresponse()
            told = {name.lower(): value for name, value in found.getheaders()}
            return Answer(status=found.status, headers=told, raw=found.read())

    def connect(self) -> http.client.HTTPConnection:
        """A connection of its own."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)

    def get(self, path: str, **headers: str) -> Answer:
        """GET under the API."""
        return self.ask("GET", BASE + path, headers=headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        """POST under the API."""
        return self.ask("POST", BASE + path, body, headers)


@contextlib.contextmanager
def running(
    root: Path, *, store: str | None = None, scripts: tuple[Path, ...] = (SCRIPTS,), **options: Any
) -> Iterator[Live]:
    """A server on a free port of loopback; without a dispatcher unless asked for."""
    settings = Settings(root=root, store=store, scripts=scripts, slots=2)
    given = {"port": 0, "dispatches": False, "data": (root.parent,), "rate": 1e6, **options}
    with Running(Serving(settings=settings, **given)) as server:
        is_ready = threading.Event()
        thread = threading.Thread(target=server.run, args=(lambda url: is_ready.set(),))
        thread.start()
        try:
            assert is_ready.wait(PATIENCE_S)
            live = Live(server.url, settings)
            try:
                yield live
            finally:
                live.store.close()
        finally:
            server.stop()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
