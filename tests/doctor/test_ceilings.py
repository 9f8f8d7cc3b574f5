"""The rate after each cure: by what remains of making a batch, and by shares that are the loop's own."""

from dataclasses import replace
from typing import Any

import pytest

from stoker.doctor.ceilings import After
from stoker.doctor.evidence import Evidence, LoaderFacts
from stoker.doctor.experiments.passes import Pass, Reread
from stoker.doctor.finding import Found
from stoker.doctor.verdict import reach

ALONE = LoaderFacts(name="DataLoader", workers=0, batch_size=32)


def making(**more: Any) -> dict[str, Any]:
    """A batch of 32: 36 ms of reading from a disk, and 24 ms of transforms."""
    return {
        "batches": 50, "read": 0.036, "transform": 0.024, "collate": 0.0, "queued": 0.0, "handoff": 0.0005,
        "pin": None, "cpu": 0.024, "bytes": 1e6, "disk": 9e5, "faults": 0.0, "calls": {"item": 32.0}, **more,
    }  # fmt: skip


def both(**more: Any) -> Evidence:
    """Two workers that read and transform; the model takes 4 of the 30 ms."""
    plain = Evidence(
        step=0.03,
        shares={"wait": 0.87, "copy": 0.0, "forward": 0.05, "backward": 0.08, "update": 0.0, "other": 0.0},
        steps=100,
        samples=32.0,
        compute=0.004,
        loader=0.03,
        loader_with=(4, 0.0299),
        drawn=LoaderFacts(name="DataLoader", workers=2, batch_size=32, epochs=1),
        making=making(),
        host={"cpus": 8, "usable_cores": 8.0},
        growth=1.0,
        stalls=0.0,
        process={"affinity": 8, "parameters": {"float32": 100}},
    )
    return replace(plain, **more)


def test_transforms_are_what_is_left_once_reads_are_gone() -> None:
    """24 ms over two workers: 83 steps a second, where 250 had been told; transforms are the next cause."""
    verdict = reach(both())
    assert [one.cause for one in verdict.named] == ["storage-latency", "cpu-transform"]
    first, second = verdict.named
    assert first.ceiling_after == pytest.approx(1 / 0.012)
    assert first.share == pytest.approx(0.6)
    assert second.share == pytest.approx(0.4)
    assert second.ceiling_after == pytest.approx(250)


def test_transforms_behind_reads_are_no_cause_alone() -> None:
    """Where nothing says why reads are waited for, transforms do not stand in its place."""
    near = Pass(batches=8, seconds=0.06, cpu=0.04, asked=1e6, disk=0.0, faults=0.0)
    kept = Reread(again=near, warm=near, cold=replace(near, disk=9e5))
    verdict = reach(both(making=making(disk=0.0), reread=kept))
    assert (verdict.cause, verdict.named) == ("unknown", ())
    assert "cpu-transform" in verdict.untold
    keeps_up = both(compute=0.013, shares={**both().shares, "wait": 0.56})
    assert "cpu-transform" in reach(keeps_up).eliminated


def test_shares_of_the_loop_itself_are_added_up() -> None:
    """Stalls of 0.3 and padding of 0.25 leave 0.45 of a step of 40 ms, and not 0.7 of it."""
    run = both(
        step=0.04, shares={"wait": 0.0, "forward": 0.2, "backward": 0.3, "other": 0.5}, compute=0.04,
        loader=0.001, loader_with=None, stalls=0.3, stall_every=5, padding=0.5, making={},
    )  # fmt: skip
    first, second = reach(run).named
    assert {first.cause, second.cause} == {"loop-stall", "padding-waste"}
    assert first.share is not None
    assert first.ceiling_after == pytest.approx(1 / (0.04 * (1 - first.share)))
    assert second.ceiling_after == pytest.approx(1 / (0.04 * 0.45))


def test_a_stall_adds_to_what_the_loader_saves() -> None:
    """Reads gone leave 12 ms of 30; without stalls of 0.1 too the loader's 12 are still waited for."""
    after = After(both())
    reads = Found(share=0.6, certainty=0.9, evidence=(), frees={"read": 1.0})
    assert after.cure("storage-latency", reads) == pytest.approx(1 / 0.012)
    assert after.cure("loop-stall", Found(share=0.1, certainty=0.9, evidence=())) == pytest.approx(1 / 0.012)
    faster = Found(share=0.4, certainty=0.9, evidence=(), takes=0.5)
    assert after.cure("too-few-workers", faster) == pytest.approx(1 / 0.006)


def test_shares_that_overlap_leave_the_rest_unknown() -> None:
    """Two causes that cost 0.6 each were not cured together: nothing is told of that."""
    after = After(both(compute=None, loader=None))
    costly = Found(share=0.6, certainty=0.9, evidence=(), computes=True)
    assert after.cure("tiny-batch", costly) is not None
    assert after.cure("slow-precision", costly) is None
    assert after.cure("cpu-quota", Found(share=None, certainty=0.9, evidence=())) is None


def test_waiting_and_stalls_that_overlap_leave_what_held_batches_take() -> None:
    """Workers that fill the cores make stalls longer too: 0.75 and 0.6 of a step leave the model's 10 ms."""
    after = After(both(step=0.04, compute=0.01, loader=0.03))
    after.cure("cpu-transform", Found(share=0.75, certainty=0.8, evidence=(), frees={"making": 1.0}))
    assert after.cure("loop-stall", Found(share=0.6, certainty=0.9, evidence=())) == pytest.approx(100)


def test_a_loop_that_makes_its_own_batches_keeps_what_is_left_of_them_in_its_step() -> None:
    """Nothing overlaps: without reads a step is 24 ms of transforms and 4 of the model."""
    run = both(step=0.064, loader=0.06, drawn=ALONE, shares={**both().shares, "wait": 0.9375})
    after = After(replace(run, loader_with=None))
    reads = Found(share=0.5, certainty=0.9, evidence=(), frees={"read": 1.0})
    assert after.cure("storage-latency", reads) == pytest.approx(1 / 0.028)
    beside = Found(share=0.06, certainty=0.5, evidence=(), overlaps=True)
    assert after.cure("no-overlap", beside) == pytest.approx(1 / 0.024)


def test_overlap_saves_the_shorter_part_and_no_more() -> None:
    """A loader of 40 ms beside a model of 10: a worker saves 10 of the 50, two what was measured of them."""
    run = both(
        step=0.05, loader=0.04, compute=0.01, drawn=ALONE, loader_with=None, making={},
        shares={**both().shares, "wait": 0.8},
    )  # fmt: skip
    (found,) = reach(run).named
    assert found.cause == "no-overlap"
    assert found.share == pytest.approx(0.2)
    assert found.ceiling_after == pytest.approx(1 / 0.04)
    (tried,) = reach(replace(run, loader_with=(4, 0.015))).named
    assert tried.share == pytest.approx(0.7)
    assert tried.ceiling_after == pytest.approx(1 / 0.015)


def test_a_loop_that_mostly_makes_batches_still_hears_that_nothing_overlaps() -> None:
    """One worker saves 1 of 40 ms: that is its share, though all that is lost is what makes it a cause."""
    run = both(
        step=0.04, loader=0.039, compute=0.001, drawn=ALONE, loader_with=None, making={},
        shares={**both().shares, "wait": 0.97},
    )  # fmt: skip
    (found,) = reach(run).named
    assert found.cause == "no-overlap"
    assert found.share == pytest.approx(0.025)
    assert found.ceiling_after == pytest.approx(1 / 0.039)


def test_a_record_alone_tells_no_more_of_overlap_than_its_shorter_part() -> None:
    """Waiting is 0.7 of the step: beside each other they take as long as the waiting does now."""
    run = both(
        compute=None, loader=None, loader_with=None, drawn=ALONE, making={},
        shares={**both().shares, "wait": 0.7},
    )  # fmt: skip
    (found,) = reach(run).named
    assert found.cause == "no-overlap"
    assert found.share == pytest.approx(0.3)
    assert found.ceiling_after == pytest.approx(1 / (0.03 * 0.7))
