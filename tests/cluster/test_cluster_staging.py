"""Staging shared out: one copy whoever made its parts, the same bytes as one machine leaves."""

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.cli import main
from stoker.cluster import staging
from stoker.cluster.staging import Staging
from stoker.errors import ClusterFailed
from stoker.feed.manifest import NAME, OF_PART, Manifest
from stoker.feed.sources.objects import Store
from stoker.feed.stage import Outcome, Selection, Stage, parse_part
from stoker.feed.stage_plan import LOCK, in_part
from stoker.ward.fake_cluster import FakeCluster, FakeHand

FILES = 60


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A set of small files in folders."""
    for at in range(FILES):
        path = tmp_path / "source" / f"class{at % 5}" / f"{at:03d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([at]) * (1000 + at))
    return tmp_path / "source"


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """Two nodes."""
    monkeypatch.setattr(staging, "TICK_S", 0.02)
    made = FakeCluster("a", "b")
    yield made
    made.close()


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its time, staging's own too; the empty lock apart."""
    return {
        str(path.relative_to(folder)): (
            path.read_bytes(),
            0 if path.name == NAME else path.stat().st_mtime_ns,
        )
        for path in folder.rglob("*")
        if path.is_file() and path.name != LOCK
    }


def words_for(source: Path, target: Path, before: str = "") -> Any:
    """What a node is given: the verb, or a program around it."""
    run = "import sys; sys.argv[0] = 'stoker'; from stoker.cli import main; main()"

    def words(*, part: str | None = None, dry_run: bool = False, verify: bool = False) -> tuple[str, ...]:
        found = ["stage", str(source), str(target), "--json"]
        found += [f"--part={part}"] if part else []
        found += ["--dry-run"] if dry_run else []
        return ("-c", f"{before if part else ''}\n{run}", *found)

    return words


def staged_here(source: Path, target: Path) -> dict[str, tuple[bytes, int]]:
    Stage(Store(source), target).run()
    return contents(target)


def test_parts_are_a_whole_and_share_nothing() -> None:
    """By the key alone; a part that is none is told."""
    keys = [f"class{at % 7}/{at}.jpg" for at in range(1000)]
    parts = [{key for key in keys if in_part(key, (number, 4))} for number in range(4)]
    assert sorted(key for part in parts for key in part) == sorted(keys)
    assert all(150 < len(part) < 350 for part in parts)
    assert parse_part("3/4") == (3, 4)
    for wrong in ("4/4", "a/2", "1", "-1/2", "0/0"):
        with pytest.raises(Exception, match="is no part"):
            parse_part(wrong)


def test_nodes_leave_what_one_machine_leaves(source: Path, tmp_path: Path, pair: FakeCluster) -> None:
    """Files, times and manifest, byte for byte; and what is told adds up."""
    alone = staged_here(source, tmp_path / "alone")
    done = Staging(pair, words_for(source, tmp_path / "dst"), str(tmp_path / "dst"), lambda text: None).run()
    assert contents(tmp_path / "dst") == alone
    assert (done.is_shared, done.outcome.copied, done.outcome.kept, done.lost) == (True, FILES, 0, [])
    assert sum(mine["copied"] for mine in done.nodes.values()) == FILES
    assert json.loads(json.dumps(done.to_json()))["files"] == FILES
    again = Staging(pair, words_for(source, tmp_path / "dst"), str(tmp_path / "dst"), lambda text: None).run()
    assert (again.outcome.copied, again.outcome.kept) == (0, FILES)


def test_a_lost_node_s_parts_are_done_by_others(source: Path, tmp_path: Path, pair: FakeCluster) -> None:
    """In the middle of a part: the same bytes, and nothing left over."""
    alone = staged_here(source, tmp_path / "alone")
    target = tmp_path / "dst"
    # Each file takes a while, so that the loss comes in the middle of all parts.
    slowly = (
        "import time; from stoker.feed.stage_copy import Copier; copy = Copier.copy\n"
        "Copier.copy = lambda *all: (time.sleep(0.3), copy(*all))[1]"
    )
    told: list[str] = []

    def lose() -> None:
        while not any(target.rglob("*.bin")):
            time.sleep(0.01)
        pair.lose("b")

    losing = threading.Thread(target=lose)
    losing.start()
    done = Staging(pair, words_for(source, target, slowly), str(target), told.append).run()
    losing.join()
    assert done.lost == ["b"]
    assert "the node b was lost: as ordered" in told
    assert contents(target) == alone
    assert done.outcome.copied + done.outcome.kept == FILES
    assert not list(target.glob(f"{OF_PART}*"))


def test_all_nodes_lost_is_an_end(source: Path, tmp_path: Path, pair: FakeCluster) -> None:
    """Said with what to do; the same command goes on from what is there."""
    hang = "import signal; signal.pause()"
    losing = threading.Timer(0.5, lambda: [pair.lose(name) for name in ("a", "b")])  # type: ignore[func-returns-value]
    losing.start()
    with pytest.raises(ClusterFailed, match=r"no node is left to stage .a, b were lost.: .*goes on"):
        Staging(
            pair, words_for(source, tmp_path / "dst", hang), str(tmp_path / "dst"), lambda text: None
        ).run()
    losing.join()


def test_what_is_wrong_is_told_once_before_a_copy(tmp_path: Path, pair: FakeCluster) -> None:
    """A source that is not there; the node that says so is named."""
    words = words_for(tmp_path / "nowhere", tmp_path / "dst")
    with pytest.raises(ClusterFailed, match=r"on the node a: .*nowhere"):
        Staging(pair, words, str(tmp_path / "dst"), lambda text: None).run()


def test_a_folder_that_only_some_nodes_share_is_refused(source: Path, tmp_path: Path) -> None:
    """Named with those that do not."""
    three = FakeCluster("a", "b", "c")
    three.other_files[("c", ".mark")] = None
    with pytest.raises(ClusterFailed, match=r"shared by some nodes and not by others \(c\)"):
        Staging(three, words_for(source, tmp_path / "dst"), str(tmp_path / "dst"), lambda text: None).run()
    assert not list((tmp_path / "dst").glob("*"))


@pytest.mark.parametrize("shared", [True, False])
def test_a_dry_run_leaves_nothing(tmp_path: Path, pair: FakeCluster, shared: bool) -> None:
    """Neither the destination nor what tells whether it is shared."""
    pair.other_files = {} if shared else {("b", ".mark"): None}
    target = tmp_path / "new" / "dst"
    told = Outcome(source="here", target=str(target), dry_run=True, files=3).to_json()
    words = ("-c", f"print({json.dumps(told)!r})")
    done = Staging(pair, lambda **other: words, str(target), lambda text: None).run(dry_run=True)
    assert (done.is_shared, done.outcome.files) == (shared, 3 if shared else 6)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_what_a_lost_node_wrote_to_tell_is_removed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    """A staged set has no file that the source has not."""
    cluster = FakeCluster(*names)
    put = FakeHand.put

    def put_and_go(hand: FakeHand, path: str, text: str | None) -> str | None:
        found = put(hand, path, text)
        if hand.node.name == "a" and text is not None:
            assert len(list(tmp_path.iterdir())) == 1
            cluster.lose("a")
        return found

    monkeypatch.setattr(FakeHand, "put", put_and_go)
    words = ("-c", f"print({json.dumps(Outcome(source='here', target=str(tmp_path)).to_json())!r})")
    try:
        done = Staging(cluster, lambda **other: words, str(tmp_path), lambda text: None).run(dry_run=True)
    finally:
        cluster.close()
    assert (done.lost, done.is_shared) == (["a"], True)
    assert list(tmp_path.iterdir()) == []


def test_lines_of_parts_count_and_are_folded_in(source: Path, tmp_path: Path) -> None:
    """Of a part that was killed too; those of one that is at work are left to it."""
    target, store = tmp_path / "dst", Store(source)
    Stage(store, target, Selection(part=(0, 2))).run()
    working = Manifest(target, store.url, part=True)
    working.add(next(iter(Manifest(target, store.url).lines().values())))
    assert len(list(target.glob(f"{OF_PART}*"))) == 2
    first = Stage(store, target).run()
    assert 0 < first.kept < FILES
    assert (first.copied, first.removed) == (FILES - first.kept, [])
    assert len(list(target.glob(f"{OF_PART}*"))) == 1
    working.close()
    Stage(store, target).run()
    assert not list(target.glob(f"{OF_PART}*"))
    assert contents(target) == staged_here(source, tmp_path / "alone")


def test_a_wrong_part_exits_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As every wrong use."""
    monkeypatch.setattr(sys, "argv", ["stoker", "stage", str(tmp_path), "dst", "--part", "9"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err.startswith("stoker: --part 9 is no part")) == (2, True)
