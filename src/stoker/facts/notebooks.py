"""Jupyter kernels on this machine: which notebook, in which state, idle for how long, or orphaned.

A kernel is known by the connection file on its command line. Its notebook comes from the server that runs it,
by the kernel's id; `JPY_SESSION_NAME` is not used, since it can be wrong.
"""

import json
import os
import re
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil

from stoker.facts import jupyter
from stoker.facts.process import Seen, parent_lives, see
from stoker.facts.values import Notebook

_FLAGS = {
    "-f",
    "--f",
    "--connection-file",
    "--ConnectionFileMixin.connection_file",
    "--IPKernelApp.connection_file",
}
_FILE = re.compile(r"kernel-(?P<id>.+)\.json$")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
# VS Code starts kernels itself and names them so; no server knows them.
_EDITOR_ID = re.compile(r"v[23]")
_PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Where a kernel listens: TCP ports, or paths of Unix sockets."""

    tcp: frozenset[int] = frozenset()
    unix: frozenset[str] = frozenset()


def find(
    processes: Iterable[Seen], *, family: Collection[int] = (), proc: Path = Path("/proc")
) -> list[Notebook]:
    """Describe every kernel among these processes."""
    kernels = _kernels_among(processes)
    if not kernels:
        return []
    servers = _Servers()
    return [_describe(seen, file, servers, family, proc) for seen, file in kernels]


def connection_file(arguments: Iterable[str] | None) -> Path | None:
    """Return the connection file on a kernel's command line, `None` if it is no kernel's."""
    words = list(arguments or ())
    if any(word.startswith("--existing") for word in words):
        return None  # a client that attaches to a kernel
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        given = flag in _FLAGS and (value if equals else "".join(words[at + 1 : at + 2]))
        if given and _FILE.search(Path(given).name):
            return Path(given)
        # Kernels of other languages take the file bare; only a server's own ids are taken for one.
        if (match := _FILE.search(Path(word).name)) and _UUID.match(match["id"]):
            return Path(word)
    return None


def kernel_id(file: Path) -> str:
    """Return the id in a connection file's name."""
    match = _FILE.search(file.name)
    return match["id"] if match else file.stem


def _kernels_among(processes: Iterable[Seen]) -> list[tuple[Seen, Path]]:
    files = {}
    by_pid = {seen.pid: seen for seen in processes}
    for seen in by_pid.values():
        file = None if seen.zombie else connection_file(seen.arguments)
        if file is not None:
            files[seen.pid] = file
    # A forked worker shows its kernel's command line: the topmost process with a file is the kernel.
    return [
        (by_pid[pid], file)
        for pid, file in sorted(files.items())
        if files.get(by_pid[pid].parent or 0) != file
    ]


class _Servers:
    """Servers found so far: every folder is read once and every server asked once."""

    def __init__(self) -> None:
        self._folders: dict[Path, tuple[list[jupyter.Server], str | None]] = {}
        self._answers: dict[int, jupyter.Answer] = {}

    def of(self, seen: Seen, file: Path) -> tuple[list[jupyter.Server], list[str]]:
        """Return the servers that may run this kernel, and why some could not be looked at."""
        servers: dict[int, jupyter.Server] = {}
        reasons = []
        # The server that started a kernel wrote its connection file into its own runtime folder.
        variables = dict(os.environ) if seen.user == _own_user() else {}
        for folder in [file.parent, *jupyter.runtime_folders(_home_of(seen), variables)]:
            if folder not in self._folders:
                self._folders[folder] = jupyter.find_servers(folder)
            found, reason = self._folders[folder]
            servers.update((server.pid, server) for server in found)
            if reason is not None:
                reasons.append(reason)
        return list(servers.values()), reasons

    def answer(self, server: jupyter.Server) -> jupyter.Answer:
        """Return what the server says."""
        if server.pid not in self._answers:
            self._answers[server.pid] = jupyter.ask(server)
        return self._answers[server.pid]


def _describe(seen: Seen, file: Path, servers: _Servers, family: Collection[int], proc: Path) -> Notebook:
    known = kernel_id(file)
    candidates, reasons = servers.of(seen, file)
    for server in sorted(candidates, key=lambda one: one.pid != seen.parent):
        answer = servers.answer(server)
        kernel = answer.kernels.get(known)
        if kernel is not None:
            return _notebook(
                seen,
                known,
                family,
                path=kernel.path,
                state=kernel.state,
                idle_s=idle_seconds(kernel.state, kernel.last_activity, time.time()),
                reason=None if kernel.path else "the kernel has no notebook open on its server",
                clients=kernel.connections,
                parent_alive=True,
                server=server.url,
            )
        if answer.reason is not None:
            reasons.insert(0, answer.reason)
    parent_alive = _server_lives(seen, {server.pid for server in candidates})
    clients, unseen = count_clients(seen.pid, file, proc)
    state = "orphan" if parent_alive is False and clients == 0 else "unknown"
    if unseen is not None:
        reasons.append(unseen)
    if state == "orphan":
        reason = "its server is gone and no client is connected"
    elif _EDITOR_ID.match(known):
        reason = "started by an editor (VS Code), not by a server that could be asked"
    else:
        reason = "; ".join(dict.fromkeys(reasons)) or "no running server knows this kernel"
    return _notebook(
        seen,
        known,
        family,
        path=None,
        state=state,
        idle_s=None,
        reason=reason,
        clients=clients,
        parent_alive=parent_alive,
        server=None,
    )


def _notebook(
    seen: Seen,
    known: str,
    family: Collection[int],
    *,
    path: str | None,
    state: str,
    idle_s: float | None,
    reason: str | None,
    clients: int | None,
    parent_alive: bool | None,
    server: str | None,
) -> Notebook:
    return Notebook(
        pid=seen.pid,
        kernel_id=known,
        path=path,
        state=state,
        idle_s=idle_s,
        reason=reason,
        clients=clients,
        parent=seen.parent,
        parent_alive=parent_alive,
        user=seen.user,
        age_s=seen.age_s,
        server=server,
        ours=seen.pid in family,
    )


def idle_seconds(state: str, last_activity: str | None, now: float) -> float | None:
    """Return the time since a kernel last did something: 0.0 while busy, `None` where that is not told."""
    if state == "busy":
        return 0.0
    if last_activity is None:
        return None
    try:
        return max(0.0, now - datetime.fromisoformat(last_activity).timestamp())
    except ValueError:
        return None


def _server_lives(seen: Seen, servers: Collection[int]) -> bool | None:
    """Say whether what started the kernel lives: a server, an editor, or any program that is no reaper.

    No kernel is started by PID 1 unless that is the server itself, so a kernel there was adopted.
    """
    if seen.parent in servers:
        return True
    if seen.parent == 1:
        first = see(1)
        return first is not None and "jupyter" in (first.command or "")
    return parent_lives(seen)


def count_clients(pid: int, file: Path, proc: Path = Path("/proc")) -> tuple[int | None, str | None]:
    """Count the clients connected to a kernel's ports; the reason is given where they cannot be seen."""
    ports, reason = read_ports(file)
    if ports is None:
        ports = _listening_ports(pid)
    if ports is None:
        return None, reason
    if ports.unix:
        return _count_unix(pid, ports.unix, proc)
    return _count_tcp(pid, ports.tcp, proc)


def read_ports(file: Path) -> tuple[Ports | None, str | None]:
    """Read where a kernel listens from its connection file."""
    try:
        entry = json.loads(file.read_text(encoding="utf-8"))
        ports = [entry[name] for name in _PORTS]
    except OSError as error:
        return None, f"{file} may not be read ({error.strerror})"
    except (ValueError, KeyError, TypeError):
        return None, f"{file} is not a connection file"
    if entry.get("transport") == "ipc":
        return Ports(unix=frozenset(f"{entry.get('ip')}-{port}" for port in ports)), None
    return Ports(tcp=frozenset(int(port) for port in ports)), None


def _listening_ports(pid: int) -> Ports | None:
    """Ask the process itself, when its connection file is gone."""
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None
    ports = {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}
    return Ports(tcp=frozenset(ports)) if ports else None


def _count_tcp(pid: int, ports: frozenset[int], proc: Path) -> tuple[int | None, str | None]:
    lines: list[str] = []
    for name in ("tcp", "tcp6"):
        try:
            # The kernel's own view: it may live in another network namespace than ours.
            lines += (proc / str(pid) / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
    if lines:
        return sum(1 for line in lines if _is_client(line, ports)), None
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        return None, "this user may not see network connections"
    return sum(
        1
        for one in connections
        if one.status == psutil.CONN_ESTABLISHED and one.laddr and one.laddr.port in ports
    ), None


def _is_client(line: str, ports: frozenset[int]) -> bool:
    """Say whether a line of /proc/net/tcp is an established connection at the kernel's end."""
    fields = line.split()
    return len(fields) > 3 and fields[3] == "01" and int(fields[1].rpartition(":")[2], 16) in ports


def _count_unix(pid: int, paths: frozenset[str], proc: Path) -> tuple[int | None, str | None]:
    try:
        lines = (proc / str(pid) / "net" / "unix").read_text().splitlines()[1:]
    except OSError as error:
        return None, f"Unix sockets cannot be seen here ({error.strerror})"
    # Num RefCount Protocol Flags Type St Inode Path; state 03 is a connected socket.
    fields = [line.split(maxsplit=7) for line in lines]
    return sum(1 for one in fields if len(one) == 8 and one[5] == "03" and one[7] in paths), None


def _own_user() -> str | None:
    own = see(os.getpid())
    return None if own is None else own.user


def _home_of(seen: Seen) -> Path | None:
    try:
        if seen.user is None or seen.user == _own_user():
            return Path.home()
        import pwd

        return Path(pwd.getpwnam(seen.user).pw_dir)
    except (ImportError, KeyError, RuntimeError):  # no such table, no such user, or a user without a home
        return None
