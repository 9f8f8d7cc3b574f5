"""Causes judged by numbers alone: each by its evidence, and not by its look-alike's."""

from dataclasses import replace
from typing import Any

import pytest

from stoker.doctor.causes import ALL, loop_stall
from stoker.doctor.ceilings import OF_THE_LOADER
from stoker.doctor.evidence import Evidence, LoaderFacts
from stoker.doctor.finding import Found, RuledOut
from stoker.doctor.verdict import Verdict, reach

HOST = {"cpus": 8, "usable_cores": 8.0, "quota_cores": None, "cpuset_cores": 8}


def making(**more: Any) -> dict[str, Any]:
    """A batch of 32 that takes 40 ms: half reading, half transforms."""
    plain: dict[str, Any] = {
        "batches": 50, "read": 0.02, "transform": 0.02, "collate": 0.0, "queued": 0.0, "handoff": 0.0005,
        "pin": None, "cpu": 0.02, "bytes": 1e6, "disk": 0.0, "faults": 0.0, "calls": {"item": 32.0},
    }  # fmt: skip
    return {**plain, **more}


def waiting(**more: Any) -> Evidence:
    """A step of 40 ms of which 30 are waiting for 2 workers; the model alone takes 10."""
    plain = Evidence(
        step=0.04,
        shares={
            "wait": 0.75, "copy": 0.0, "forward": 0.1, "backward": 0.1, "update": 0.02, "other": 0.03,
        },
        steps=100,
        samples=32.0,
        compute=0.01,
        loader=0.02,
        drawn=LoaderFacts(name="DataLoader", workers=2, batch_size=32, epochs=1),
        making=making(),
        host=HOST,
        growth=1.0,
        stalls=0.0,
        process={"affinity": 8, "parameters": {"float32": 100}},
    )  # fmt: skip
    return replace(plain, **more)


def named(run: Evidence) -> tuple[str, list[str]]:
    verdict = reach(run)
    return verdict.cause, [one.cause for one in verdict.named[1:]]


CPU = making(read=0.001, transform=0.038, cpu=0.039)


GROWS: dict[str, Any] = {
    "shares": {"wait": 0.0, "other": 0.0}, "compute": 0.07, "growth": 3.0, "grown": 0.5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("run", "cause"),
    [
        (waiting(making=CPU, loader_with=(4, 0.0199)), "cpu-transform"),
        (waiting(making=CPU, loader_with=(4, 0.0105)), "too-few-workers"),
        (waiting(making=making(read=0.038, cpu=0.001), loader_with=(4, 0.0102)), "too-few-workers"),
        (
            waiting(making=making(read=0.038, cpu=0.001, disk=9e5), loader_with=(4, 0.0199)),
            "storage-latency",
        ),
        (waiting(making=making(calls={"item": 32.0, "query": 32.0})), "query-per-sample"),
        (waiting(making=making(calls={"item": 32.0, "open": 32.0, "reopen": 31.0})), "reopened-files"),
        (
            waiting(
                making=making(read=0.0, transform=0.0016, cpu=0.0016),
                drawn=LoaderFacts(name="DataLoader", workers=0, batch_size=32),
                loader=0.03,
            ),
            "per-sample-overhead",
        ),
        (
            waiting(
                making=CPU,
                drawn=LoaderFacts(name="DataLoader", workers=0, batch_size=32),
                shares={"wait": 0.45, "other": 0.0},
                step=0.02,
                loader=0.009,
                compute=0.011,
            ),
            "no-overlap",
        ),
        (
            waiting(making=making(read=0.001, transform=0.001, cpu=0.002, handoff=0.018), loader=0.02),
            "handoff",
        ),
        (
            waiting(
                making=making(read=0.001, transform=0.005, queued=0.03, cpu=0.006, handoff=0.018),
                loader=0.02,
                loader_with=(4, 0.024),
            ),
            "handoff",
        ),
        # Two tensors wait for workers that fetch the next rows one by one; or workers wait for the hand-over.
        (
            waiting(
                making=making(read=0.0, transform=0.0032, cpu=0.0032, handoff=0.002),
                loader=0.0025,
                step=0.0035,
                compute=0.0005,
            ),
            "per-sample-overhead",
        ),
        (
            waiting(
                making=making(read=0.0, transform=0.0032, cpu=0.0032, handoff=0.004),
                loader=0.0042,
                step=0.0045,
                compute=0.0005,
            ),
            "handoff",
        ),
        # One worker that is hardly idle: it has 20 tensors to hand over, which takes longer than making them.
        (
            waiting(
                making=making(read=0.0013, transform=0.0075, cpu=0.0073, handoff=0.0124),
                drawn=LoaderFacts(name="DataLoader", workers=1, batch_size=32),
                shares={"wait": 0.84, "other": 0.0},
                step=0.0143,
                loader=0.0121,
                compute=0.0007,
                loader_with=(2, 0.0087),
            ),
            "handoff",
        ),
        # N-grams in Python: 16 kB wait for workers whose interpreter is at work on the next batch; or the
        # same time goes into handing over itself.
        (
            waiting(
                making=making(read=0.0, transform=0.0109, queued=0.0027, cpu=0.0114, handoff=0.0059)
                | {"handoff_cpu": 0.0011},
                step=0.0089,
                loader=0.0093,
                compute=0.0011,
                loader_with=(4, 0.0093),
            ),
            "cpu-transform",
        ),
        (
            waiting(
                making=making(read=0.0, transform=0.0109, queued=0.0027, cpu=0.0114, handoff=0.0059)
                | {"handoff_cpu": 0.0055},
                step=0.0089,
                loader=0.0093,
                compute=0.0011,
                loader_with=(4, 0.0093),
            ),
            "handoff",
        ),
        # Spectra by one worker: another core is idle, and a second worker would nearly halve the time.
        (
            waiting(
                making=CPU,
                drawn=LoaderFacts(name="DataLoader", workers=1, batch_size=32),
                shares={"wait": 0.84, "other": 0.0},
                step=0.0153,
                loader=0.0149,
                compute=0.001,
                loader_with=(2, 0.0108),
            ),
            "too-few-workers",
        ),
        # Four workers are a little faster than two, which have filled the cores.
        (waiting(making=CPU, loader=0.038, loader_with=(4, 0.028), cores=7.6), "cpu-transform"),
        # Saves take half of the time, and are slow beside workers that fill the cores: without transforms a
        # step would take 10.7 ms, without saves the loader's 16.4.
        (
            waiting(
                making=CPU,
                shares={"wait": 0.25, "other": 0.55},
                step=0.0243,
                loader=0.0164,
                compute=0.0107,
                loader_with=(4, 0.0174),
                stalls=0.52,
                stall_every=5,
                cores=7.6,
            ),
            "cpu-transform",
        ),
        (
            waiting(startup=0.7, drawn=LoaderFacts(name="DataLoader", workers=2, batch_size=32, epochs=5)),
            "worker-startup",
        ),
        (
            waiting(shares={"wait": 0.0, "other": 0.6}, compute=0.04, stalls=0.55, stall_every=10),
            "loop-stall",
        ),
        # The last steps took 60 ms; with held batches, later, they are as short as ever.
        (waiting(**{**GROWS, "compute": 0.03}), "healthy"),
        # Three times as long, and the model is given as much as ever; or four times as much.
        (waiting(**GROWS, more_work=1.0), "growing-state"),
        (waiting(**GROWS, more_work=4.0), "healthy"),
        (waiting(**GROWS, more_work=2.0), "healthy"),  # by less than its square: attention does so too
        (waiting(**GROWS, more_work=1.4), "growing-state"),
        (waiting(shares={"wait": 0.0}, compute=0.04, process={"anomaly": True}), "debug-left-on"),
        (waiting(shares={"wait": 0.0}, compute=0.04, process={"tracer": True}), "debug-left-on"),
        (
            waiting(shares={"wait": 0.0}, compute=0.04, process={"parameters": {"float64": 9}}),
            "slow-precision",
        ),
        (
            waiting(making=CPU, host={**HOST, "quota_cores": 1.0, "usable_cores": 1.0}, throttled=0.8),
            "cpu-quota",
        ),
        (waiting(making=CPU, process={"affinity": 1}), "cpu-affinity"),
        (
            waiting(shares={"wait": 0.0, "forward": 0.4, "backward": 0.5}, compute=0.04, padding=0.5),
            "padding-waste",
        ),
        (waiting(shares={"wait": 0.0}, compute=0.04, recompiled=(9, 0.6)), "shape-recompute"),
        (waiting(shares={"wait": 0.01}, compute=0.0398), "healthy"),
        # A narrow mask, or a quota that is met now and then, of a run that needs no more.
        (waiting(shares={"wait": 0.01}, compute=0.0398, cores=1.1, process={"affinity": 4}), "healthy"),
        (
            waiting(
                shares={"wait": 0.01},
                compute=0.0398,
                cores=1.1,
                throttled=0.12,
                host={**HOST, "quota_cores": 4.0},
            ),
            "healthy",
        ),
        (waiting(shares={"wait": 0.01}, compute=0.0398, cores=7.8), "compute-bound"),
    ],
)
def test_each_cause_is_named_by_its_own_evidence(run: Evidence, cause: str) -> None:
    """First, before whatever else is true of the run."""
    assert named(run)[0] == cause


def test_a_loop_that_waits_for_an_unknown_reason_is_told_so() -> None:
    """Nothing was told of the batches: no cause may rest on what was not measured."""
    verdict = reach(waiting(making={}, loader=None, compute=None))
    assert (verdict.cause, verdict.share) == ("unknown", 0.75)
    assert "storage-latency" in verdict.untold
    assert "storage-latency" not in verdict.eliminated


def test_an_unknown_reason_comes_with_what_to_measure_next() -> None:
    """What could not be measured, and why; else what no experiment looks into."""
    short = waiting(making={}, loader=None, compute=None, missing={"drain": "the budget was used up"})
    assert reach(short).why[-1] == "to measure next: drain (the budget was used up)"
    assert "no DataLoader" in reach(waiting(making={}, loader=None, compute=None)).why[-1]
    spent = making(read=0.001, transform=0.001, cpu=0.0005, handoff=0.0005) | {"collate": 0.038}
    whole = reach(waiting(making=spent, loader_with=(4, 0.0199), reread=None))
    assert whole.cause == "unknown"
    assert "95% is collate" in whole.why[-1]


def test_a_run_whose_loaders_are_unknown_has_no_cause_ruled_out_by_them() -> None:
    """As of a record that ended by force before it was described."""
    verdict = reach(waiting(drawn=None, samples=None))
    for cause in ("worker-startup", "too-few-workers", "handoff", "no-overlap", "query-per-sample"):
        assert cause not in verdict.eliminated


def test_causes_within_computing_have_a_ceiling_above_what_computing_allows_now() -> None:
    """State that has grown, and padding, are part of a step with held batches too: half of 40 ms is saved."""
    padded = waiting(shares={"wait": 0.0, "forward": 0.5, "backward": 0.5}, compute=0.04, padding=0.5)
    grown = waiting(**{**GROWS, "compute": 0.04, "growth": 1.9})
    for run in (grown, padded):
        first = reach(run).named[0]
        assert first.ceiling_after == pytest.approx(50.0)


def test_two_causes_come_in_order_with_the_ceiling_after_each() -> None:
    """The cure of the first exposes the second, and none goes past what the model can do."""
    verdict = reach(waiting(making=CPU, loader_with=(4, 0.0199), stalls=0.15, stall_every=5))
    assert [one.cause for one in verdict.named][:2] == ["cpu-transform", "loop-stall"]
    assert verdict.named[0].ceiling_after == pytest.approx(100.0)
    known = {"compute": pytest.approx(100.0), "loader": pytest.approx(50.0)}
    assert verdict.ceilings == {**known, "copy": None}


def test_a_wait_that_held_batches_do_not_cure_is_not_the_loaders() -> None:
    """The loop stands in `next()`, and is as slow with batches that cost nothing."""
    assert waiting(compute=0.039).lost == pytest.approx(0.025)
    assert named(waiting(compute=0.039))[0] == "healthy"


def test_every_cause_has_an_id_of_its_own_and_a_cure() -> None:
    """And answers for a run of which hardly anything is known."""
    ids = [cause.ID for cause in ALL]
    assert len(set(ids)) == len(ids)
    bare = Evidence(step=0.01, shares={"wait": None})
    for cause in ALL:
        assert cause.CURES
        cause.judge(bare)
    assert isinstance(reach(bare), Verdict)


def test_the_json_has_what_others_rely_on() -> None:
    """Verdict, eliminations and ceilings, by the names of the design."""
    told = reach(waiting(making=CPU, loader_with=(4, 0.0199))).to_json()
    assert told["verdict"]["cause"] == "cpu-transform"
    assert 0 < told["verdict"]["share"] <= 1
    assert {"cause", "by"} == set(told["eliminated"][0])
    assert set(told["ceilings"]) == {"compute", "loader", "copy"}


def test_workers_that_fill_the_cores_cost_what_held_batches_save() -> None:
    """The loop computes slower beside them; not where cores are free, or starts and threads fill them.

    Who else uses the cores is of no matter to that.
    """
    shares = {"wait": 0.3, "other": 0.0}
    assert waiting(shares=shares, cores=7.6).lost == pytest.approx(0.75)
    assert waiting(shares=shares, cores=4.0).lost == pytest.approx(0.3)
    assert waiting(shares=shares, cores=4.0, foreign=3.9).lost == pytest.approx(0.75)
    assert waiting(shares=shares, cores=7.6, startup=0.15).lost == pytest.approx(0.15)
    assert waiting(shares=shares, cores=7.6, one_thread=0.02).lost == pytest.approx(0.3)
    assert waiting(shares={"wait": 0.05}, cores=7.6).lost == pytest.approx(0.05)


def test_a_stall_costs_no_more_than_the_loader_leaves() -> None:
    """Workers make batches meanwhile; a loop that waits for none, or makes its own, has lost all of it."""
    stalling = waiting(shares={"wait": 0.2, "other": 0.6}, compute=0.03, stalls=0.55, loader=0.03)
    alone = replace(stalling, drawn=LoaderFacts(name="DataLoader", workers=0, batch_size=32))
    runs = (stalling, replace(stalling, compute=0.04), alone)
    for run, share in zip(runs, (0.25, 0.55, 0.55), strict=True):
        judged = loop_stall.judge(run)
        assert isinstance(judged, Found)
        assert judged.share == pytest.approx(share)
    # It was told as a tenth of the step once, where leaving the stalls out saves a fortieth.
    little = loop_stall.judge(replace(stalling, loader=0.039))
    assert isinstance(little, RuledOut)
    assert "2.5% is saved" in little.by


def test_compiling_that_nothing_times_as_the_models_is_no_stall_of_the_loop() -> None:
    """A compiled step is compiled in what is else the loop's own; one in the forward leaves stalls alone."""
    shares = {"wait": 0.0, "forward": 0.0, "backward": 0.2, "update": 0.01, "other": 0.79}
    compiling = waiting(shares=shares, stalls=0.84, recompiled=(23, 0.77))
    judged = loop_stall.judge(compiling)
    assert isinstance(judged, RuledOut)
    assert "77% is compiling" in judged.by
    assert reach(compiling).cause == "shape-recompute"
    in_forward = replace(compiling, stalls=0.3, shares={**shares, "forward": 0.5, "other": 0.29})
    beside = loop_stall.judge(replace(in_forward, recompiled=(23, 0.4)))
    assert isinstance(beside, Found)
    assert beside.share == pytest.approx(0.3)


def test_padding_is_not_ruled_out_by_a_forward_that_was_not_seen() -> None:
    """The model is run by no module's call: what it takes lies in the rest, which is most of the step."""
    padded = waiting(shares={"wait": 0.0, "forward": 0.0, "other": 0.95}, compute=0.04, padding=0.6)
    assert "padding-waste" in reach(padded).untold
    for run in (
        replace(padded, padding=0.1),
        replace(padded, compute=0.002),  # all that the loop does is 5% of the step
        replace(padded, shares={"wait": 0.0, "forward": 0.1, "other": 0.9}),
    ):
        assert "padding-waste" in reach(run).eliminated


def test_float64_costs_no_more_than_the_model_takes() -> None:
    """Of a step that is mostly the loop's own work it can save little, and nothing that is worth an alarm."""
    double = {"parameters": {"float64": 9}}
    shares = {"wait": 0.0, "forward": 0.02, "backward": 0.02, "update": 0.01, "other": 0.95}
    small = waiting(shares=shares, compute=0.04, process=double)
    assert "5.0% of a step" in reach(small).eliminated["slow-precision"]
    some = replace(small, shares={**shares, "forward": 0.15, "backward": 0.15, "other": 0.69})
    verdict = reach(replace(some, stalls=0.6, stall_every=10))
    assert [one.cause for one in verdict.named] == ["loop-stall", "slow-precision"]
    assert verdict.named[1].certainty < 0.3
    assert "was not measured" in verdict.named[1].evidence[-1]


def test_float64_comes_first_where_computing_is_most_of_the_step() -> None:
    """Little waiting was measured beside it, and that is not what the loop should be cured of first."""
    shares = {"wait": 0.15, "forward": 0.4, "backward": 0.35, "update": 0.05, "other": 0.05}
    run = waiting(shares=shares, compute=0.034, process={"parameters": {"float64": 9}}, making=CPU)
    verdict = reach(replace(run, loader=0.04))
    assert verdict.cause == "slow-precision"
    assert len(verdict.named) > 1
    waits = replace(run, shares={**shares, "wait": 0.5, "forward": 0.15, "backward": 0.15}, compute=0.02)
    assert reach(replace(waits, loader=0.04)).named[-1].cause == "slow-precision"


def unseen(**more: Any) -> Evidence:
    """A loop that no loader feeds, as of reinforcement learning: whether it waits is not known."""
    shares = {"wait": None, "forward": 0.3, "backward": 0.3, "update": 0.1, "other": 0.3}
    return waiting(shares=shares, compute=None, loader=None, drawn=None, making={}, **more)


def test_waiting_that_was_not_measured_is_no_evidence() -> None:
    """It is told as such, never as 0%; what the cores do is less sure then, and that nothing is wrong."""
    for run, cause, most in ((unseen(cores=7.5), "compute-bound", 0.5), (unseen(cores=1.0), "healthy", 0.4)):
        verdict = reach(run)
        assert verdict.cause == cause
        assert verdict.certainty <= most
        assert verdict.why[0] == "no loader was seen: waiting for data was not measured"
        assert "0%" not in " ".join(verdict.why)


def test_a_mask_or_a_quota_is_not_ruled_out_by_waiting_that_was_not_measured() -> None:
    """Few of the cores that it may use are at work; whether something waits for them nobody saw."""
    masked = unseen(cores=1.1, process={"affinity": 4})
    held = unseen(cores=1.1, throttled=0.12, host={**HOST, "quota_cores": 4.0})
    for run, cause in ((masked, "cpu-affinity"), (held, "cpu-quota")):
        verdict = reach(run)
        assert cause in verdict.untold
        assert cause not in verdict.eliminated


def test_steps_that_grow_are_not_surely_a_state_that_does_while_the_work_is_unseen() -> None:
    """Longer and longer samples look the same: it is named, as possible, with what would tell the two apart.

    It was told as sure once, by the steps alone.
    """
    verdict = reach(waiting(**GROWS))
    assert verdict.cause == "growing-state"
    assert verdict.certainty <= 0.4
    assert "what goes into the model was not measured" in verdict.why[-1]
    assert "to measure next" in verdict.why[-1]
    assert reach(waiting(**GROWS, more_work=1.0)).certainty == pytest.approx(0.8)


def test_one_or_two_long_stalls_leave_the_cause_open() -> None:
    """A save of 3 s in 6: it may be one of many, or the only one of an hour. Shorter ones are no matter."""
    long = waiting(shares={"wait": 0.0, "other": 0.5}, step=0.02, typical=0.01, compute=0.01, stalls=None)
    verdict = reach(replace(long, rare_stalls=0.5, cores=7.8))
    assert (verdict.cause, verdict.share, verdict.certainty) == ("unknown", 0.5, 0.0)
    assert "more steps" in verdict.why[-1]
    assert "loop-stall" in verdict.untold
    for share in (0.05, 0.0, None):
        assert reach(replace(long, rare_stalls=share)).cause == "healthy"


def test_a_stall_that_is_gone_leaves_a_loop_no_faster_than_its_loader() -> None:
    """Batches come every 9 ms; but a loop that makes its own has lost no more than the stalls."""
    run = waiting(step=0.01, shares={"wait": 0.0}, compute=0.003, loader=0.009, stalls=0.6, stall_every=10)
    first = reach(run).named[0]
    assert first.cause == "loop-stall"
    assert first.ceiling_after == pytest.approx(1 / 0.009)
    # A loader that was slower in its drain than in the loop makes nothing slower than it is.
    assert reach(replace(run, loader=0.02)).named[0].ceiling_after == pytest.approx(100.0)
    alone = replace(run, drawn=LoaderFacts(name="DataLoader", workers=0, batch_size=32))
    assert reach(alone).named[0].ceiling_after == pytest.approx(1 / 0.004)


def test_a_loader_that_was_cured_before_bounds_no_cure_of_the_loop() -> None:
    """Without its transforms it is no longer what it was: the stalls then cost what they cost."""
    verdict = reach(waiting(making=CPU, loader_with=(4, 0.0199), stalls=0.15, stall_every=5))
    assert [one.cause for one in verdict.named][:2] == ["cpu-transform", "loop-stall"]
    assert verdict.named[1].ceiling_after == pytest.approx(100.0)


def test_causes_of_the_loader_are_causes() -> None:
    """By the ids that they have."""
    assert {cause.ID for cause in ALL} >= OF_THE_LOADER
