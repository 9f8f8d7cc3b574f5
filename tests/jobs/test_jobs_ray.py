"""Jobs on a real Ray cluster of this machine."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from stoker.errors import EngineFailed
from stoker.jobs.settings import Settings
from stoker.jobs.states import State

from .browsing import Site, chromium, go_through, settings_of
from .kit import SCRIPTS, Service, counting, tiny_heimdall

pytestmark = [pytest.mark.slow, pytest.mark.service, pytest.mark.timeout(1200)]
# A node starts in 10 s; on two cores that others kept busy it took minutes.
START_S = 600.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A head node with its dashboard; the address that jobs are submitted to.

    It is ended by its own processes: `ray stop` ends every cluster of the machine.
    """
    pytest.importorskip("ray", reason="needs the extra ray")
    dashboard = free_port()
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # of sockets, whose paths must be short
    # As the shell of its user would have it: jobs find `python` on the path, and the package on its path.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # On two busy cores a node took longer to start than Ray waits for it unasked.
    environment = {**os.environ, "PATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
    environment["RAY_raylet_start_wait_time_s"] = "480"
    start = [
        str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", f"--port={free_port()}",
        "--num-cpus=2", "--num-gpus=0", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}",
        "--include-dashboard=true", "--disable-usage-stats", f"--temp-dir={folder}",
    ]  # fmt: skip
    told = tmp_path_factory.mktemp("ray") / "start.txt"
    with told.open("wb") as out:
        head = subprocess.Popen(start, env=environment, stdout=out, stderr=out, start_new_session=True)
    address = f"http://127.0.0.1:{dashboard}"
    try:
        deadline = time.monotonic() + START_S
        while not answers(f"{address}/api/version"):
            assert head.poll() is None, told.read_text()[-3000:]
            assert time.monotonic() < deadline, told.read_text()[-3000:]
            time.sleep(0.5)
        yield address
    finally:
        end(head)
        shutil.rmtree(folder, ignore_errors=True)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except OSError:
        return False


def end(head: "subprocess.Popen[bytes]") -> None:
    """The node's own process ends the others; what is left of them is killed, each by its number."""
    started = psutil.Process(head.pid).children(recursive=True) if head.poll() is None else []
    head.terminate()
    try:
        head.wait(60)
    except subprocess.TimeoutExpired:
        head.kill()
        head.wait()
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(started, timeout=30)


@pytest.fixture
def on_ray(cluster: str, tmp_path: Path, postgres_url: str) -> Iterator[Service]:
    """A service whose jobs run there, with its store in PostgreSQL."""
    settings = Settings(
        root=tmp_path / "jobs",
        store=postgres_url,
        engine="ray",
        ray_address=cluster,
        slots=2,
        scripts=(SCRIPTS,),
    )
    made = Service(settings)
    yield made
    made.close()


def test_a_workload_trains_on_ray(on_ray: Service) -> None:
    """Curves, log and result as on this machine alone."""
    job = on_ray.store.create(tiny_heimdall())
    on_ray.start()
    done = on_ray.wait(job)
    assert done.state is State.DONE, on_ray.tell(done)
    assert (done.attempts[0].engine, done.attempts[0].handle) == ("ray", f"stoker-{job.id}-1")
    points = on_ray.store.points(job.id, names=["train/loss"]).items
    assert [point.step for point in points] == list(range(1, 7))


def test_a_job_on_ray_is_cancelled_with_its_state_saved_and_goes_on(on_ray: Service) -> None:
    """And goes on while the dispatcher is away."""
    job = on_ray.store.create(counting(steps=200, seconds=0.05, every=1000))
    on_ray.start()
    on_ray.wait_for_step(job, 3)
    on_ray.kill()
    on_ray.wait_for_step(job, 20)
    on_ray.start()
    on_ray.store.ask_cancel(job.id)
    assert on_ray.wait(job).state is State.CANCELLED
    on_ray.store.ask_resume(job.id)
    done = on_ray.wait(job)
    assert done.state is State.DONE, on_ray.tell(done)
    assert [one.outcome for one in done.attempts] == [State.CANCELLED, State.DONE]
    assert sorted(point.step for point in on_ray.store.points(job.id).items) == list(range(1, 201))


def test_a_job_whose_process_ray_killed_goes_on(on_ray: Service) -> None:
    """Its end is seen by asking Ray, and it is queued again."""
    from ray.job_submission import JobSubmissionClient

    job = on_ray.store.create(counting(steps=100, seconds=0.05, every=5))
    on_ray.start()
    running = on_ray.wait_for_step(job, 12)
    assert on_ray.settings.ray_address is not None
    handle = running.attempts[-1].handle
    assert handle is not None
    JobSubmissionClient(on_ray.settings.ray_address).stop_job(handle)
    done = on_ray.wait(job)
    assert [one.outcome for one in done.attempts] == [State.LOST, State.DONE], on_ray.tell(done)
    assert sorted(point.step for point in on_ray.store.points(job.id).items) == list(range(1, 101))


def test_an_address_without_a_cluster_is_told(cluster: str, tmp_path: Path) -> None:
    """With what to start, or to give."""
    from stoker.jobs.engines.ray import RayEngine

    with pytest.raises(EngineFailed, match=r"no Ray cluster at http://127.0.0.1:9: .*ray start --head"):
        RayEngine(Settings(root=tmp_path, engine="ray", ray_address="http://127.0.0.1:9"))


@pytest.mark.browser
def test_the_page_does_the_same_on_ray(cluster: str, tmp_path: Path, postgres_url: str) -> None:
    """Submit, watch, cancel, resume and compare in a browser, while Ray runs the jobs."""
    settings = replace(settings_of(tmp_path / "jobs"), store=postgres_url, engine="ray", ray_address=cluster)
    site = Site(settings)
    try:
        with chromium() as browser:
            go_through(browser, site)
    finally:
        site.close()
