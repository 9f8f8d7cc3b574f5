"""Hosts on one machine, each in namespaces of its own: processes, network, mounts and a name.

A host is lost by killing the first of its processes: the kernel kills the others with it. It is cut off, and
loses packets, by nftables inside it.
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .wire import Wire, open_tun

_PREFIX = 24
_MTU = 9000
RAY = str(Path(sys.executable).parent / "ray")
# A node that does not answer is lost after 24 s here, where Ray takes a minute; but on two busy cores a node
# takes longer to start than Ray waits for it.
_PATIENCE = {
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "4",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "15",
    "RAY_raylet_start_wait_time_s": "270",
    "RAY_agent_register_timeout_ms": "270000",
    "RAY_USAGE_STATS_ENABLED": "0",
}
# A node dies at its start when its agents, whose imports take 3 s of a core, have not told their ports within
# 15 s; a head, when its dashboard has not within a minute. That is fixed in Ray 2.60, and too short where
# others use the cores: there a start goes before them, and is made again.
_STARTS = 5
_DIED_YOUNG = "WaitFor"


def why_not() -> str | None:
    """Why hosts cannot be made here."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "hosts in namespaces need Linux, and root"
    for program in ("ip", "nft", "unshare", "nsenter", "setpriv"):
        if shutil.which(program) is None:
            return f"hosts in namespaces need the program {program} (Debian: iproute2, nftables, util-linux)"
    if not Path("/dev/net/tun").exists():
        return "hosts in namespaces need /dev/net/tun"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "true"], capture_output=True
    )
    return None if tried.returncode == 0 else f"no namespaces can be made: {tried.stderr.decode().strip()}"


class Host:
    """One machine of a network."""

    def __init__(self, network: "Network", name: str, address: str, disks: Sequence[Path]) -> None:
        self.name = name
        self.address = address
        self._network = network
        self._disks = disks
        self._first: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def boot(self) -> None:
        """Its namespaces, its network, its disks; nothing runs on it yet."""
        self._first = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL",  # with this process, by whatever death
             "unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child=KILL", "--mount-proc",
             "sh", "-c", "echo here; exec sleep infinity"],
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._first.stdout is not None
        assert self._first.stdout.readline() == b"here\n"
        self._first.stdout.close()
        children = Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children").read_text().split()
        self._pid = int(children[0])
        device = f"st{secrets.token_hex(4)}"
        tun = open_tun(device)
        try:
            _run("ip", "link", "set", device, "netns", str(self._pid))
            self.run("ip", "link", "set", device, "name", "wire0")
            self.run("ip", "addr", "add", f"{self.address}/{_PREFIX}", "dev", "wire0")
            self.run("ip", "link", "set", "wire0", "mtu", str(_MTU), "up")
            self.run("ip", "link", "set", "lo", "up")
        except BaseException:
            os.close(tun)
            raise
        self._network.wire.attach(self.address, tun)
        self.run("hostname", self.name)
        # Ray's sessions and shared memory are a machine's own, as its disks are.
        for place, size in (
            ("/dev/shm", "400m"),
            ("/tmp/ray", "400m"),
            *((str(d), "64m") for d in self._disks),
        ):
            self.run("mkdir", "-p", place)
            self.run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place)
        # Names of hosts are known, and nobody else is asked for one: that would be waited for.
        known = "".join(f"{host.address} {host.name}\n" for host in self._network.hosts)
        for path, text in (("/etc/hosts", f"127.0.0.1 localhost\n{known}"), ("/etc/resolv.conf", "")):
            self.run("tee", f"/tmp/ray/{Path(path).name}", text=text)
            self.run("mount", "--bind", f"/tmp/ray/{Path(path).name}", path)
        hooks = (f"chain {way} {{ type filter hook {way} priority 0; }};" for way in ("input", "output"))
        self.run("nft", "-f", "-", text=f"table inet faults {{ {' '.join(hooks)} }}")

    @property
    def is_up(self) -> bool:
        """Whether it was booted and not lost."""
        return self._first is not None and self._first.poll() is None

    @property
    def has_ray(self) -> bool:
        """Whether a node of Ray runs on it."""
        return "raylet" in self.run("ps", "-eo", "comm").split()

    def command(self, *words: str) -> list[str]:
        """A command as it is started on the host."""
        return [
            "nsenter",
            f"--target={self._pid}",
            "--net",
            "--mount",
            "--uts",
            "--pid",
            f"--wd={Path.cwd()}",
            *words,
        ]

    def run(
        self, *words: str, text: str | None = None, env: Mapping[str, str] | None = None, limit: float = 60
    ) -> str:
        """A command to its end; what it printed."""
        return _run(*self.command(*words), text=text, env=env, limit=limit)

    def lose(self) -> None:
        """Power off: every process is gone at once, and nothing is said."""
        if self._first is not None:
            self._first.send_signal(signal.SIGKILL)
            self._first.wait(timeout=30)

    def cut(self) -> None:
        """Nothing comes in or goes out any more, and nobody is told."""
        self.drop(100)

    def drop(self, percent: int) -> None:
        """Of all packets that come in or go out, so many of a hundred are lost."""
        self.mend()
        some = ("numgen", "random", "mod", "100", "<", str(percent)) if percent < 100 else ()
        for chain, way in (("input", "iifname"), ("output", "oifname")):
            self.run("nft", "add", "rule", "inet", "faults", chain, way, "wire0", *some, "counter", "drop")

    def mend(self) -> None:
        """All packets pass again."""
        self.run("nft", "flush", "chain", "inet", "faults", "input")
        self.run("nft", "flush", "chain", "inet", "faults", "output")

    @property
    def dropped(self) -> int:
        """Packets that were lost since `drop`."""
        words = self.run("nft", "list", "table", "inet", "faults").split()
        return sum(int(words[at + 1]) for at, word in enumerate(words) if word == "packets")

    # --- Ray ----------------------------------------------------------------------------------------

    def start_head(self, *, dashboard: bool) -> None:
        """Ray's head, as a shell of the host would start it; it gives no core to others."""
        self._start_ray(
            "--head", "--port=6379", "--ray-client-server-port=10001", "--num-cpus=0",
            f"--include-dashboard={str(dashboard).lower()}", "--dashboard-host=0.0.0.0",
        )  # fmt: skip

    def join(self, head: "Host") -> None:
        """A node of another's cluster; what an earlier one left is ended."""
        self._kill_all()
        self._start_ray(f"--address={head.address}:6379", "--num-cpus=1")

    def _start_ray(self, *words: str) -> None:
        # Jobs find `python` on the path, and the package on its own path.
        env = {
            **os.environ,
            **_PATIENCE,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = self.command(
            RAY, "start", *words, f"--node-ip-address={self.address}", "--num-gpus=0",
            "--object-store-memory=80000000", "--disable-usage-stats",
        )  # fmt: skip
        for _ in range(_STARTS):
            with (
                tempfile.TemporaryFile("w+") as told,
                subprocess.Popen(command, env=env, stdout=told, stderr=told) as starting,
            ):
                while starting.poll() is None and not self._died_young():
                    self._go_before(others=True)
                    time.sleep(0.5)
                if starting.poll() == 0:
                    self._go_before(others=False)
                    return
                self._kill_all()
                told.seek(0)
                said = told.read()
        raise AssertionError(f"Ray on {self.name} died at its start {_STARTS} times: {said}")

    def _go_before(self, *, others: bool) -> None:
        """Have the scheduler prefer the sessions of this host, or treat them as any."""
        each = f"for one in /proc/[0-9]*/autogroup; do echo {-10 if others else 0} >$one; done"
        self.run("sh", "-c", f"{each} 2>/dev/null || true")

    def _died_young(self) -> bool:
        said = self.run("sh", "-c", "cat /tmp/ray/session_*/logs/raylet*.err 2>/dev/null || true")
        return _DIED_YOUNG in said

    def _kill_all(self) -> None:
        """Every process but the first, and what they wrote."""
        subprocess.run(self.command("sh", "-c", "kill -KILL -1"), capture_output=True, timeout=60)
        self.run("sh", "-c", "rm -rf /tmp/ray/session* /tmp/ray/ray_current_cluster /dev/shm/*")


class Network:
    """Hosts on one wire, and this machine on it as well."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._net = f"10.{200 + secrets.randbelow(50)}.{secrets.randbelow(250)}"
        self.address = f"{self._net}.254"
        self.hosts: list[Host] = []
        device = f"st{secrets.token_hex(4)}"
        tun = open_tun(device)
        _run("ip", "addr", "add", f"{self.address}/{_PREFIX}", "dev", device)
        _run("ip", "link", "set", device, "mtu", str(_MTU), "up")
        wire.attach(self.address, tun)

    def add(self, name: str, disks: Sequence[Path] = ()) -> Host:
        """A host, booted. `disks` are folders that are its own under the same path as elsewhere."""
        host = Host(self, name, f"{self._net}.{len(self.hosts) + 1}", disks)
        self.hosts.append(host)
        host.boot()
        return host


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """A network that is gone at the end, with all that ran on its hosts."""
    with Wire() as wire:
        made = Network(wire)
        try:
            yield made
        finally:
            for host in made.hosts:
                host.lose()


def _run(
    *words: str, text: str | None = None, env: Mapping[str, str] | None = None, limit: float = 60
) -> str:
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=limit, env=env)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout
