"""`stoker serve`: the server's process, with the dispatcher beside it, started again where it dies."""

import asyncio
import contextlib
import gc
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import psutil
import uvicorn

from stoker.errors import EngineFailed, NotPermitted, UsageError
from stoker.facts import host, nvml
from stoker.jobs import dispatcher
from stoker.jobs.places import Places
from stoker.jobs.request import Policy
from stoker.jobs.server.api import Server
from stoker.jobs.server.doctoring import Doctor
from stoker.jobs.server.guard import check_bind
from stoker.jobs.server.prometheus import Traffic
from stoker.jobs.server.service import Service
from stoker.jobs.server.tokens import NAME, Sessions, TokenFile
from stoker.jobs.settings import Settings
from stoker.jobs.store import Store

# A dispatcher that dies at once is started again after so long, and later the more often it dies.
_AGAIN_S, _LONGEST_S = 0.5, 30.0
_END_S = 20.0
_GIVE_WAY_S = 0.0005
# How the names begin of what there may be in the jobs' root.
_OURS = ("runs", "jobs.db", "dispatcher.lock", NAME)


@dataclass(frozen=True, kw_only=True)
class Serving:
    """How a server is started."""

    settings: Settings
    host: str = "127.0.0.1"
    port: int = 8000
    # Folders whose files jobs may name.
    data: tuple[Path, ...] = ()
    # Of requests that name none.
    database: str | None = None
    certificate: Path | None = None
    key: Path | None = None
    rate: float = 400.0
    # Without one nothing is run: for servers beside the one that has it.
    dispatches: bool = True

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise UsageError("--cert and --key go together: give both for https, or neither")


class Dispatching:
    """The dispatcher's process, watched."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._end = threading.Event()
        self._child = dispatcher.start(settings)
        self._thread = threading.Thread(target=self._watch, name="stoker-dispatching", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether it runs now."""
        return self._child.poll() is None

    def close(self) -> None:
        """End it; what runs goes on."""
        self._end.set()
        self._thread.join(_END_S)
        self._child.terminate()
        try:
            self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        if self._child.stdin is not None:
            self._child.stdin.close()

    def _watch(self) -> None:
        wait, began = _AGAIN_S, time.monotonic()
        while not self._end.wait(0.2):
            code = self._child.poll()
            if code is None:
                continue
            wait = _AGAIN_S if time.monotonic() - began > _LONGEST_S else min(2 * wait, _LONGEST_S)
            sys.stderr.write(f"stoker: the dispatcher ended with code {code}; started again in {wait:g} s\n")
            if self._end.wait(wait):
                return
            if self._child.stdin is not None:
                self._child.stdin.close()
            began = time.monotonic()
            try:
                self._child = dispatcher.start(self._settings)
            except OSError as error:  # no process, memory or file to be had; the next round tries again
                sys.stderr.write(f"stoker: the dispatcher cannot be started now: {error}\n")


class _Uvicorn(uvicorn.Server):
    """Ends its streams first: they would never end by themselves."""

    def __init__(self, config: uvicorn.Config, app: Server, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._app, self._ready = app, ready
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: the first one ends streams and then the rest, the second one all at once.

        It is not raised again afterwards, as uvicorn would: there is still a dispatcher to end.
        """
        self.force_exit = self.should_exit
        self.end()

    def end(self) -> None:
        """Stop serving. From any thread."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._app.close)


class Running:
    """A server with its parts, which end with the block."""

    def __init__(self, serving: Serving) -> None:
        self._parts = contextlib.ExitStack()
        with contextlib.ExitStack() as parts:
            self._open(serving, parts)
            self._parts = parts.pop_all()

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *error: object) -> None:
        self._parts.close()

    def run(self, ready: Callable[[str], None]) -> int:
        """Serve until a signal or `stop`; `ready` is told the address. The exit code."""
        self._uvicorn = _Uvicorn(self._config, self._app, lambda: ready(self.url))
        self._uvicorn.run(sockets=[self._listening])
        return 0 if self._uvicorn.started else 1

    def stop(self) -> None:
        """Have `run` return. From any thread."""
        self._uvicorn.end()

    def _open(self, serving: Serving, parts: contextlib.ExitStack) -> None:
        settings = serving.settings
        if serving.certificate is not None and serving.key is not None:
            _check_certificate(serving.certificate, serving.key)
        try:
            keep_private(settings.root)
        except OSError as error:
            raise NotPermitted(
                f"cannot make the folder {settings.root}: {error.strerror or error}; choose another --root"
            ) from error
        tokens = TokenFile(settings.root / NAME)
        check_bind(serving.host, tokens)
        self._listening = _listen(serving.host, serving.port)
        parts.callback(self._listening.close)
        store = Store.open(settings.store_url, checked=True)
        parts.callback(store.close)
        _tell_of_strangers(settings.root, store)
        doctor = Doctor(settings.root, lambda job: self._app.changed(job))
        parts.callback(doctor.close)
        allowed = replace(settings, data=serving.data, database=serving.database)
        dispatching = Dispatching(allowed) if serving.dispatches else None
        if dispatching is not None:
            parts.callback(dispatching.close)
        cards = count_cards(settings)
        here = settings.engine == "local"
        places = Places(scripts=settings.scripts, data=serving.data, root=settings.root)
        self._app = Server(
            Service(
                root=settings.root,
                host=serving.host,
                store=store,
                policy=Policy(
                    places=places,
                    database=serving.database,
                    cards=cards,
                    most_gpus=cards if here else None,
                    most_ram_bytes=count_memory() if here else None,
                    most_vram_bytes=largest_card() if here else None,
                ),
                tokens=tokens,
                sessions=Sessions(tokens),
                traffic=Traffic(),
                doctor=doctor,
                dispatcher=lambda: None if dispatching is None else dispatching.is_alive(),
                rate=serving.rate,
                is_secure=serving.certificate is not None,
            )
        )
        scheme = "http" if serving.certificate is None else "https"
        shown = f"[{serving.host}]" if ":" in serving.host else serving.host
        self.url = f"{scheme}://{shown}:{self._listening.getsockname()[1]}"
        self._config = uvicorn.Config(
            self._app,
            ssl_certfile=serving.certificate,
            ssl_keyfile=serving.key,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=10,
            limit_concurrency=2000,
        )


def keep_private(root: Path) -> None:
    """Make the jobs' root, and `runs` in it, its owner's alone: plans and the store have what settings have.

    One that is there and ours is closed too, unless it has other things than ours: a project's folder, or
    everybody's, stays as it is.
    """
    runs = root / "runs"
    if not root.exists():
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    elif root.stat().st_uid == _user() and all(one.name.startswith(_OURS) for one in root.iterdir()):
        root.chmod(0o700)
    runs.mkdir(mode=0o700, exist_ok=True)
    for one, mode in ((runs, 0o700), *((one, 0o600) for one in root.glob("jobs.db*"))):
        if one.stat().st_uid == _user():
            one.chmod(mode)


def _user() -> int:
    return -1 if sys.platform == "win32" else os.getuid()


def be_prompt() -> None:
    """Set the interpreter up for a process that answers many at a time, once all is imported.

    - What is there by now stays: the collector leaves it alone. A server has 220,000 such objects, most of
      them torch's; to walk them took 0.2 to 0.3 s, in which nothing was answered, and lists of jobs made
      enough new ones for that every few seconds.
    - Threads give way after 0.5 ms, not 5: each gives the interpreter up with every row, file and socket,
      and waited so long to have it back. That alone brought the 99th of 100 answers from 50 ms to 14.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_GIVE_WAY_S)


def _check_certificate(certificate: Path, key: Path) -> None:
    """UsageError where the two are not there or do not belong together, before anything is started."""
    try:
        # A key behind a passphrase would be asked for at a terminal that a server need not have.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise UsageError(
            f"no https with --cert {certificate} and --key {key}: {why}; give a certificate and its key as "
            "PEM files, the key without a passphrase"
        ) from error


def _tell_of_strangers(root: Path, store: Store) -> None:
    """An empty store beside folders of jobs is one that was removed, or another one: seldom what is meant."""
    there = sum(1 for _ in (root / "runs").glob("*/")) if (root / "runs").is_dir() else 0
    if there and not any(store.counts().values()):
        sys.stderr.write(
            f"stoker: warning: the store does not know the {there} jobs whose folders are in "
            f"{root / 'runs'}; it was emptied, or is another one: put the right one back, or remove the "
            "folders\n"
        )


def _listen(host: str, port: int) -> socket.socket:
    """A socket that says it is TCP.

    Of one that leaves it open, as `create_server` does, asyncio does not ask that small answers be sent at
    once: each took 40 ms longer.
    """
    made = socket.socket(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(2048)
    except OSError as error:
        made.close()
        raise UsageError(
            f"cannot listen at {host}:{port}: {error.strerror or error}; choose another --host or --port"
        ) from error
    return made


def count_memory() -> int:
    """Memory of this machine, as far as this process's group may have it."""
    found = host.read()
    whole = psutil.virtual_memory().total if found.ram_total_bytes is None else found.ram_total_bytes
    return int(whole if found.memory_limit_bytes is None else min(whole, found.memory_limit_bytes))


def count_cards(settings: Settings) -> int:
    """Cards where jobs run: of the cluster, or of this machine, without a word to CUDA."""
    if settings.engine == "ray":
        return _count_cluster_cards(settings)
    source, _ = nvml.connect()
    if source is None:
        return 0
    try:
        return source.count()
    finally:
        source.close()


def largest_card() -> int | None:
    """Memory of the largest card of this machine; None where it has none, or one does not tell."""
    source, _ = nvml.connect()
    if source is None:
        return None
    try:
        found = [source.read(index).total_bytes for index in range(source.count())]
    finally:
        source.close()
    known = [one for one in found if one is not None]
    return max(known) if known and len(known) == len(found) else None


def _count_cluster_cards(settings: Settings) -> int:
    """A server of a CPU-only head has none itself. One that cannot ask serves all the same, and says so."""
    from stoker.jobs.engines import ray

    try:
        return ray.count_cards(settings.ray_address)
    except EngineFailed as error:
        sys.stderr.write(
            f"stoker: warning: {error}; until the server is started again, jobs get a card only where they "
            "ask for one by device=cuda or gpus\n"
        )
        return 0
