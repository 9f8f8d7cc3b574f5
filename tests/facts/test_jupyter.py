"""Asking servers: a token goes to its own server over loopback alone; every refusal has a reason."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stoker.facts import jupyter, notebooks
from stoker.facts.jupyter import Server

KERNEL = "11111111-2222-3333-4444-555555555555"
SESSIONS = [
    {
        "id": "s",
        "path": "deep/a.ipynb",
        "type": "notebook",
        "kernel": {
            "id": KERNEL,
            "execution_state": "idle",
            "last_activity": "2026-01-01T00:00:00.000000Z",
            "connections": 1,
        },
    }
]


class Recording:
    """A small HTTP server that notes what it is asked and answers as told."""

    def __init__(self, status: int = 200, body: Any = None, location: str | None = None) -> None:
        self.asked: list[tuple[str, str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.path, self.headers.get("Authorization")))
                self.send_response(status)
                if location is not None:
                    self.send_header("Location", location)
                self.end_headers()
                said = body if self.path.endswith("sessions") or body is None else []
                self.wfile.write(json.dumps(said).encode())

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.http.server_address[1]
        self.thread = threading.Thread(target=self.http.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


@pytest.fixture
def listen() -> Iterator[Callable[..., Recording]]:
    started: list[Recording] = []

    def start(**options: Any) -> Recording:
        started.append(Recording(**options))
        return started[-1]

    yield start
    for one in started:
        one.close()


def server(port: int, **values: Any) -> Server:
    entry = {
        "pid": os.getpid(),
        "url": f"http://127.0.0.1:{port}/base/",
        "hostname": "127.0.0.1",
        "port": port,
        "base_url": "/base/",
        "root_dir": "/home/ann",
        "token": "secret",
        "password": False,
        "secure": False,
        "sock": "",
    }
    found = jupyter.parse_server({**entry, **values})
    assert found is not None
    return found


def test_a_kernels_notebook_comes_from_its_session(listen: Callable[..., Recording]) -> None:
    """Path, state and last activity are the session's; the path is joined to the server's root folder."""
    one = listen(body=SESSIONS)
    answer = jupyter.ask(server(one.port))
    assert answer.reason is None
    kernel = answer.kernels[KERNEL]
    assert (kernel.path, kernel.state, kernel.connections) == ("/home/ann/deep/a.ipynb", "idle", 1)
    assert one.asked[0] == ("/base/api/sessions", "token secret")


def test_a_token_is_not_sent_after_a_redirect(listen: Callable[..., Recording]) -> None:
    """A redirect (to a login page, or elsewhere) is a refusal, and is not followed."""
    elsewhere = listen(body=SESSIONS)
    one = listen(status=302, location=f"http://127.0.0.1:{elsewhere.port}/")
    answer = jupyter.ask(server(one.port))
    assert "302" in (answer.reason or "")
    assert elsewhere.asked == []


def test_no_proxy_gets_the_token(listen: Callable[..., Recording], monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxy variables do not apply: the request goes to the server itself."""
    proxy, one = listen(body=[]), listen(body=SESSIONS)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    assert KERNEL in jupyter.ask(server(one.port)).kernels
    assert proxy.asked == []


@pytest.mark.parametrize("host", ["192.168.1.5", "example.org", "10.0.0.1"])
def test_a_server_beyond_loopback_is_not_asked(host: str) -> None:
    """A server that listens elsewhere gets no request, and the reason says so."""
    answer = jupyter.ask(server(80, hostname=host))
    assert "not on loopback" in (answer.reason or "")


@pytest.mark.parametrize("host", ["0.0.0.0", "", "*", "localhost", "127.0.0.1"])
def test_a_server_on_all_addresses_is_asked_over_loopback(
    listen: Callable[..., Recording], host: str
) -> None:
    """Listening everywhere includes loopback, which is where it is asked."""
    one = listen(body=SESSIONS)
    assert KERNEL in jupyter.ask(server(one.port, hostname=host)).kernels


def test_a_password_without_a_token_is_not_tried(listen: Callable[..., Recording]) -> None:
    """A server behind a password is left alone."""
    one = listen(body=SESSIONS)
    answer = jupyter.ask(server(one.port, token="", password=True))
    assert "password" in (answer.reason or "")
    assert one.asked == []


@pytest.mark.parametrize(
    ("status", "body"), [(403, {}), (500, {}), (200, {"a": 1}), (200, ["x"]), (200, None)]
)
def test_refusals_and_nonsense_have_a_reason(
    listen: Callable[..., Recording], status: int, body: Any
) -> None:
    """Whatever a server answers, the check goes on, with the reason why nothing is known."""
    answer = jupyter.ask(server(listen(status=status, body=body).port))
    assert answer.kernels == {}
    assert answer.reason is not None


def test_a_dead_port_has_a_reason() -> None:
    """A server that does not answer is said not to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        answer = jupyter.ask(server(taken.getsockname()[1]))
    assert "did not answer" in (answer.reason or "")


def test_the_token_is_not_shown() -> None:
    """A server's text form, and the url in the facts, keep the token to themselves."""
    one = server(80, url="http://127.0.0.1:80/?token=secret")
    assert "secret" not in repr(one)
    assert "secret" not in one.url


def test_files_of_dead_servers_are_passed_over(tmp_path: Path) -> None:
    """A file whose process is gone, or is younger than the file, is not a running server's."""
    entry = {"pid": 2**22 + 1, "url": "http://127.0.0.1:1/", "port": 1, "hostname": "127.0.0.1"}
    (tmp_path / "jpserver-1.json").write_text(json.dumps(entry))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        old = tmp_path / "nbserver-2.json"
        old.write_text(json.dumps({**entry, "pid": child.pid}))
        os.utime(old, (1_000_000, 1_000_000))
        assert jupyter.find_servers(tmp_path) == ([], None)
        os.utime(old)
        assert [one.pid for one in jupyter.find_servers(tmp_path)[0]] == [child.pid]


def test_a_broken_server_file_has_a_reason(tmp_path: Path) -> None:
    """A file that cannot be understood is named; a missing folder is simply empty."""
    (tmp_path / "jpserver-1.json").write_text("{")
    servers, reason = jupyter.find_servers(tmp_path)
    assert servers == [] and "jpserver-1.json" in (reason or "")
    assert jupyter.find_servers(tmp_path / "none") == ([], None)
    (tmp_path / "file").touch()
    assert "may not be read" in (jupyter.find_servers(tmp_path / "file")[1] or "")


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no Unix sockets")
def test_a_server_on_a_unix_socket_is_asked_there(tmp_path: Path) -> None:
    """A server without a port is reached by its socket's path."""
    address = tmp_path / "sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(address))
        listening.listen()

        def serve() -> None:
            for body in (SESSIONS, []):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(4096)
                    text = json.dumps(body)
                    connection.sendall(
                        f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()
                    )

        thread = threading.Thread(target=serve)
        thread.start()
        answer = jupyter.ask(server(0, sock=str(address), hostname=str(address)))
        thread.join()
    assert answer.kernels[KERNEL].state == "idle"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python -m ipykernel_launcher -f /run/kernel-abc.json", "/run/kernel-abc.json"),
        ("python -m ipykernel_launcher --f=/run/kernel-v3abc.json", "/run/kernel-v3abc.json"),
        ("python -Xfrozen_modules=off -m ipykernel_launcher -f=/r/kernel-x.json", "/r/kernel-x.json"),
        (f"R --slave -e IRkernel::main() --args /r/kernel-{KERNEL}.json", f"/r/kernel-{KERNEL}.json"),
        ("python -m jupyter console --existing /r/kernel-x.json", None),
        ("vim /r/kernel-notes.json", None),
        ("python train.py -f config.json", None),
        ("python train.py -f", None),
        ("", None),
    ],
)
def test_kernels_are_known_by_their_connection_file(command: str, expected: str | None) -> None:
    """A connection file behind its flag marks a kernel; a client, an editor or another file does not."""
    found = notebooks.connection_file(command.split())
    assert found == (None if expected is None else Path(expected))


def test_idle_time_counts_from_the_last_activity() -> None:
    """Busy is idle for 0.0 s; an idle kernel's time runs from its last activity; unknown stays unknown."""
    at = "2026-01-01T00:00:00.500000Z"
    noon = 1767225600.0 + 0.5
    assert notebooks.idle_seconds("idle", at, noon + 7200) == pytest.approx(7200)
    assert notebooks.idle_seconds("busy", at, noon + 7200) == 0.0
    assert notebooks.idle_seconds("idle", None, noon) is None
    assert notebooks.idle_seconds("idle", "yesterday", noon) is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/net/unix")
def test_clients_on_unix_sockets_are_counted(tmp_path: Path) -> None:
    """A kernel with ipc transport has its clients counted on its sockets."""
    address = tmp_path / "kernel-ipc"
    entry = {"transport": "ipc", "ip": str(address)}
    ports = {
        name: at
        for at, name in enumerate(("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port"), 1)
    }
    file = tmp_path / "kernel-x.json"
    file.write_text(json.dumps({**entry, **ports}))
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as client:
        listening.bind(f"{address}-1")
        listening.listen()
        assert notebooks.count_clients(os.getpid(), file) == (0, None)
        client.connect(f"{address}-1")
        accepted, _ = listening.accept()
        with accepted:
            assert notebooks.count_clients(os.getpid(), file) == (1, None)


def test_an_unreadable_connection_file_leaves_clients_unknown(tmp_path: Path) -> None:
    """Without the ports nothing is counted, and the reason names the file."""
    clients, reason = notebooks.count_clients(2**22 + 1, tmp_path / "kernel-x.json")
    assert clients is None
    assert "kernel-x.json" in (reason or "")
