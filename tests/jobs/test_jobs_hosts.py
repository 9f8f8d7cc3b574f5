"""A job on a cluster of two hosts: the one it runs on is lost, and it goes on on the other."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.hosts import network, why_not
from cluster.test_hosts import Cluster
from stoker.jobs.settings import Settings
from stoker.jobs.states import State

from .kit import SCRIPTS, Service, counting

pytestmark = [pytest.mark.slow, pytest.mark.service, pytest.mark.timeout(1800)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """With Ray's jobs, which are part of its dashboard."""
    pytest.importorskip("ray", reason="needs the extra ray")
    if why := why_not():
        pytest.skip(why)
    (tmp_path / "disk").mkdir()
    with network() as net:
        yield Cluster(net, tmp_path / "disk", dashboard=True)


@pytest.fixture
def service(cluster: Cluster, tmp_path: Path, postgres_url: str) -> Iterator[Service]:
    """Its jobs run on the cluster, its store is a database that all hosts reach."""
    settings = Settings(
        root=tmp_path / "jobs",
        store=postgres_url,
        engine="ray",
        ray_address=f"http://{cluster.head.address}:8265",
        slots=2,
        scripts=(SCRIPTS,),
        # Starting takes long where others use the cores.
        lease_s=120.0,
    )
    running = Service(settings)
    yield running
    running.close()


def test_a_job_loses_its_host_and_goes_on(service: Service, cluster: Cluster) -> None:
    """From its last saved step, on the other host; each step once."""
    job = service.store.create(counting(steps=400, seconds=0.1, every=5))
    service.start()
    service.wait_for_step(job, 20)
    ran_on = [host for host in cluster.hosts if job.id in host.run("ps", "-eo", "args")]
    assert len(ran_on) == 1
    ran_on[0].lose()
    done = service.wait(job)
    assert [one.outcome for one in done.attempts] == [State.LOST, State.DONE], service.tell(done)
    assert sorted(point.step for point in service.store.points(job.id, limit=1000).items) == list(
        range(1, 401)
    )
