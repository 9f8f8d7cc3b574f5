"""The campaign of faults: its judge can fail, its scenes see what is left, and it goes on where it ended."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import psutil
import pytest

from stoker.bench import faults
from stoker.bench.catalogue import Options
from stoker.bench.faults import campaign, damage, reading, rows, samples, scene
from stoker.bench.faults.judge import Ended, Outcome, Seen, Speaks, judge
from stoker.bench.faults.row import CLEAR_ERROR, Row
from stoker.bench.faults.scene import Scene
from stoker.bench.faults.services import Services
from stoker.errors import BenchFailed, UsageError
from stoker.feed.sources.base import Source
from stoker.feed.sources.torch import TorchSource

TRACE = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nKeyError: 3\n'
CLEAR = "stoker: cannot save /out/step-9: No space left; make room there\n"
LIBRARY = f"{TRACE}\nstoker.errors.SourceChanged: /d/0.npy was changed: 8 bytes, 4 now. Make it anew.\n"
DONE = Ended(code=0)


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [
        pytest.param(Seen(ended=(DONE,), counts={"samples": (96, 96)}), "goes_on", id="all of it"),
        pytest.param(Seen(ended=(Ended(code=1, said=CLEAR), DONE)), "clear_error", id="told, then gone on"),
        pytest.param(Seen(ended=(DONE,), counts={"samples": (96, 95)}), "lost", id="a sample less"),
        pytest.param(Seen(ended=(DONE,), counts={"samples": (96, 97)}), "lost", id="a sample more"),
        pytest.param(
            Seen(ended=(Ended(code=1, said=CLEAR),), counts={"jobs": (1, 0)}), "lost", id="told and lost"
        ),
        pytest.param(Seen(ended=(Ended(code=None, said=CLEAR),)), "hung", id="no end"),
        pytest.param(Seen(ended=(DONE, Ended(code=1, said=TRACE))), "traceback", id="a traceback"),
        pytest.param(Seen(ended=(Ended(code=0, said=TRACE),)), "traceback", id="a traceback on the way"),
        pytest.param(Seen(ended=(Ended(code=1, said=CLEAR + TRACE),)), "traceback", id="words, then that"),
        pytest.param(Seen(ended=(Ended(code=-7),)), "unclear", id="dead without a word"),
        pytest.param(Seen(ended=(Ended(code=1),)), "unclear", id="a code without a word"),
        pytest.param(Seen(ended=(DONE,), left=("process 7 (sleep)",)), "left", id="a process left"),
        pytest.param(Seen(ended=(DONE,), left=("/dev/shm/stoker-ram-0-x",)), "left", id="memory left"),
        pytest.param(Seen(ended=(DONE,), met=False), "missed", id="nothing was met"),
        pytest.param(Seen(ended=(DONE,), met=False, counts={"x": (1, 0)}), "lost", id="lost all the same"),
    ],
)
def test_a_trial_is_judged_by_the_worst_that_was_seen(seen: Seen, outcome: Outcome) -> None:
    """Whatever it ended with: what is lost, hangs, or lies there still is no success."""
    assert judge(seen).outcome == outcome


@pytest.mark.parametrize(
    ("said", "speaks", "names", "outcome"),
    [
        (CLEAR, "verb", "step-9", "clear_error"),
        (CLEAR, "verb", "step-7", "unclear"),
        ("stoker: it did not work\n", "verb", "", "unclear"),
        ("stoker: /x is no YAML: one\n  line too many; mend it\n", "verb", "", "unclear"),
        ("something else; make room\n", "verb", "", "unclear"),
        (LIBRARY, "library", r"0\.npy", "clear_error"),
        (TRACE, "library", "", "traceback"),
        (LIBRARY, "verb", "", "traceback"),
    ],
)
def test_an_error_is_clear_when_it_names_what_and_says_what_to_do(
    said: str, speaks: Speaks, names: str, outcome: Outcome
) -> None:
    """In one line, the last; of a verb without a traceback, of a library as an error of its tree."""
    assert judge(Seen(ended=(Ended(code=1, said=said, speaks=speaks, names=names),))).outcome == outcome


def test_a_scripts_own_error_is_its_own() -> None:
    """It must be the one that it has without Stoker, and no frame of ours stands before it."""
    own = Ended(code=1, said=TRACE, speaks="script", own="KeyError: 3")
    assert judge(Seen(ended=(own,))).outcome == "clear_error"
    other = Ended(code=1, said=TRACE, speaks="script", own="ValueError")
    assert judge(Seen(ended=(other,))).outcome == "unclear"
    ours = TRACE.replace("x.py", "/lib/stoker/watch/hooks.py")
    framed = Ended(code=1, said=ours, speaks="script", own="KeyError")
    assert judge(Seen(ended=(framed,))).outcome == "traceback"


@pytest.mark.parametrize("kind", ["npy", "images", "volume", "sqlite", "torch"])
def test_of_every_sample_its_number_is_told(tmp_path: Path, kind: str) -> None:
    """From its values alone; one that is not its own is none."""
    source = samples.open_source(kind, str(samples.make(kind, tmp_path / "data")), {})
    source = source if isinstance(source, Source) else TorchSource(source)
    batch = source.read(np.array([5, 90, 17]))
    found = samples.numbers_of(kind, batch)
    assert len(set(found)) == 3 and samples.WRONG not in found
    first = batch[0] if kind == "images" else batch["image"] if kind == "volume" else batch
    values = first["x"] if kind == "sqlite" else first
    values.numpy().reshape(-1)[values.numel() // 3 // 2] += 1
    assert samples.numbers_of(kind, batch)[0] == samples.WRONG


def test_a_sample_lost_or_doubled_is_counted(tmp_path: Path, held: Scene) -> None:
    """By number, in each epoch for itself."""
    job = reading.Reading(held, "torch")
    whole = list(range(samples.COUNT))
    note = tmp_path / "scene" / "reading" / "note.json"
    for epochs, found in (
        ({"0": [whole], "1": [whole]}, 192),
        ({"0": [whole], "1": [whole[:-1]]}, 191),
        ({"0": [whole, [7]], "1": [whole]}, 191),
        ({"0": [whole], "1": [[*whole[:-1], samples.WRONG]]}, 191),
        ({"0": [whole]}, 96),
    ):
        note.write_text(json.dumps({"epochs": epochs}))
        assert job.counts() == {"samples": (192, found)}


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Scene]:
    with Services(tmp_path / "services") as services, Scene(tmp_path / "scene", "seed", services) as made:
        yield made


def test_what_is_left_is_seen_wherever_it_went(held: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in a session of its own whose parent is gone, a file, shared memory; ended with the scene."""
    monkeypatch.setattr(scene, "_GRACE_S", 0.2)
    assert held.left() == ()
    code = (
        "import os, subprocess, tempfile\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "open(tempfile.gettempdir() + '/stoker-scratch-x', 'w')\n"
        "open('/dev/shm/stoker-ram-test-of-faults', 'w')\n"
    )
    assert held.start(sys.executable, "-c", code).ended() == Ended(code=0)
    process, memory, file = held.left()
    assert "sleep 600" in process
    assert (memory, file) == ("/dev/shm/stoker-ram-test-of-faults", "temporary stoker-scratch-x")
    number = int(process.split()[1])
    held.__exit__(None, None, None)
    assert not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE
    assert not Path(memory).exists()


def test_a_process_that_does_not_end_is_told(held: Scene) -> None:
    """After the patience it is killed, and judged as hung."""
    held.patience_s = 0.3
    ended = held.start("sleep", "600").ended()
    assert judge(Seen(ended=(ended,))).outcome == "hung"
    assert held.left() == ()


def test_chance_is_the_seeds(tmp_path: Path) -> None:
    """The same trial is held again by its row and turn."""
    path = tmp_path / "x.json"
    done = []
    for _ in range(2):
        path.write_text('{"schema": 1, "a": "some words that can be harmed"}')
        told = damage.harm([path], Random("7"))
        done.append((told, path.read_bytes() if path.exists() else b""))
    assert done[0] == done[1]


def acting(**more: Any) -> tuple[Row, list[int]]:
    """A row whose every second trial loses something."""
    tried: list[int] = []

    def act(held: Scene) -> Seen:
        tried.append(len(tried))
        return Seen(ended=(DONE,), counts={"samples": (10, 10 - len(tried) % 2)}, note="by hand")

    told = {"name": "made-up", "part": "feed", "fault": "nothing", "counted": "samples", **more}
    return Row(act=act, times=4, seconds=0, **told), tried


def test_a_campaign_goes_on_where_it_ended_and_counts_each_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was tried is not tried again; what did not hold is named on the page, with why."""
    row, tried = acting()
    lacking = Row(
        name="no-card", part="feed", fault="the card's memory", counted="samples", act=row.act, times=3,
        seconds=1, needs=("package:there_is_no_such_package",),
    )  # fmt: skip
    monkeypatch.setattr(rows, "ALL", (row, lacking))
    monkeypatch.setattr(campaign, "take_own_mounts", lambda: None)
    options = Options(state=tmp_path, commit="c", stop_after=-1.0)
    started = faults.measure(options)
    assert next(started).runs == [{"row": "no-card", "not_run": "there_is_no_such_package is not installed"}]
    with pytest.raises(BenchFailed, match=r"made-up.*--state"):
        next(started)
    [result] = faults.measure(Options(state=tmp_path, commit="c"))
    [again] = faults.measure(Options(state=tmp_path, commit="c"))
    assert tried == [0, 1, 2, 3]
    assert again.figures == result.figures
    assert result.figures["faults_trials"] == 4
    assert (result.figures["faults_lost"], result.figures["faults_goes_on"]) == (2, 2)
    assert (result.figures["counted_samples"], result.figures["found_samples"]) == (40, 38)
    assert (result.figures["faults_rows"], result.figures["faults_rows_held"]) == (1, 0)
    assert result.figures["faults_rows_not_run"] == 1
    text = faults.page([result])
    assert "| **made-up**: nothing | feed | 4 | 2 | 0 | 2 | 0 | 0 | 0 | 0 | 0 |" in text
    assert "- made-up 0: lost: 9 samples of 10 (by hand)" in text
    assert "| **no-card**: the card's memory | feed | n/a | n/a |" in text
    assert "- no-card: there_is_no_such_package is not installed" in text


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (scene.Fell(Ended(code=None, said="the server does not answer")), "hung"),
        (scene.Fell(Ended(code=1, said=TRACE)), "traceback"),
        (UsageError("the record is damaged"), "lost"),
    ],
)
def test_what_ends_a_trial_is_judged_too(tmp_path: Path, error: Exception, outcome: Outcome) -> None:
    """A server that does not come back, or something kept that cannot be read back."""

    def act(held: Scene) -> Seen:
        raise error

    row = Row(name="x", part="jobs", fault="", counted="", act=act, times=1, seconds=0)
    with Services(tmp_path / "services") as services:
        assert campaign.try_once(row, 0, tmp_path / "a", services)["outcome"] == outcome


def test_more_may_be_promised_of_a_row_than_a_good_outcome(tmp_path: Path) -> None:
    """Where an error is to be told, going on as if nothing were does not hold."""
    row, _ = acting(good=CLEAR_ERROR)
    with Services(tmp_path / "services") as services:
        first = campaign.try_once(row, 0, tmp_path / "a", services)
        second = campaign.try_once(row, 1, tmp_path / "a", services)
    assert [(one["outcome"], one["held"]) for one in (first, second)] == [("lost", False), ("goes_on", False)]


def test_rows_are_named_once_and_an_unknown_one_is_told() -> None:
    """With those there are."""
    names = [row.name for row in rows.ALL]
    assert len(names) == len(set(names)) and len(names) >= 40
    with pytest.raises(UsageError, match=r"no row feed-kil of bench faults; there are: .*feed-kill,"):
        next(faults.measure(Options(parts=("feed-kil",))))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["feed-kill-worker", "stage-kill", "checkpoint-harmed", "run-kill-scribe"])
def test_a_row_is_tried_for_real(tmp_path: Path, name: str) -> None:
    """Real processes, killed and harmed for real."""
    row = next(row for row in rows.ALL if row.name == name)
    with Services(tmp_path / "services") as services:
        told = campaign.try_once(row, 0, Path("/tmp") / f"sf-test-{time.time_ns()}", services)
    assert told["held"], told
