"""Kernels of real Jupyter servers: their notebooks, their states, and what is left without a server."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.facts import notebooks, process
from stoker.facts.values import Notebook

from .conftest import JupyterServer, pid_of_kernel

pytestmark = pytest.mark.service

Servers = Callable[..., JupyterServer]
Connect = Callable[[Path], Any]
PATIENCE_S = 60.0


def find(kernel_id: str) -> Notebook:
    """Return what the facts say of one kernel."""
    (found,) = [one for one in notebooks.find(process.see_all()) if one.kernel_id == kernel_id]
    return found


def await_state(server: JupyterServer, kernel_id: str, state: str, client: Any = None) -> None:
    """Wait until the server says so. It listens to the kernel by itself, and nothing tells what it has heard.

    With a client the kernel is made to speak again, since the server may have begun to listen too late.
    """
    deadline = time.monotonic() + PATIENCE_S
    while server.state_of(kernel_id) != state:
        assert time.monotonic() < deadline, f"the server never said {state}"
        if client is not None:
            client.kernel_info(reply=True, timeout=PATIENCE_S)
        time.sleep(0.02)


def check_json(server: JupyterServer) -> dict[str, Any]:
    """Run the verb as a user does."""
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "check", "--json"],
        env={**os.environ, "JUPYTER_RUNTIME_DIR": str(server.runtime)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_check_names_both_notebooks_and_their_states(
    start_server: Servers, connect_client: Connect, tmp_path: Path
) -> None:
    """With one kernel idle and one executing, check gives both paths, the states and the idle time."""
    server = start_server()
    idle, busy = (
        server.start_notebook(name)["kernel"]["id"] for name in ("idle.ipynb", "deep/busy one.ipynb")
    )
    running = tmp_path / "running"
    os.mkfifo(running)
    await_state(server, idle, "idle", connect_client(server.connection_file(idle)))
    client = connect_client(server.connection_file(busy))
    await_state(server, busy, "idle", client)
    client.execute(
        f"with open({str(running)!r}, 'w') as said:\n    said.write('now')\nimport time; time.sleep(600)"
    )
    assert running.read_text() == "now"
    await_state(server, busy, "busy")

    found = check_json(server)
    by_id = {entry["kernel_id"]: entry for entry in found["notebooks"]}
    assert by_id[idle]["path"] == str(server.root / "idle.ipynb")
    assert by_id[busy]["path"] == str(server.root / "deep/busy one.ipynb")
    assert (by_id[idle]["state"], by_id[busy]["state"]) == ("idle", "busy")
    assert by_id[idle]["pid"] == pid_of_kernel(server.connection_file(idle))
    assert by_id[idle]["idle_s"] >= 0
    assert by_id[busy]["idle_s"] == 0.0
    assert by_id[idle]["parent_alive"] is True
    assert server.token not in json.dumps(found)


def test_kernels_of_a_killed_server_are_orphans(start_server: Servers) -> None:
    """Once the server is gone and nobody is connected, a kernel that lives on is an orphan."""
    server = start_server()
    kernel_id = server.start_notebook("left.ipynb")["kernel"]["id"]
    pid = pid_of_kernel(server.connection_file(kernel_id))
    assert find(kernel_id).state != "orphan"
    # A kernel looks for its parent once a second and ends itself; one that is stuck in foreign code cannot.
    os.kill(pid, signal.SIGSTOP)
    server.kill()

    found = find(kernel_id)
    assert found.state == "orphan"
    assert found.parent_alive is False
    assert found.clients == 0
    assert found.path is None


def test_a_client_keeps_a_kernel_from_being_an_orphan(start_server: Servers, connect_client: Connect) -> None:
    """A dead server is not enough: somebody still connected to the kernel may be using it."""
    server = start_server()
    kernel_id = server.start_notebook("used.ipynb")["kernel"]["id"]
    file = server.connection_file(kernel_id)
    connect_client(file)
    os.kill(pid_of_kernel(file), signal.SIGSTOP)
    server.kill()

    found = find(kernel_id)
    assert found.state == "unknown"
    assert found.clients is not None and found.clients > 0


def test_an_editors_kernel_is_unknown(
    start_kernel: Callable[[str], tuple[subprocess.Popen[bytes], Path]], connect_client: Connect
) -> None:
    """A kernel that VS Code started has no server to ask: notebook and state are unknown, with the reason."""
    started, file = start_kernel("kernel-v3a1b2c3d4e5f6.json")
    connect_client(file)

    found = find("v3a1b2c3d4e5f6")
    assert (found.pid, found.state, found.path, found.idle_s) == (started.pid, "unknown", None, None)
    assert "VS Code" in (found.reason or "")


@pytest.mark.parametrize("token", ["wrong", ""])
def test_a_server_that_refuses_leaves_the_kernel_unknown(start_server: Servers, token: str) -> None:
    """With a wrong token, or none for a password, the kernel is unknown and the reason names the server."""
    server = start_server()
    kernel_id = server.start_notebook("hidden.ipynb")["kernel"]["id"]
    (file,) = server.runtime.glob("jpserver-*.json")
    entry = json.loads(file.read_text())
    file.write_text(json.dumps({**entry, "token": token, "password": not token}))

    found = find(kernel_id)
    assert (found.state, found.path) == ("unknown", None)
    assert server.url in (found.reason or "")


def test_two_servers_are_told_apart(start_server: Servers) -> None:
    """Each kernel gets its path from the server that runs it."""
    first, second = start_server(name="first"), start_server(name="second")
    ids = [server.start_notebook("same.ipynb")["kernel"]["id"] for server in (first, second)]
    paths = [find(kernel_id).path for kernel_id in ids]
    assert paths == [str(first.root / "same.ipynb"), str(second.root / "same.ipynb")]


def test_a_kernel_that_checks_itself_knows_what_it_is(
    start_kernel: Callable[[str], tuple[subprocess.Popen[bytes], Path]], connect_client: Connect
) -> None:
    """`stoker.check()` inside a kernel draws a table and knows that it runs in a notebook."""
    started, file = start_kernel("kernel-v2-1234abcd.json")
    client = connect_client(file)
    outputs: list[dict[str, Any]] = []
    client.execute_interactive(
        "import stoker; found = stoker.check(); print(found.facts.process); found",
        timeout=PATIENCE_S,
        output_hook=lambda message: outputs.append(message["content"]),
    )
    printed = "".join(str(one.get("text", "")) for one in outputs)
    assert f"pid={started.pid}" in printed and "in_kernel=True" in printed
    drawn = [one["data"] for one in outputs if "data" in one]
    assert "<table>" in drawn[0]["text/html"]
    assert "Host (" in drawn[0]["text/plain"]
