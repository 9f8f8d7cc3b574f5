"""Whether a server that a test has started listens."""

import socket
import subprocess
import time
from typing import Any


def wait_for(port: int, server: "subprocess.Popen[Any]") -> None:
    """Until it does; AssertionError with what it said, where it ends before, or has not come in a minute."""
    until = time.monotonic() + 60
    while time.monotonic() < until and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    server.kill()
    raise AssertionError(f"no server on port {port}: {server.stderr.read() if server.stderr else ''}")
