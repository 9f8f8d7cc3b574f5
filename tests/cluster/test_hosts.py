"""Two hosts and a head on Ray, each in namespaces of its own: a training, a search, a staging and a job.

    scripts/test tests/cluster/test_hosts.py -m slow      (with the extra ray; as root, on Linux)

A host is lost in the middle of each. The commands are typed on this machine, which is on the same network and
shares its disk with them, as a workstation does beside a cluster with NFS.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from stoker.feed.manifest import NAME
from stoker.feed.sources.objects import Store
from stoker.feed.stage import Stage
from stoker.feed.stage_plan import LOCK

from .hosts import Host, Network, network, why_not

pytestmark = [pytest.mark.slow, pytest.mark.service, pytest.mark.timeout(1800)]

# Far longer than anything takes: what has not come by then does not come.
PATIENCE_S = 600.0
# Steps whose losses are held beside those of one machine: rounding grows over thousands.
_COMPARED = 100
SCRIPT = Path(__file__).parent / "slow_loader.py"
TRAINING = (
    "made.samples=640", "width=8", "layers=1", "heads=1", "train.epochs=20", "train.batch_size=16",
    "train.device=cpu", "train.picture=false", "train.loggers=", "train.preflight=false", "train.log_every=1",
    "train.save.every=10",
)  # fmt: skip


class Cluster:
    """A head that gives no core, and two hosts with one each."""

    def __init__(self, net: Network, disk: Path, *, dashboard: bool = False) -> None:
        self.net = net
        self.head = net.add("head")
        self.one = net.add("one", disks=[disk])
        self.two = net.add("two", disks=[disk])
        self.disk = disk
        self.head.start_head(dashboard=dashboard)
        self.mend()

    @property
    def address(self) -> str:
        """For `--on`."""
        return f"ray://{self.head.address}:10001"

    @property
    def hosts(self) -> list[Host]:
        """Those that work."""
        return [self.one, self.two]

    def mend(self) -> None:
        """All hosts are there, and nothing is between them."""
        self.net.wire.delay_s = 0.0
        for host in self.hosts:
            if host.is_up:
                host.mend()
            if host.is_up and host.has_ray:
                continue
            if not host.is_up:
                host.boot()
            host.join(self.head)
        until(lambda: self.alive == {host.address for host in self.hosts}, "both hosts are nodes")

    @property
    def alive(self) -> set[str]:
        """The nodes that Ray tells of, but for the head."""
        code = (
            "import json, ray; ray.init('auto', log_to_driver=False, logging_level='ERROR'); "
            "print(json.dumps(ray.nodes()))"
        )
        told = json.loads(self.head.run(sys.executable, "-c", code, limit=120).splitlines()[-1])
        return {one["NodeManagerAddress"] for one in told if one["Alive"] and one["Resources"].get("CPU")}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all tests: it takes a minute to start."""
    pytest.importorskip("ray", reason="needs the extra ray")
    if why := why_not():
        pytest.skip(why)
    disk = tmp_path_factory.mktemp("disk")
    with network() as net:
        yield Cluster(net, disk)


@pytest.fixture
def cluster(made: Cluster) -> Iterator[Cluster]:
    """With both hosts there, whatever the test before did to them."""
    made.mend()
    yield made


def until(good: Callable[[], object], what: str) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not good():
        assert time.monotonic() < deadline, f"not in {PATIENCE_S:g} s: {what}"
        time.sleep(0.2)


class Typed:
    """A command as it is typed on this machine, under way."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._told = folder / f"{len(list(folder.glob('*.told')))}.told"
        self._out = self._told.with_suffix(".out")
        with self._told.open("w") as told, self._out.open("w") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stoker", *words],
                cwd=folder,
                stdout=out,
                stderr=told,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
            )

    def says(self, text: str) -> bool:
        """Whether it has told that; a command that has ended meanwhile fails the test."""
        said = self._told.read_text()
        assert text in said or self._process.poll() is None, said
        return text in said

    def wait(self, code: int = 0) -> dict[str, Any]:
        """Its result, once it has ended so."""
        found = self._process.wait(timeout=PATIENCE_S)
        assert found == code, f"{found}: {self._told.read_text()}"
        result: dict[str, Any] = json.loads(self._out.read_text())
        return result

    def ask_to_stop(self) -> None:
        """As Ctrl-C does."""
        self._process.terminate()

    @property
    def told(self) -> list[str]:
        """Its own lines, without those of nodes."""
        lines = self._told.read_text().splitlines()
        return [line.removeprefix("stoker: ") for line in lines if line.startswith("stoker: ")]

    def end(self) -> None:
        """Kill it, if it is still there."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def typed(tmp_path: Path) -> Iterator[Callable[..., Typed]]:
    """Commands that are ended with the test."""
    running: list[Typed] = []

    def start(*words: str) -> Typed:
        running.append(Typed(tmp_path, *words))
        return running[-1]

    yield start
    for one in running:
        one.end()


def curve(folder: Path) -> list[tuple[int, float]]:
    """Steps and losses of a training, as far as they are written."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    told = [json.loads(line) for line in lines if line.endswith("}")]
    return [(one["step"], one["loss"]) for one in told if one["kind"] == "train"]


def assert_same_curve(found: Sequence[tuple[int, float]], alone: Sequence[tuple[int, float]]) -> None:
    """Each step once, with the loss that one machine has, up to the order of sums."""
    assert [step for step, _ in found] == list(range(1, len(found) + 1))
    both = min(len(found), len(alone))
    assert both >= _COMPARED
    assert [loss for _, loss in found[:both]] == pytest.approx([loss for _, loss in alone[:both]], rel=1e-3)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_training_loses_a_host_and_goes_on(
    cluster: Cluster, typed: Callable[..., Typed], tmp_path: Path, rank: int
) -> None:
    """From the last checkpoint on the other host, whichever rank it had; the curve is that of one machine."""
    out = tmp_path / "run"
    training = typed("train", "heimdall", *TRAINING, f"--out={out}", f"--on={cluster.address}", "--json")
    until(lambda: training.says("ranks on") and len(curve(out)) > 30, "30 steps by two ranks")
    cluster.hosts[rank].lose()
    result = training.wait()
    other = cluster.hosts[1 - rank].address
    assert training.told[0] == f"2 ranks on {cluster.one.address}, {cluster.two.address}"
    assert f"the node {cluster.hosts[rank].address} was lost" in " ".join(training.told)
    assert f"1 rank on {other}" in training.told
    assert (result["ended"], result["step"]) == ("done", result["steps"])
    assert result["resumed"] >= 20
    typed("train", "heimdall", *TRAINING, f"--out={tmp_path / 'alone'}", "--json").wait()
    assert len(curve(out)) == result["steps"]
    assert_same_curve(curve(out), curve(tmp_path / "alone"))


def test_a_host_that_is_cut_off_and_back_is_taken_in_again(
    cluster: Cluster, typed: Callable[..., Typed], tmp_path: Path
) -> None:
    """Cut off with the folder in its hands: it lets go, the other goes on, and both do when it is back."""
    out = tmp_path / "run"
    long = (*TRAINING, "train.epochs=3000")
    both = f"2 ranks on {cluster.one.address}, {cluster.two.address}"
    training = typed("train", "heimdall", *long, f"--out={out}", f"--on={cluster.address}", "--json")
    until(lambda: training.says(both) and len(curve(out)) > 30, "30 steps by two ranks")
    cluster.one.cut()
    until(lambda: training.says("was lost"), "Ray gives the host up")
    until(lambda: training.says(f"1 rank on {cluster.two.address}"), "the other goes on")
    # What ran on the host that was cut off has ended by then: it had the folder.
    assert "stoker train" not in cluster.one.run("ps", "-eo", "args")
    cluster.one.mend()
    cluster.one.join(cluster.head)
    until(lambda: training.says(both) and training.told.count(both) == 2, "both train again")
    before = len(curve(out))
    until(lambda: training.says(both) and len(curve(out)) > before + 30, "30 steps more")
    training.ask_to_stop()
    result = training.wait(code=143)
    assert (result["ended"], len(curve(out))) == ("stopped", result["step"])
    alone = typed("train", "heimdall", *long, f"--out={tmp_path / 'alone'}", "--json")
    until(lambda: alone.says("") and len(curve(tmp_path / "alone")) > 2 * _COMPARED, "as many steps by one")
    alone.ask_to_stop()
    alone.wait(code=143)
    assert_same_curve(curve(out), curve(tmp_path / "alone")[: 2 * _COMPARED])


def test_a_slow_and_lossy_link_and_a_short_cut_change_nothing(
    cluster: Cluster, typed: Callable[..., Typed], tmp_path: Path
) -> None:
    """20 ms each way, one packet in a hundred lost, 5 s without any: no attempt is lost by it."""
    out = tmp_path / "run"
    training = typed("train", "heimdall", *TRAINING, f"--out={out}", f"--on={cluster.address}", "--json")
    until(lambda: training.says("ranks on") and len(curve(out)) > 10, "10 steps by two ranks")
    cluster.net.wire.delay_s = 0.02
    cluster.two.drop(1)
    before = len(curve(out))
    until(lambda: training.says("ranks on") and len(curve(out)) > before + 20, "20 steps over the bad link")
    assert cluster.two.dropped > 0
    cluster.two.cut()
    time.sleep(5)
    cluster.net.wire.delay_s = 0.0
    cluster.two.mend()
    training.wait()
    assert training.told == [f"2 ranks on {cluster.one.address}, {cluster.two.address}"]
    typed("train", "heimdall", *TRAINING, f"--out={tmp_path / 'alone'}", "--json").wait()
    assert_same_curve(curve(out), curve(tmp_path / "alone"))


def fill(folder: Path, count: int) -> None:
    """Files of a few KB in folders."""
    for at in range(count):
        path = folder / f"class{at % 20:02d}" / f"{at:05d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(at.to_bytes(4) * 1000)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file, the manifest too."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.name != LOCK]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_a_staging_loses_a_host_and_leaves_the_same_bytes(
    cluster: Cluster, typed: Callable[..., Typed], tmp_path: Path
) -> None:
    """On shared storage: one copy, the manifest too, as one machine leaves it."""
    source, target = tmp_path / "source", tmp_path / "staged"
    fill(source, 12_000)
    staging = typed("stage", str(source), str(target), "--jobs=2", f"--on={cluster.address}", "--json")
    until(lambda: staging.says("is shared by") and len(list(target.glob("*/*.bin"))) > 1000, "1,000 files")
    cluster.two.lose()
    assert len(list(target.glob("*/*.bin"))) < 11_000
    told = staging.wait()
    assert (told["files"], told["failed"], told["shared"]) == (12_000, {}, True)
    assert told["lost"] == [cluster.two.address]
    Stage(Store(source), tmp_path / "alone").run()
    assert contents(target) == contents(tmp_path / "alone")


def test_a_staging_to_disks_of_their_own_fills_each(
    cluster: Cluster, typed: Callable[..., Typed], tmp_path: Path
) -> None:
    """Told apart by looking: what one host writes, the other does not see."""
    source, target = tmp_path / "source", cluster.disk / "staged"
    fill(source, 200)
    told = typed("stage", str(source), str(target), f"--on={cluster.address}", "--json").wait()
    assert (told["shared"], told["copied"], set(told["nodes"])) == (
        False, 400, {host.address for host in cluster.hosts}
    )  # fmt: skip
    assert not target.exists()
    Stage(Store(source), tmp_path / "alone").run()
    digests = "cd {} && find . -type f ! -name '*.lock' | sort | xargs sha256sum"
    alone = subprocess.check_output(["sh", "-c", digests.format(tmp_path / "alone")], text=True)
    assert NAME in alone
    for host in cluster.hosts:
        assert host.run("sh", "-c", digests.format(target)) == alone


def test_a_training_into_a_folder_that_hosts_do_not_share_is_refused(
    cluster: Cluster, typed: Callable[..., Typed]
) -> None:
    """At the start, with what is needed."""
    training = typed(
        "train", "heimdall", *TRAINING, f"--out={cluster.disk / 'run'}", f"--on={cluster.address}"
    )
    with pytest.raises(AssertionError, match="does not see what is written to"):
        training.wait()


def test_a_search_loses_its_host_and_goes_on_on_the_other(
    cluster: Cluster, typed: Callable[..., Typed], tmp_path: Path
) -> None:
    """With what it had tried; what changes are compared with is measured anew there."""
    tuning = typed("tune", "--budget=240", f"--on={cluster.address}", "--json", str(SCRIPT))
    trials = tmp_path / ".stoker" / "tune"
    until(
        lambda: tuning.says("tunes on") and len(list(trials.glob("*/trials/*/trial.json"))) >= 3, "3 trials"
    )
    first = next(host for host in cluster.hosts if f"tunes on {host.address}" in tuning.told)
    other = next(host for host in cluster.hosts if host is not first)
    first.lose()
    told = tuning.wait()
    assert tuning.told[0] == f"tunes on {first.address}"
    assert tuning.told[-1] == f"tunes on {other.address}"
    assert len(list(trials.iterdir())) == 1
    held = [json.loads(path.read_text()) for path in sorted(trials.glob("*/trials/*/trial.json"))]
    names = [one["host"] for one in held]
    assert names == sorted(names, key=[first.name, other.name].index)
    assert set(names) == {first.name, other.name}
    here = [one["settings"] for one in held if one["host"] == other.name]
    assert here.count({}) >= 2
    assert told["trials"]
    assert told["baseline"] > 0
