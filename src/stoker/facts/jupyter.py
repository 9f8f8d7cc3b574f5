"""Running Jupyter servers: where their files lie, and what their sessions API says of kernels.

A token goes to the server that its own file names, over loopback or a Unix socket, and nowhere else: no
proxy, no redirect, and only while the process that wrote the file still runs.
"""

import http.client
import ipaddress
import json
import os
import socket
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psutil

# A server on this machine answers in milliseconds; one that hangs must not hold up the check.
_ANSWER_S = 2.0
_EVERYWHERE = {"", "*", "0.0.0.0", "::"}


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server as its file in the runtime folder describes it. The token is never shown."""

    pid: int
    url: str
    host: str
    port: int
    base_url: str
    root: str
    secure: bool
    password: bool
    socket: str | None
    token: str

    def __repr__(self) -> str:
        return f"Server(pid={self.pid}, url={self.url!r})"


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """What a server says of one kernel."""

    path: str | None
    state: str
    last_activity: str | None
    connections: int | None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A server's kernels by id, or the reason why it did not tell them."""

    kernels: dict[str, Kernel]
    reason: str | None = None


def runtime_folders(home: Path | None, variables: dict[str, str]) -> list[Path]:
    """List where a user's servers may leave their files, likeliest first."""
    places: list[Path] = []
    if folder := variables.get("JUPYTER_RUNTIME_DIR"):
        places.append(Path(folder))
    if folder := variables.get("JUPYTER_DATA_DIR"):
        places.append(Path(folder) / "runtime")
    if sys.platform == "win32":
        if folder := variables.get("APPDATA"):
            places.append(Path(folder) / "jupyter" / "runtime")
    elif home is not None and sys.platform == "darwin":
        places.append(home / "Library" / "Jupyter" / "runtime")
    elif home is not None:
        if folder := variables.get("XDG_DATA_HOME"):
            places.append(Path(folder) / "jupyter" / "runtime")
        places.append(home / ".local" / "share" / "jupyter" / "runtime")
    if folder := variables.get("XDG_RUNTIME_DIR"):
        places.append(Path(folder) / "jupyter")
    return list(dict.fromkeys(places))


def find_servers(folder: Path) -> tuple[list[Server], str | None]:
    """Read the server files in one runtime folder; the reason is given where it may not be read."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
    except FileNotFoundError:
        return [], None
    except OSError as error:
        return [], f"{folder} may not be read ({error.strerror})"
    servers = []
    reason = None
    for name in names:
        if not name.endswith(".json") or not name.startswith(("jpserver-", "nbserver-")):
            continue
        try:
            written = (folder / name).stat().st_mtime
            server = parse_server(json.loads((folder / name).read_text(encoding="utf-8")))
        except OSError as error:
            reason = f"{folder / name} may not be read ({error.strerror})"
            continue
        except ValueError:
            reason = f"{folder / name} is not a server file"
            continue
        if server is not None and _still_runs(server.pid, written):
            servers.append(server)
    return servers, reason


def parse_server(entry: Any) -> Server | None:
    """Take a server file's content; `None` when it lacks what is needed to reach the server."""
    if not isinstance(entry, dict) or not isinstance(entry.get("pid"), int):
        return None
    parts = urlsplit(str(entry.get("url", "")))
    port = entry.get("port")
    return Server(
        pid=entry["pid"],
        url=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}",
        host=str(entry.get("hostname", "")),
        port=port if isinstance(port, int) else 0,
        base_url=str(entry.get("base_url") or "/"),
        root=str(entry.get("root_dir") or entry.get("notebook_dir") or ""),
        secure=bool(entry.get("secure")),
        password=bool(entry.get("password")),
        socket=str(entry.get("sock") or "") or None,
        token=str(entry.get("token") or ""),
    )


def _still_runs(pid: int, written: float) -> bool:
    """Say whether the writer of a server file lives; a process younger than the file is another one."""
    try:
        return psutil.Process(pid).create_time() <= written + 1.0
    except psutil.NoSuchProcess:
        return False


def ask(server: Server) -> Answer:
    """Ask a server for its kernels, with their notebooks where they have one."""
    try:
        refused, sessions = _get(server, "api/sessions")
        if refused is not None:
            return Answer(kernels={}, reason=refused)
        kernels = _kernels_of(sessions, server.root)
        # A kernel started without a notebook (a console, a script) has no session, yet has a state.
        refused, bare = _get(server, "api/kernels")
        for entry in bare if refused is None and isinstance(bare, list) else []:
            kernels.setdefault(str(entry.get("id")), _kernel(entry, path=None))
    except (OSError, http.client.HTTPException) as error:
        return Answer(
            kernels={}, reason=f"server {server.url} did not answer ({error or type(error).__name__})"
        )
    except (ValueError, AttributeError, TypeError):
        return Answer(kernels={}, reason=f"server {server.url} answered with something else than kernels")
    return Answer(kernels=kernels)


def _kernels_of(sessions: Any, root: str) -> dict[str, Kernel]:
    found = {}
    for session in sessions:
        entry = session.get("kernel")
        if not entry:
            continue
        path = session.get("path") or (session.get("notebook") or {}).get("path") or None
        if path is not None and root:
            path = str(Path(root) / path)
        found[str(entry.get("id"))] = _kernel(entry, path=path)
    return found


def _kernel(entry: dict[str, Any], *, path: str | None) -> Kernel:
    connections = entry.get("connections")
    return Kernel(
        path=path,
        state=str(entry.get("execution_state") or "unknown"),
        last_activity=entry.get("last_activity"),
        connections=connections if isinstance(connections, int) else None,
    )


def _get(server: Server, what: str) -> tuple[str | None, Any]:
    """Return the reason why the server did not say, or None and what it said."""
    connection = _connection(server)
    if connection is None:
        return f"server {server.url} listens on {server.host}, not on loopback: not asked", None
    if not server.token and server.password:
        return f"server {server.url} is protected by a password: not asked", None
    headers = {"Accept": "application/json"}
    if server.token:
        headers["Authorization"] = f"token {server.token}"
    try:
        connection.request("GET", f"{unquote(server.base_url).rstrip('/')}/{what}", headers=headers)
        response = connection.getresponse()
        body = response.read(16 << 20)
    finally:
        connection.close()
    if response.status in (301, 302, 303, 307, 308, 401, 403):
        return f"server {server.url} does not let us ask (HTTP {response.status})", None
    if response.status != http.client.OK:
        return f"server {server.url} answered HTTP {response.status}", None
    return None, json.loads(body)


def _connection(server: Server) -> http.client.HTTPConnection | None:
    if server.socket is not None:
        return _UnixConnection(unquote(server.socket))
    host = "127.0.0.1" if server.host in _EVERYWHERE else server.host
    if host != "localhost" and not _is_loopback(host):
        return None
    if server.secure:
        # Its certificate is for the server's public name, or self-signed. Loopback needs no proof of
        # who answers beyond that the port is the one in the file.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection(host, server.port, timeout=_ANSWER_S, context=context)
    return http.client.HTTPConnection(host, server.port, timeout=_ANSWER_S)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket, which some servers listen on in place of a port."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_ANSWER_S)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket's path."""
        if not hasattr(socket, "AF_UNIX"):
            raise OSError("this platform has no Unix sockets")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_ANSWER_S)
        self.sock.connect(self._path)
