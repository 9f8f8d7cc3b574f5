"""A training over nodes: who takes part, what its ranks are told, and what a lost node costs.

Ranks here are small programs in place of a training: they meet through files of the folder as ranks meet
through sums, save as a training saves, and end on SIGTERM as one does.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.cluster import training
from stoker.cluster.nodes import Look
from stoker.cluster.training import STOPPED, Training, Wanted, choose_nodes, environments
from stoker.errors import ClusterFailed, NodeUnfit, UsageError
from stoker.train.folder import is_taken
from stoker.ward.fake_cluster import FakeCluster

PATIENCE_S = 60.0
# Steps until the last, each saved; a rank goes on when all of its world have made the step.
RANK = """
import fcntl, json, os, pathlib, signal, sys, time
folder, last = pathlib.Path(sys.argv[1]), int(sys.argv[2])
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
if rank == 0:
    lock = (folder / ".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
saved = folder / "checkpoints"
saved.mkdir(parents=True, exist_ok=True)
step = max([int(path.name[5:]) for path in saved.glob("step-*")], default=0)
meeting = folder / ("meeting-" + os.environ.get("MASTER_PORT", "alone"))
meeting.mkdir(exist_ok=True)
while step < last:
    step += 1
    (meeting / f"{step}-{rank}{'-stop' if told else ''}").touch()
    while len(here := list(meeting.glob(f"{step}-*"))) < world:
        time.sleep(0.01)
    if rank == 0:
        (saved / f"step-{step:09}").mkdir(exist_ok=True)
        with (folder / "steps.jsonl").open("a") as out:
            out.write(json.dumps([step, world]) + "\\n")
    if any(path.name.endswith("-stop") for path in here):
        sys.exit(143)
    time.sleep(0.05)
if rank == 0:
    print(json.dumps({"step": step, "world": world}))
"""


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and waits of a test's length."""
    for name, seconds in (("_LOOK_S", 0.1), ("_LAST_WORDS_S", 0.3), ("_PATIENCE_S", 1.0), ("TICK_S", 0.02)):
        monkeypatch.setattr(training, name, seconds)


@pytest.fixture
def pair() -> Iterator[FakeCluster]:
    """Two nodes."""
    made = FakeCluster("a", "b")
    yield made
    made.close()


def wanted(folder: Path, *, last: int = 20, program: str = RANK, **other: object) -> Wanted:
    fields = {"batch_size": 8, "device": "cpu", "grow_after": 3600.0, **other}
    return Wanted(words=("-c", program, str(folder), str(last)), folder=folder, **fields)  # type: ignore[arg-type]


def steps_of(folder: Path) -> list[list[int]]:
    path = folder / "steps.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def when(condition: Callable[[], object], then: Callable[[], object]) -> threading.Thread:
    """Do something once something is so; the training has the main thread, for its signals."""

    def wait() -> None:
        until = time.monotonic() + PATIENCE_S
        while not condition() and time.monotonic() < until:
            time.sleep(0.01)
        then()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_as_many_nodes_take_part_as_share_the_batch() -> None:
    """Two ranks each and a batch of 12: of 5 nodes 3 take part, as 8 and 10 ranks would not share it."""
    assert [choose_nodes(there, 2, 12) for there in range(8)] == [0, 1, 2, 3, 3, 3, 6, 6]


def test_ranks_are_told_what_torchrun_would_tell_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their numbers over all nodes, where rank 0 listens, and the interface that leads to the others."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    looks = [
        Look(version="", host=f"h{at}", interface=f"eth{at}", port=5000 + at, cores=8, digests={})
        for at in range(2)
    ]
    ranks = [rank for node in environments(looks, ["10.0.0.1", "10.0.0.2"], 2) for rank in node]
    assert [rank["RANK"] for rank in ranks] == ["0", "1", "2", "3"]
    assert [rank["LOCAL_RANK"] for rank in ranks] == ["0", "1", "0", "1"]
    assert [rank["GROUP_RANK"] for rank in ranks] == ["0", "0", "1", "1"]
    assert {(rank["WORLD_SIZE"], rank["LOCAL_WORLD_SIZE"]) for rank in ranks} == {("4", "2")}
    assert {(rank["MASTER_ADDR"], rank["MASTER_PORT"]) for rank in ranks} == {("10.0.0.1", "5000")}
    assert [rank["GLOO_SOCKET_IFNAME"] for rank in ranks] == ["eth0", "eth0", "eth1", "eth1"]
    assert {rank["OMP_NUM_THREADS"] for rank in ranks} == {"4"}
    # A rank alone trains as it does without a cluster: with the threads that it would have, and no group.
    assert environments(looks[:1], ["10.0.0.1"], 1) == [[{"OMP_NUM_THREADS": None}]]


def test_all_nodes_train(pair: FakeCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each has a rank; what rank 0 prints is what the command prints."""
    told: list[str] = []
    assert Training(pair, wanted(tmp_path), told.append).run() == 0
    assert steps_of(tmp_path) == [[step, 2] for step in range(1, 21)]
    assert json.loads(capfd.readouterr().out) == {"step": 20, "world": 2}
    assert told == ["2 ranks on a, b"]
    assert not list(tmp_path.glob(".stoker-on-*"))


@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_lost_node_costs_what_was_not_saved(
    pair: FakeCluster, tmp_path: Path, lost: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The others go on from the last checkpoint, whether or not it had rank 0; each step is made."""
    told: list[str] = []
    losing = when(lambda: len(steps_of(tmp_path)) >= 5, lambda: pair.lose(lost))
    assert Training(pair, wanted(tmp_path, last=15), told.append).run() == 0
    losing.join()
    made = steps_of(tmp_path)
    assert [step for step, _ in made] == list(range(1, 16))
    assert {world for _, world in made} == {1, 2}
    assert json.loads(capfd.readouterr().out)["world"] == 1
    left = "b" if lost == "a" else "a"
    assert told[0] == "2 ranks on a, b"
    assert told[1].startswith(f"the node {lost} was lost: as ordered. It goes on from the last checkpoint")
    assert told[-1] == f"1 rank on {left}"


def test_a_node_that_comes_back_is_taken_in(pair: FakeCluster, tmp_path: Path) -> None:
    """The ranks that are left save and end, and go on with it."""
    told: list[str] = []
    pair.lose("b")
    coming = when(lambda: len(steps_of(tmp_path)) >= 3, lambda: pair.add("b"))
    assert Training(pair, wanted(tmp_path, last=40, grow_after=0.0), told.append).run() == 0
    coming.join()
    made = steps_of(tmp_path)
    assert [step for step, _ in made] == list(range(1, 41))
    assert [world for _, world in made] == sorted(world for _, world in made)
    assert made[-1][1] == 2
    assert "1 rank on a" in told
    assert "2 ranks on a, b" in told


def test_a_busy_node_is_not_waited_for_while_another_is_free(tmp_path: Path) -> None:
    """Of three nodes two can share the batch; where two are busy, the third trains alone."""
    three = FakeCluster("a", "b", "c")
    busy = [three.take(node, cpus=1.0, gpus=0.0) for node in three.nodes()[:2]]
    told: list[str] = []
    try:
        assert Training(three, wanted(tmp_path, last=3), told.append).run() == 0
    finally:
        three.close()
    assert [hand.node.name for hand in busy] == ["a", "b"]
    assert told == ["1 rank on c"]


def test_room_that_cannot_be_used_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of four nodes are free and two share the batch; the third is not held, until the fourth comes."""
    monkeypatch.setattr(training, "_PATIENCE_S", 0.2)
    four = FakeCluster("a", "b", "c", "d")
    [busy] = [four.take(node, cpus=1.0, gpus=0.0) for node in four.nodes() if node.name == "d"]
    told: list[str] = []
    open_while_two: list[str] = []

    def free() -> None:
        open_while_two.extend(
            hand.node.name for hand in four.hands if not hand.is_closed and hand is not busy
        )
        busy.close()

    freeing = when(lambda: len(steps_of(tmp_path)) >= 5, free)
    try:
        assert Training(four, wanted(tmp_path, last=25, grow_after=0.0), told.append).run() == 0
    finally:
        freeing.join()
        four.close()
    assert open_while_two == ["a", "b", "d"]  # that on d waits for its room
    assert told[0] == "2 ranks on a, b"
    assert told[-1] == "4 ranks on a, b, c, d"
    assert [step for step, _ in steps_of(tmp_path)] == list(range(1, 26))


def test_a_node_that_is_only_slow_to_answer_is_not_lost(pair: FakeCluster, tmp_path: Path) -> None:
    """What runs on it goes on; nothing is started a second time."""
    told: list[str] = []
    cutting = when(lambda: len(steps_of(tmp_path)) >= 3, lambda: pair.cut("b"))
    mending = when(lambda: len(steps_of(tmp_path)) >= 12, lambda: pair.mend("b"))
    assert Training(pair, wanted(tmp_path), told.append).run() == 0
    cutting.join()
    mending.join()
    assert steps_of(tmp_path) == [[step, 2] for step in range(1, 21)]
    assert told == ["2 ranks on a, b"]


def test_a_rank_that_was_killed_is_started_again_and_one_that_failed_is_not(
    pair: FakeCluster, tmp_path: Path
) -> None:
    """Memory may have run out; an error of its own comes again."""
    once = (
        "import os, pathlib, signal, sys\n"
        "died = pathlib.Path(sys.argv[1], 'died')\n"
        "if os.environ.get('RANK') == '1' and not died.exists():\n"
        "    died.touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    told: list[str] = []
    assert Training(pair, wanted(tmp_path, last=3, program=once + RANK), told.append).run() == 0
    assert any("a rank was killed" in line for line in told)
    told.clear()
    assert Training(pair, wanted(tmp_path, program="import sys; sys.exit(7)"), told.append).run() == 7
    assert told == ["2 ranks on a, b"]


def test_attempts_that_save_nothing_come_to_an_end(pair: FakeCluster, tmp_path: Path) -> None:
    """What ends three of them would end the fourth."""
    program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(ClusterFailed, match="attempt 3 in a row without a new checkpoint"):
        Training(pair, wanted(tmp_path, program=program), lambda text: None).run()


def test_a_wish_to_stop_reaches_all_ranks(pair: FakeCluster, tmp_path: Path) -> None:
    """They save and end, and the exit code tells so."""
    asking = when(lambda: len(steps_of(tmp_path)) >= 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert Training(pair, wanted(tmp_path, last=10_000), lambda text: None).run() == STOPPED
    asking.join()
    assert not is_taken(tmp_path)


def test_the_folder_of_a_process_that_is_only_cut_off_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it lets go: two never write to one training."""
    cluster = FakeCluster("a", "b")
    told: list[str] = []
    looks: list[bool] = []

    def still_taken(folder: Path) -> bool:
        # After the loss, the first three looks find the folder with a process that nobody reaches.
        taken = is_taken(folder) or (len(told) > 1 and len(looks) < 3)
        looks.extend([taken] if len(told) > 1 else [])
        return taken

    monkeypatch.setattr("stoker.train.folder.is_taken", still_taken)
    losing = when(lambda: len(steps_of(tmp_path)) >= 3, lambda: cluster.lose("a"))
    try:
        assert Training(cluster, wanted(tmp_path, last=10), told.append).run() == 0
    finally:
        losing.join()
        cluster.close()
    assert [step for step, _ in steps_of(tmp_path)] == list(range(1, 11))
    assert f"waits until a lost process lets go of {tmp_path}" in told
    assert looks[:4] == [True, True, True, False]


def test_ranks_that_are_to_meet_need_a_node_that_can_listen(
    pair: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose address is not its own cannot; a rank alone has nobody to meet."""
    monkeypatch.setattr("stoker.ward.fake_cluster._HERE", "192.0.2.1")
    with pytest.raises(NodeUnfit, match=r"the node a cannot listen on a.*--node-ip-address"):
        Training(pair, wanted(tmp_path), lambda text: None).run()
    pair.lose("b")
    assert Training(pair, wanted(tmp_path, last=1), lambda text: None).run() == 0


def test_the_folder_that_a_command_is_typed_in_must_be_there(pair: FakeCluster, tmp_path: Path) -> None:
    """Ranks start in it, and what is typed may be relative to it."""
    pair.other_files[("b", str(Path.cwd()))] = None
    with pytest.raises(NodeUnfit, match=rf"the node b has no folder {Path.cwd()}, .*typed in"):
        Training(pair, wanted(tmp_path), lambda text: None).run()


def test_what_a_node_lacks_is_told_before_anything_is_started(pair: FakeCluster, tmp_path: Path) -> None:
    """The folder on shared storage, the same config, cards, a batch that ranks can share."""
    config = tmp_path / "config.toml"
    config.write_text("")
    pair.other_files[("b", ".toml")] = None
    with pytest.raises(ClusterFailed, match=r"config.toml is not there on the node b: .* share"):
        Training(pair, wanted(tmp_path, files=(config,)), lambda text: None).run()
    pair.other_files = {("b", ""): None}
    with pytest.raises(ClusterFailed, match=r"the node b does not see what is written to .*NFS"):
        Training(pair, wanted(tmp_path), lambda text: None).run()
    with pytest.raises(ClusterFailed, match=r"no node has 1 GPUs.*a has 1 cores and 0 GPUs"):
        Training(pair, wanted(tmp_path, device="cuda"), lambda text: None).run()
    with pytest.raises(UsageError, match=r"train\.batch_size is 8 and train\.devices 3"):
        Training(pair, wanted(tmp_path, per_node=3), lambda text: None).run()
    assert steps_of(tmp_path) == []
