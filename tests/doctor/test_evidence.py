"""From a record to numbers: what is a step's, what a batch's, and what is not measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.doctor.evidence import Evidence, read
from stoker.scratch import Message
from stoker.watch import Record, Step
from stoker.watch.record import LineWriter, Writer


def step(number: int, *, other: float = 0.01, wait: float = 0.03, startup: float = 0.0) -> Step:
    return Step(
        step=number, t=100 + number / 10, samples=8, loader=0, wait=wait, copy=0.0, forward=0.02,
        backward=0.03, update=0.01, other=other, startup=startup,
    )  # fmt: skip


def record_of(folder: Path, steps: list[Step], **batch: Any) -> Record:
    writer = Writer(folder / "it", rank=0)
    writer.describe_run({"id": "it"})
    loader = {"id": 0, "name": "L", "fed": 9, "num_workers": 2, "batch_size": 4, "epochs": 1}
    writer.describe_rank({"rank": 0, "loaders": [loader]})
    lines = LineWriter(writer.rank_folder)
    for one in steps:
        lines.add("steps", one.to_line())
    told = {
        "loader": 0, "worker": 0, "seq": 0, "t": 101.0, "samples": 4, "read": 0.1, "transform": 0.0,
        "collate": 0.0, "handoff": 0.0, "pin": None, "cpu": 0.01, "queued": 0.0, "bytes": 1000, "disk": 900,
        "faults": 3, "calls": {"item": 4},
    }  # fmt: skip
    lines.add("batches", json.dumps({**told, **batch}))
    lines.close()
    return Record.open(folder / "it")


def found(record: Record, *messages: tuple[str, dict[str, Any]]) -> Evidence:
    told = [Message(kind=kind, body=body, at=0.0) for kind, body in messages]
    evidence = read(record, told, {}, {})
    assert evidence is not None
    return evidence


def test_what_came_from_the_disk_reaches_the_causes(tmp_path: Path) -> None:
    """By the batch, as the workers told it."""
    evidence = found(record_of(tmp_path, [step(n) for n in range(20)]))
    assert (evidence.making["disk"], evidence.making["faults"]) == (900, 3)


def test_batches_a_step_are_counted_where_they_can_be(tmp_path: Path) -> None:
    """Of a record alone they follow from the batch's size; in a diagnosis the draws are counted."""
    record = record_of(tmp_path, [step(n) for n in range(20)])
    assert found(record).batches == 2
    window = ("began", {"t": 100.05}), ("observed", {"t": 101.95, "draws": 57})
    assert found(record, *window).batches == pytest.approx(3)


def test_compute_is_of_the_steps_with_held_batches(tmp_path: Path) -> None:
    """Those in which an epoch began are left out; their units are the record's."""
    held = [step(n, wait=0.0) for n in range(20, 30)]
    held[4] = step(24, wait=0.0, other=5.0, startup=0.5)
    record = record_of(tmp_path, [step(n) for n in range(20)] + held)
    window = ("began", {"t": 100.05}), ("observed", {"t": 101.95, "draws": 19})
    evidence = found(record, *window, ("replay", {"began": 101.95, "t": 102.95}))
    assert evidence.step == pytest.approx(0.1)
    assert evidence.compute == pytest.approx(0.07)
    assert evidence.lost == pytest.approx(0.3)
    assert evidence.missing == {"drain": "it was not held, or did not come to its end"}


def test_steps_beside_which_workers_still_fill_their_queue_are_no_measure_of_computing(
    tmp_path: Path,
) -> None:
    """As long as enough of the others are left; how much those vary is told as well."""
    held = [step(n, wait=0.0, other=0.51 if n < 24 else 0.01) for n in range(20, 60)]
    window = ("began", {"t": 100.05}), ("observed", {"t": 101.95, "draws": 19})
    replay = ("replay", {"began": 101.95, "t": 105.95})
    steps = [step(n) for n in range(20)] + held
    evidence = found(record_of(tmp_path / "a", steps, read=0.25), *window, replay)
    assert evidence.compute == pytest.approx(0.07)
    assert evidence.compute_spread == pytest.approx(0.0, abs=1e-9)
    slow = found(record_of(tmp_path / "b", steps, read=1.75), *window, replay)
    assert (slow.compute_spread or 0) > 0.1


def test_what_a_stall_does_to_the_steps_around_it_is_its_cost(tmp_path: Path) -> None:
    """A step with a checkpoint in it computes with cold caches, and so does the next."""
    steps = [step(n) for n in range(40)]
    for at in (5, 15, 25, 35):
        steps[at] = steps[at]._replace(other=0.41, forward=0.06)
        steps[at + 1] = steps[at + 1]._replace(forward=0.04)
    evidence = found(record_of(tmp_path, steps))
    lost = 4 * (0.4 + 0.04 + 0.02)
    assert evidence.stalls == pytest.approx(lost / (39 * 0.1 + lost))


def test_one_long_step_is_no_stall(tmp_path: Path) -> None:
    """A first checkpoint, a lazy import; three of them are."""
    once = [step(n, other=1.5 if n == 7 else 0.01) for n in range(40)]
    seldom = found(record_of(tmp_path / "a", once))
    assert seldom.stalls is None
    assert seldom.rare_stalls == pytest.approx(1.49 / (39 * 0.1 + 1.49))
    often = [step(n, other=0.4 if n % 10 == 5 else 0.01) for n in range(40)]
    evidence = found(record_of(tmp_path / "b", often))
    assert evidence.stalls == pytest.approx(4 * 0.39 / (39 * 0.1 + 4 * 0.39), rel=0.1)
    assert evidence.stall_every == 10
    assert evidence.rare_stalls == 0.0
    assert found(record_of(tmp_path / "c", once[:12])).rare_stalls is None


def test_a_busy_while_is_no_growth(tmp_path: Path) -> None:
    """What grows makes every part longer than the one before."""
    busy = [step(n, other=0.2 if n > 30 else 0.01) for n in range(40)]
    assert found(record_of(tmp_path / "a", busy)).growth == 1.0
    grows = [step(n, other=0.01 * n) for n in range(40)]
    evidence = found(record_of(tmp_path / "b", grows))
    assert evidence.growth is not None
    assert evidence.growth > 3
    assert 0 < (evidence.grown or 0) < 1 - 1 / evidence.growth


def test_how_much_more_goes_into_the_last_steps_is_told(tmp_path: Path) -> None:
    """By those that were looked at; a few of them tell nothing."""
    record = record_of(tmp_path, [step(n) for n in range(20)])
    window = {"t": 101.95, "draws": 19}
    looked = [100] * 5 + [200] * 10 + [300] * 5
    assert found(record, ("observed", {**window, "work": looked})).more_work == 3
    assert found(record, ("observed", {**window, "work": looked[:9]})).more_work is None
    assert found(record, ("observed", window)).more_work is None


def test_no_step_is_no_evidence(tmp_path: Path) -> None:
    """The first alone is no step like the others."""
    assert read(record_of(tmp_path, [step(0)]), (), {}, {}) is None


def test_what_is_measured_by_the_update_is_told_by_the_step(tmp_path: Path) -> None:
    """Of two optimizers, 39 updates make the 19 steps and a half that were observed."""
    record = record_of(tmp_path, [step(n) for n in range(20)])
    told = (
        ("began", {"t": 100.05}),
        ("observed", {"t": 101.95, "draws": 19, "updates": 39}),
        ("resized", {"samples": 8, "seconds": 0.05, "peak": 7}),
        ("variant", {"name": "bf16", "seconds": 0.03}),
        ("syncs", {"lines": [["train.py:3", 1.0]]}),
    )
    evidence = found(record, *told)
    assert evidence.resized[0][:3:2] == (8, 7)
    assert evidence.resized[0][1] == pytest.approx(0.1)
    assert dict(evidence.variants or {}) == pytest.approx({"bf16": 0.06})
    assert [one.each for one in evidence.syncs or ()] == [2.0]
    assert "updates" not in evidence.process
    alone = found(record, *told[:1], ("observed", {"t": 101.95, "updates": 20}), *told[2:])
    assert tuple(alone.resized[0]) == (8, 0.05, 7)
