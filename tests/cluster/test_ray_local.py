"""The cluster that is started for one command where there is none: the real Ray, and who could reach it."""

import json
import os
import subprocess
import sys
from ipaddress import ip_address

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STARTED = """
import json
import psutil
import ray
from stoker.cluster import ray as on_ray

on_ray._connect(ray, None, lambda line: None)
ray.get(ray.remote(lambda: 1).remote())  # a worker listens too
family = [psutil.Process(), *psutil.Process().children(recursive=True)]
found = [
    (one.name(), connection.laddr.ip)
    for one in family
    for connection in one.net_connections(kind="inet")
    if connection.status == psutil.CONN_LISTEN
]
print(json.dumps(found), flush=True)
ray.shutdown()
"""


def test_nothing_of_it_is_reached_from_another_machine() -> None:
    """Whoever reaches its ports runs code as the user."""
    pytest.importorskip("ray", reason="needs the extra ray")
    done = subprocess.run(
        [sys.executable, "-c", STARTED], capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, "RAY_ADDRESS": "local"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    listening = json.loads(done.stdout.splitlines()[-1])
    assert len({name for name, _ in listening}) >= 2, "the head and its node's manager, at the least"
    assert [one for one in listening if not ip_address(one[1]).is_loopback] == []
