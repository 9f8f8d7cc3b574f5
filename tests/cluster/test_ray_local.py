"""The cluster that is started for one command where there is none: the real Ray, and who may use it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STARTED = """
import os
import subprocess
import sys
import ray
from stoker.cluster import ray as on_ray

on_ray._connect(ray, None, lambda line: None)
assert ray.get(ray.remote(lambda: 1).remote()) == 1
address = ray.get_runtime_context().gcs_address
asked = f"import ray; ray.init({address!r}); print(ray.get(ray.remote(lambda: 7).remote()))"
own = os.environ
other = {**own, "RAY_AUTH_TOKEN": "another"}
none = {name: value for name, value in own.items() if not name.startswith("RAY_AUTH")}
for env in (own, other, {**none, "RAY_AUTH_MODE": "disabled"}):
    try:
        done = subprocess.run([sys.executable, "-c", asked], env=env, stdout=subprocess.PIPE, timeout=60)
        print("ran" if done.stdout.strip() == b"7" else "refused", flush=True)
    except subprocess.TimeoutExpired:
        print("refused", flush=True)
ray.shutdown()
"""


def test_only_who_knows_its_word_runs_anything_there(tmp_path: Path) -> None:
    """Its ports are open to the network: whoever reaches them would run code as the user.

    In a home of its own, for Ray keeps the word there, and asks for it in clusters of several machines too.
    """
    pytest.importorskip("ray", reason="needs the extra ray")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", STARTED], capture_output=True, text=True, timeout=280, check=False,
        env={**clean, "RAY_ADDRESS": "local", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ran", "refused", "refused"], done.stderr
