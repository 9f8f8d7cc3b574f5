"""Real Jupyter servers and kernels on loopback, each in a runtime folder of its own, ended by their pids."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

READY_S = 60.0


@dataclass
class JupyterServer:
    """A running server: where it lies, and the few requests that the tests make of it."""

    process: subprocess.Popen[str]
    runtime: Path
    root: Path
    url: str
    token: str

    def start_notebook(self, name: str) -> dict[str, Any]:
        """Open a notebook with a kernel; returns the session."""
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        body = {"path": name, "name": name, "type": "notebook", "kernel": {"name": "python3"}}
        return self._ask("api/sessions", body)

    def connection_file(self, kernel_id: str) -> Path:
        """Return where the kernel's connection file stands."""
        return self.runtime / f"kernel-{kernel_id}.json"

    def state_of(self, kernel_id: str) -> str:
        """Return the state that the server itself gives."""
        return str(self._ask(f"api/kernels/{kernel_id}")["execution_state"])

    def await_answer(self) -> None:
        """Wait for the first answer: the line in its log comes before its file, and before it listens."""
        deadline = time.monotonic() + READY_S
        while True:
            try:
                (file,) = self.runtime.glob("jpserver-*.json")
                self.url = json.loads(file.read_text())["url"]
                self._ask("api/status")
            except (ValueError, urllib.error.URLError) as error:
                assert time.monotonic() < deadline, f"{self.url} never answered: {error}"
                time.sleep(0.02)
            else:
                return

    def _ask(self, what: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.url}{what}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {self.token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=READY_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def kill(self) -> None:
        """End the server at once, without letting it end its kernels."""
        self.process.kill()
        self.process.wait(READY_S)


def pid_of_kernel(file: Path) -> int:
    """Return the pid of the kernel with this connection file."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if str(file) in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                return process.pid
    raise AssertionError(f"no kernel with {file}")


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., JupyterServer]]:
    """Start servers; they and all their kernels are ended afterwards."""
    servers: list[JupyterServer] = []

    def start(*options: str, token: str = "secret-token", name: str = "one") -> JupyterServer:
        runtime, root = tmp_path / name / "runtime", tmp_path / name / "root"
        root.mkdir(parents=True)
        # Jupyter makes this folder itself, private to the user; a kernel started first would have it too.
        runtime.mkdir(mode=0o700)
        environment = {
            **os.environ,
            "JUPYTER_RUNTIME_DIR": str(runtime),
            "JUPYTER_CONFIG_DIR": str(tmp_path / name / "config"),
            "JUPYTER_DATA_DIR": str(tmp_path / name / "data"),
            "IPYTHONDIR": str(tmp_path / name / "ipython"),
        }
        process = subprocess.Popen(
            [
                sys.executable, "-m", "jupyter_server", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0",
                "--ServerApp.open_browser=False", f"--ServerApp.root_dir={root}",
                "--ServerApp.allow_root=True", f"--IdentityProvider.token={token}", *options,
            ],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        server = JupyterServer(process=process, runtime=runtime, root=root, url="", token=token)
        servers.append(server)
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "is running at" in line:
                break
        else:
            raise AssertionError("the server did not start:\n" + "".join(said))
        threading.Thread(target=process.stderr.read, daemon=True).start()  # or its log fills the pipe
        server.await_answer()
        return server

    yield start
    for server in servers:
        family = _kernels_in(server.runtime)
        if server.process.poll() is None:
            family += psutil.Process(server.process.pid).children(recursive=True)
        for process in {one.pid: one for one in family}.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        server.process.kill()
        server.process.wait(READY_S)
        psutil.wait_procs(family, timeout=READY_S)
        assert server.process.stderr is not None
        server.process.stderr.close()


def _kernels_in(runtime: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if f"{runtime}/kernel-" in " ".join(process.cmdline()):
                found.append(process)
    return found


@pytest.fixture
def start_kernel(tmp_path: Path) -> Iterator[Callable[[str], tuple[subprocess.Popen[bytes], Path]]]:
    """Start kernels without any server, as an editor does; they are ended afterwards."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str) -> tuple[subprocess.Popen[bytes], Path]:
        from jupyter_client.connect import write_connection_file

        file = tmp_path / name
        write_connection_file(str(file), ip="127.0.0.1")
        process = subprocess.Popen(
            [sys.executable, "-m", "ipykernel_launcher", f"--f={file}"],
            env={**os.environ, "IPYTHONDIR": str(tmp_path / "ipython")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started.append(process)
        return process, file

    yield start
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait(READY_S)


@pytest.fixture
def connect_client() -> Iterator[Callable[[Path], Any]]:
    """Connect clients to kernels by their connection files, ready to talk."""
    from jupyter_client.blocking.client import BlockingKernelClient

    clients = []

    def connect(file: Path) -> Any:
        client = BlockingKernelClient(connection_file=str(file))
        client.load_connection_file()
        client.start_channels()
        client.wait_for_ready(timeout=READY_S)
        clients.append(client)
        return client

    yield connect
    for client in clients:
        client.stop_channels()
        client.context.destroy(linger=0)
