"""What can stand around a case's script: limits, servers behind a proxy, other tenants.

Each maker is a context manager that is given a value and the case's folder, and yields what comes
before the command and into its environment. The names are those of `Setup.name`.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from stoker.ward import cgroups, s3
from stoker.ward.postgres import PostgresServer
from stoker.ward.proxy import Proxy

SCRIPTS = Path(__file__).parent / "cases"
_SHM = "/dev/shm"
# tbf holds back what comes faster than this much at once: two segments of the loopback's largest.
_BURST = "256kb"
# Ranks that may have one each.
_INTERFACES = 8


@dataclass(frozen=True, kw_only=True)
class Around:
    """Words before the command, and variables beside it."""

    prefix: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


Maker = Callable[[float, Path], AbstractContextManager[Around]]


@contextlib.contextmanager
def quota(cores: float, folder: Path) -> Iterator[Around]:
    """So many cores' time in each tenth of a second."""
    settings = cgroups.quota_settings(cores, cgroups.version_of("cpu") or 1)
    with cgroups.made("cpu", settings) as prefix:
        yield Around(prefix=prefix)


@contextlib.contextmanager
def memory(megabytes: float, folder: Path) -> Iterator[Around]:
    """So many MB for the processes and their page cache."""
    settings = cgroups.memory_settings(int(megabytes * 2**20), cgroups.version_of("memory") or 1)
    with cgroups.made("memory", settings) as prefix:
        yield Around(prefix=prefix)


@contextlib.contextmanager
def disk(reads: float, folder: Path) -> Iterator[Around]:
    """A disk that is read so many times a second; what is in the page cache costs nothing."""
    settings = cgroups.disk_settings(int(reads), folder, cgroups.version_of("blkio") or 2)
    with cgroups.made("blkio", settings) as prefix:
        yield Around(prefix=prefix)


@contextlib.contextmanager
def mask(cores: float, folder: Path) -> Iterator[Around]:
    """The first so many of the cores that this process may use."""
    allowed = sorted(os.sched_getaffinity(0))[: int(cores)]
    yield Around(prefix=("taskset", "-c", ",".join(map(str, allowed))))


@contextlib.contextmanager
def shm(megabytes: float, folder: Path) -> Iterator[Around]:
    """Shared memory of this size, in a mount namespace of the command's own."""
    mounted = f"mount -t tmpfs -o size={int(megabytes)}m tmpfs {_SHM}"
    yield Around(prefix=("unshare", "-m", "sh", "-c", f'{mounted} && exec "$0" "$@"'))


@contextlib.contextmanager
def link(megabits: float, folder: Path) -> Iterator[Around]:
    """A loopback of so many Mbit/s, in a network namespace of the command's own."""
    shaped = f"tc qdisc add dev lo root tbf rate {megabits}mbit burst {_BURST} latency 1s"
    entered = f'ip link set lo up && {shaped} && exec "$0" "$@"'
    yield Around(prefix=("unshare", "-n", "sh", "-c", entered))


@contextlib.contextmanager
def rank_link(megabits: float, folder: Path) -> Iterator[Around]:
    """Interfaces net0, net1, … of a network namespace, at 10 Gbit/s; what net1 sends and gets, at so much.

    All are addresses of one machine, so that everything goes through its loopback, and classes tell them
    apart. Of two of them gloo has the lower address listen, and both ends are that one then: net1's is the
    lowest.
    """
    made = ["ip link set lo up", "tc qdisc add dev lo root handle 1: htb default 1"]
    for number, rate in ((1, 10_000), (2, megabits)):
        speed = f"rate {rate}mbit burst {_BURST} cburst {_BURST} quantum 60000"
        made.append(f"tc class add dev lo parent 1: classid 1:{number} htb {speed}")
    for number in range(_INTERFACES):
        made += [
            f"ip link add net{number} type veth peer name far{number}",
            f"ip addr add 10.77.0.{1 if number == 1 else number + 2}/32 dev net{number}",
            f"ip link set net{number} up",
            f"ip link set far{number} up",
        ]
    for way in ("src", "dst"):
        made.append(f"tc filter add dev lo parent 1: protocol ip u32 match ip {way} 10.77.0.1/32 flowid 1:2")
    yield Around(prefix=("unshare", "-n", "sh", "-c", f'{" && ".join(made)} && exec "$0" "$@"'))


@contextlib.contextmanager
def bucket(delay_ms: float, folder: Path) -> Iterator[Around]:
    """An S3 server with the folder `photos` in it, whose every answer comes so much later, each way."""
    with _photos(folder) as server, Proxy(port=server.port, delay_s=delay_ms / 1000) as proxy:
        yield _endpoint(server, proxy)


@contextlib.contextmanager
def narrow_bucket(megabytes_s: float, folder: Path) -> Iterator[Around]:
    """The same, without a delay, but with so many MB/s for all who read from it together."""
    with _photos(folder) as server, Proxy(port=server.port) as proxy:
        proxy.bytes_per_s = megabytes_s * 1e6
        yield _endpoint(server, proxy)


@contextlib.contextmanager
def postgres(delay_ms: float, folder: Path) -> Iterator[Around]:
    """A PostgreSQL server with a table of signals, so far away, each way."""
    with PostgresServer() as server, Proxy(port=server.port, delay_s=delay_ms / 1000) as proxy:
        maker = SCRIPTS / "data" / "signals.py"
        subprocess.run([sys.executable, maker, server.tcp_url], check=True, timeout=60)
        dsn = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"
        yield Around(env={"SIGNALS_DSN": dsn})


@contextlib.contextmanager
def features(delay_ms: float, folder: Path) -> Iterator[Around]:
    """A web server of features and pictures, so far away, each way."""
    with (
        tenant("feature_service.py") as told,
        Proxy(port=int(told), delay_s=delay_ms / 1000) as proxy,
    ):
        yield Around(env={"FEATURES_ADDRESS": f"127.0.0.1:{proxy.port}"})


@contextlib.contextmanager
def busy_core(core: float, folder: Path) -> Iterator[Around]:
    """Another process that keeps one core busy."""
    cores = sorted(os.sched_getaffinity(0))
    with tenant("core_tenant.py", str(cores[int(core) % len(cores)])):
        yield Around()


@contextlib.contextmanager
def card_holder(gigabytes: float, folder: Path) -> Iterator[Around]:
    """Another process that holds so much of the card and does nothing."""
    with tenant("card_tenant.py", "--gb", str(gigabytes)):
        yield Around()


@contextlib.contextmanager
def card_leaver(gigabytes: float, folder: Path) -> Iterator[Around]:
    """Another process that does nothing and holds all of the card but so much."""
    with tenant("card_tenant.py", "--leave-gb", str(gigabytes)):
        yield Around()


@contextlib.contextmanager
def card_worker(gigabytes: float, folder: Path) -> Iterator[Around]:
    """Another process that works on the card all the time, and holds so much of it."""
    with tenant("card_tenant.py", "--gb", str(gigabytes), "--work"):
        yield Around()


MAKERS: dict[str, Maker] = {
    "quota": quota,
    "memory": memory,
    "disk": disk,
    "mask": mask,
    "shm": shm,
    "link": link,
    "rank_link": rank_link,
    "bucket": bucket,
    "narrow_bucket": narrow_bucket,
    "postgres": postgres,
    "features": features,
    "busy_core": busy_core,
    "card_holder": card_holder,
    "card_leaver": card_leaver,
    "card_worker": card_worker,
}


@contextlib.contextmanager
def tenant(script: str, *args: str) -> Iterator[str]:
    """A process of `cases/servers`, from when it says that it is ready; the line that it says.

    In a session of its own, as another user's would be: Linux shares cores between sessions, and all
    tenants of one would count as one process (autogroup).
    """
    command = [sys.executable, str(SCRIPTS / "servers" / script), *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            told = process.stdout.readline().strip()
            if not told:
                raise OSError(f"{script} ended before it was ready; run it by hand: {' '.join(command)}")
            yield told
        finally:
            process.kill()


@contextlib.contextmanager
def _photos(folder: Path) -> Iterator[s3.S3Server]:
    home = folder.parent / f"{folder.name}-s3"
    home.mkdir()
    with s3.serve(home, "photos") as server:
        store = server.store("photos/train")
        for path in sorted((folder / "photos").rglob("*.jpg")):
            store.put(str(path.relative_to(folder / "photos")), path.read_bytes())
        yield server


def _endpoint(server: s3.S3Server, proxy: Proxy) -> Around:
    endpoint = f"http://127.0.0.1:{proxy.port}"
    return Around(env={**server.environment(), "PHOTOS_ENDPOINT": endpoint})
