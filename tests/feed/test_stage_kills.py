"""Staging children that are killed for real: no partial file under a final name, and the next run goes on."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.feed.sources.objects import Store
from stoker.feed.stage import Selection, Stage
from stoker.feed.whole_file import PART
from stoker.ward.proxy import Proxy

from .kill_campaign import Campaign
from .s3 import S3Server
from .test_stage import fill, staged

pytestmark = pytest.mark.service

# Large enough to be in the middle of a file most of the time.
SIZES = [0, 40_000, 1_500_000, 3_000_000, 4_000_000]
SET = {
    f"c{n % 4}/{n:03d}.bin": (hashlib.sha256(str(n).encode()).digest() * (SIZES[n % 5] // 32 + 1))[
        : SIZES[n % 5]
    ]
    for n in range(40)
}
WAIT_S = 60.0


def start(words: list[str], server: S3Server) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "stoker", "stage", *words, "--quiet", "--jobs", "4"],
        env={**os.environ, **server.environment()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def await_first_write(folder: Path, child: "subprocess.Popen[bytes]") -> None:
    """Until a file or a part of one is there."""
    deadline = time.monotonic() + WAIT_S
    while not any(folder.glob("c*/*")) and not any(folder.glob(f"c*/{PART}*")):
        assert child.poll() is None, "it ended before it wrote"
        assert time.monotonic() < deadline, "nothing was ever written"
        time.sleep(0.001)


@pytest.fixture(scope="module", params=["s3", "folder"])
def source(
    request: pytest.FixtureRequest, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Store, list[str], S3Server]]:
    """A store, the words that name it on a command line, and the server for credentials."""
    if request.param == "folder":
        folder = tmp_path_factory.mktemp("source")
        store = Store(folder)
        fill(store, SET)
        yield store, [str(folder)], s3_server
        return
    with Proxy(port=s3_server.port, delay_s=0.002) as proxy:
        store = s3_server.store("tests/kills")
        fill(store, SET)
        yield store, ["s3://tests/kills", "--endpoint", f"http://127.0.0.1:{proxy.port}"], s3_server


def duration_of_writes(source: tuple[Store, list[str], S3Server], folder: Path) -> float:
    """Seconds from the first write of an undisturbed run to the last file's name."""
    child = start([*source[1], str(folder)], source[2])
    await_first_write(folder, child)
    began = time.monotonic()
    while not all((folder / key).exists() for key in SET):
        assert time.monotonic() < began + WAIT_S, "it never ended"
        time.sleep(0.001)
    duration = time.monotonic() - began
    assert child.wait(WAIT_S) == 0
    return duration


def kill_and_go_on(
    source: tuple[Store, list[str], S3Server], folder: Path, duration: float, chance: random.Random
) -> Counter[str]:
    """Kill a run in the time of its writes, look at what it left, run again; what became of the files."""
    child = start([*source[1], str(folder)], source[2])
    await_first_write(folder, child)
    time.sleep(chance.uniform(0, duration))
    child.send_signal(signal.SIGKILL)
    killed = child.wait(WAIT_S) == -signal.SIGKILL  # and had not ended before
    left = staged(folder)
    cut = any(folder.rglob(f"{PART}*"))
    outcome = Stage(source[0], folder, Selection(verify=True)).run()
    after = staged(folder)
    assert not any(folder.rglob(f"{PART}*"))
    # What the killed run had finished is not copied again, but for files whose line it could not write.
    assert outcome.copied <= len(SET) - len(left) + 4
    return Counter(
        kills=int(killed),
        inside=int(killed and cut),
        resumed=int(killed and outcome.failed == {}),
        partial=sum(SET[key] != data for key, data in [*left.items(), *after.items()]),
        lost=len(SET.keys() - after.keys()),
    )


def assert_nothing_shows(seen: Counter[str]) -> None:
    """Each kill was followed by a run that went on, to every file whole."""
    assert (seen["resumed"], seen["partial"], seen["lost"]) == (seen["kills"], 0, 0)


def test_a_killed_run_leaves_no_partial_file_and_the_next_goes_on(
    source: tuple[Store, list[str], S3Server], tmp_path: Path
) -> None:
    """kill -9, three times, at moments drawn over the measured duration of the writes."""
    duration = duration_of_writes(source, tmp_path / "measured")
    chance = random.Random(7)
    for number in range(3):
        assert_nothing_shows(kill_and_go_on(source, tmp_path / str(number), duration, chance))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_kills(
    request: pytest.FixtureRequest, source: tuple[Store, list[str], S3Server], tmp_path: Path
) -> None:
    """At least half of them in the middle of a write."""
    # The shortest of three: what else this machine does must not put the moments after the end.
    duration = min(duration_of_writes(source, tmp_path / f"measured{number}") for number in range(3))
    chance = random.Random(11)
    seen: Counter[str] = Counter()
    while seen["kills"] < 100:
        seen.update(kill_and_go_on(source, tmp_path / "dst", duration, chance))
        shutil.rmtree(tmp_path / "dst")
    Campaign.of(seen, name="staging", part=request.node.callspec.id, writes_s={"all": duration}).tell()
    assert_nothing_shows(seen)
    assert seen["inside"] >= 50


def test_an_interrupted_run_ends_whole(source: tuple[Store, list[str], S3Server], tmp_path: Path) -> None:
    """Ctrl-C: files in hand are finished, no part stays, exit code 130."""
    child = start([*source[1], str(tmp_path / "dst")], source[2])
    await_first_write(tmp_path / "dst", child)
    child.send_signal(signal.SIGINT)
    assert child.wait(WAIT_S) in (0, 130)
    left = staged(tmp_path / "dst")
    assert all(SET[key] == data for key, data in left.items())
    assert not any((tmp_path / "dst").rglob(f"{PART}*"))
