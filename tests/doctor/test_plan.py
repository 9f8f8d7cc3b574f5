"""The plan: three options by what may change, impossible ones told, and nothing for a healthy run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stoker.doctor.advice import consequences_of
from stoker.doctor.budget import Budget, Ram, Vram, draw_budget
from stoker.doctor.evidence import Evidence, LoaderFacts
from stoker.doctor.finding import Cure
from stoker.doctor.model import workers_worth_trying
from stoker.doctor.other_workers import try_workers
from stoker.doctor.parts import Parts
from stoker.doctor.plan import KINDS, Plan, draw_up
from stoker.doctor.plan_words import show_budget, show_plan
from stoker.doctor.sizes import Sizes, with_tried
from stoker.doctor.verdict import reach
from stoker.scratch import Message, Result
from stoker.watch.record import LineWriter, Writer

ROOMY = Budget(vram=Vram(), ram=Ram())


def slow(**more: Any) -> Evidence:
    """A step of 40 ms of which 30 are waiting for 2 workers that read; the model alone takes 10."""
    plain = Evidence(
        step=0.04,
        shares={"wait": 0.75, "copy": 0.0, "forward": 0.1, "backward": 0.1, "update": 0.02, "other": 0.03},
        steps=100,
        samples=32.0,
        compute=0.01,
        loader=0.04,
        loader_with=(4, 0.02),
        drawn=LoaderFacts(name="DataLoader", workers=2, batch_size=32, epochs=1, prefetch=2, length=500),
        making={
            "batches": 50, "read": 0.076, "transform": 0.002, "collate": 0.002, "queued": 0.0,
            "handoff": 0.0005, "pin": None, "cpu": 0.004, "bytes": 1e6, "disk": 0.0, "faults": 0.0,
            "calls": {"item": 32.0},
        },
        host={"cpus": 8, "usable_cores": 8.0, "quota_cores": None, "cpuset_cores": 8},
        growth=1.0,
        stalls=0.0,
        process={"affinity": 8, "parameters": {"float32": 100}},
    )  # fmt: skip
    return replace(plain, **more)


def plan_for(run: Evidence, budget: Budget = ROOMY, **more: Any) -> Plan:
    return draw_up(reach(run), run, budget, **more)


def test_every_option_has_what_the_design_names() -> None:
    """Changes with lines that apply them, a rate with its interval, times, memory, kind and risk."""
    told = plan_for(slow(), steps=10_000).to_json()
    assert [option["name"] for option in told["options"]] == ["conservative", "moderate", "aggressive"]
    first = told["options"][0]
    assert first["changes"][0]["change"] == "num_workers"
    assert first["changes"][0]["value"] == 4
    assert first["changes"][0]["apply"] == ["DataLoader(..., num_workers=4)"]
    assert first["predicted"]["mid"] == pytest.approx(50)
    assert first["predicted"]["low"] < 50 < first["predicted"]["high"]
    assert first["epoch"]["mid"] == pytest.approx(10)
    assert first["total"]["mid"] == pytest.approx(200)
    assert told["epoch"] == pytest.approx(20)
    assert first["kind"] == "same"
    assert set(first["ram"]) == set(first["vram"]) == {"need", "free", "fits"}
    assert first["risk"]


def test_options_allow_more_and_more() -> None:
    """The first only what leaves the maths alone; only the last what changes the optimization."""
    run = slow(shares={"wait": 0.0, "forward": 0.4, "backward": 0.5}, compute=0.04, loader=0.01, padding=0.5)
    options = {option.name: option for option in plan_for(run).options}
    assert options["conservative"].changes == ()
    assert [step.change for step in options["aggressive"].changes] == ["bucket"]
    assert "learning rate" in options["aggressive"].changes[0].consequences
    for option in options.values():
        assert all(KINDS.index(step.kind) <= KINDS.index(option.kind) for step in option.changes)


def test_options_that_are_alike_are_said_to_be() -> None:
    """Where nothing else is to be had at a greater risk."""
    run = slow(shares={"wait": 0.0, "other": 0.6}, compute=0.04, loader=0.01, stalls=0.55, stall_every=10)
    first, second, third = plan_for(run).options
    assert first.alike is None
    assert (second.alike, third.alike) == ("conservative", "conservative")


def test_a_healthy_run_has_nothing_worth_changing() -> None:
    """No options, and it is said."""
    plan = plan_for(slow(shares={"wait": 0.01}, compute=0.0398, loader=0.02))
    assert (plan.options, plan.summary) == ((), "nothing is worth changing")


def test_no_worker_is_proposed_that_memory_has_no_room_for() -> None:
    """With room for some, so many; with room for none, another way or nothing."""
    one_more = Budget(vram=Vram(), ram=Ram(most_workers=3, limited_by="memory"))
    (step,) = plan_for(slow(), one_more).options[0].changes
    assert (step.change, step.value) == ("num_workers", 3)
    none_more = Budget(vram=Vram(), ram=Ram(most_workers=2, limited_by="/dev/shm"))
    plan = plan_for(slow(), none_more)
    assert all(step.change != "num_workers" for option in plan.options for step in option.changes)
    assert any("/dev/shm has room for 2" in note for note in plan.notes)


def test_a_loop_without_workers_is_proposed_no_more_than_memory_has_room_for(tmp_path: Path) -> None:
    """A worker's memory is read in the run with others: it has room for one of the four that were tried."""
    drawn = LoaderFacts(name="DataLoader", workers=0, batch_size=32, epochs=1, length=500)
    alone = slow(drawn=drawn, loader=0.03, loader_with=None, sizes=Sizes(main=10**9), batch_bytes=10**7)
    lines = [
        {
            "t": 1.0,
            "rss_bytes": 10**9,
            "processes": [{"pid": pid, "uss_bytes": 5 * 10**8} for pid in range(3)],
        }
    ]

    def hold(name: str, _: Parts, __: float) -> Result:
        writer = Writer(tmp_path / name, rank=0)
        writer.describe_run({"id": name})
        writer.describe_rank({"rank": 0})
        written = LineWriter(writer.rank_folder)
        for line in lines:
            written.add("resources", json.dumps(line))
        written.close()
        drained = Message(kind="drain", body={"batches": 50, "seconds": 0.5}, at=1.0)
        return Result(outcome="done", reason="", seconds=2.0, messages=(drained,))

    more = try_workers(hold, tmp_path, "it", alone, 60.0, lambda _: None)
    assert more["worker_with"] == (3, 5 * 10**8)
    run = replace(
        alone,
        loader_with=more["loader_with"],
        sizes=with_tried(alone.sizes, more["worker_with"]),
        host={**alone.host, "memory_free_bytes": 16 * 10**8},
    )
    (step, *_) = plan_for(run, draw_budget(run)).options[0].changes
    assert (step.change, step.value) == ("num_workers", 1)


def stream(workers: int, **more: Any) -> Evidence:
    """A loop that waits for an IterableDataset."""
    drawn = LoaderFacts(
        name="DataLoader", workers=workers, batch_size=32, epochs=1, prefetch=2, iterable=True
    )
    return slow(drawn=drawn, loader_with=None, making={}, **more)


def test_a_stream_gets_a_worker_and_no_second_one() -> None:
    """Each would read all of it, unless its author shares it out; in place of none, one reads the same."""
    alone = stream(0, loader=0.03)
    plain = LoaderFacts(name="DataLoader", workers=0, batch_size=32)
    assert workers_worth_trying(slow(drawn=plain, loader=0.03)) == 3
    assert workers_worth_trying(alone) == 1
    step = plan_for(alone).options[0].changes[0]
    assert (step.change, step.value) == ("num_workers", 1)
    assert "num_workers=1:" in reach(alone).named[0].cures[0].text
    assert workers_worth_trying(stream(2)) is None


def test_more_or_fewer_workers_are_not_proposed_for_a_stream() -> None:
    """Also where others were tried, or memory is short; and it is said why."""
    run = replace(stream(2), loader_with=(4, 0.01))
    plain = reach(run)
    assert plain.named[0].cause == "too-few-workers"
    pressed = replace(plain, named=(replace(plain.named[0], cause="ram-pressure", share=None),))
    for verdict in (plain, pressed):
        plan = draw_up(verdict, run, ROOMY)
        proposed = [step.change for option in plan.options for step in option.changes]
        assert "num_workers" not in proposed, plan
        assert any(note.startswith("num_workers: ") and "IterableDataset" in note for note in plan.notes), (
            plan
        )


def test_it_is_said_that_a_stream_was_not_tried_with_other_workers(tmp_path: Path) -> None:
    """As something that was not measured, with the reason; nothing is run."""
    found = try_workers(lambda *_: pytest.fail("it was run"), tmp_path, "a", stream(2), 60.0, print)
    assert "IterableDataset" in found["missing"]["workers"]
    healthy = stream(2, shares={"wait": 0.0}, compute=0.04)
    assert try_workers(lambda *_: pytest.fail("it was run"), tmp_path, "a", healthy, 60.0, print) == {}


def test_memory_pressure_is_cured_by_fewer_workers() -> None:
    """Not by more of them, whatever a drain has shown."""
    cures = reach(slow()).named[0]
    memory = replace(reach(slow()), named=(replace(cures, cause="ram-pressure", share=None),))
    fits_one = Budget(vram=Vram(), ram=Ram(most_workers=1, limited_by="memory"))
    assert draw_up(memory, slow(), fits_one).options[0].changes[0].value == 1
    assert draw_up(memory, slow(), ROOMY).options[0].changes[0].value == 1


def test_a_larger_batch_is_one_that_ran_and_fits_and_is_fastest() -> None:
    """With what it means for the learning rate."""
    cure = Cure(change="batch_size", text="a larger batch", kind="optimization")
    gpu = slow(
        step=0.02, compute=0.02, loader=0.001, loader_with=None,
        resized=((32, 0.02, 10**9), (64, 0.022, 2 * 10**9), (128, 0.06, 4 * 10**9)),
    )  # fmt: skip
    named = replace(reach(slow()).named[0], cause="tiny-batch", share=0.4, cures=(cure,))
    verdict = replace(reach(gpu), named=(named,), rate=50.0)
    (step,) = draw_up(verdict, gpu, ROOMY).options[2].changes
    assert step.value == 64
    assert step.predicted is not None
    assert step.predicted.mid == pytest.approx(2 / 0.022)
    assert "2 times the batch (32 to 64)" in step.consequences
    assert "500 steps an epoch become 250" in step.consequences
    assert "2 times the learning rate for SGD" in step.consequences
    assert "1.41 times for Adam" in step.consequences
    small = Budget(vram=Vram(free=15 * 10**8), ram=Ram())
    assert draw_up(verdict, gpu, small).options == ()


def test_a_batch_over_the_card_is_accumulated_in_as_many_parts_as_fit() -> None:
    """By the largest that fits for sure; without it the way is told and no number."""
    cure = Cure(change="accumulate", text="a smaller batch", kind="optimization")
    named = replace(reach(slow()).named[0], cause="vram-overflow", share=None, cures=(cure,))
    verdict = replace(reach(slow()), named=(named,))
    card = Budget(vram=Vram(largest=12), ram=Ram())
    (step,) = draw_up(verdict, slow(), card).options[2].changes
    assert step.value == 3
    assert step.apply == ("(loss / 3).backward()  # of 3 micro-batches, then one optimizer.step()",)
    assert "3 micro-batches of 11 samples" in step.consequences
    for roomy in (Budget(vram=Vram(largest=64), ram=Ram()), ROOMY):
        (plain,) = draw_up(verdict, slow(), roomy).options[2].changes
        assert plain.value is None
        assert plain.apply == ("a smaller batch",)
        assert "k micro-batches" in plain.consequences


def test_a_batch_whose_steps_an_epoch_are_not_known_has_its_factor_alone() -> None:
    """As of a loader without a length; and what was not proposed with a size keeps the general words."""
    told = consequences_of("batch_size", 96, batch=32)
    assert "3 times the batch (32 to 96), and 3 times fewer steps an epoch" in told
    assert "1.73 times for Adam" in told
    assert consequences_of("batch_size", None, batch=32).startswith("k times the batch")
    assert consequences_of("rarer", None) == ""


def test_what_gains_nothing_is_not_proposed() -> None:
    """A stall hides a loader that is as slow: without the stall the loop waits for that."""
    run = slow(shares={"wait": 0.0, "other": 0.6}, compute=0.04, loader=0.0398, stalls=0.55, stall_every=10)
    plan = plan_for(run)
    assert plan.options == ()
    assert "no change" in plan.summary
    assert any("loader" in note for note in plan.notes)


def kept(**more: Any) -> Evidence:
    """Batches of 1 MB, 500 of them an epoch, from a store that more workers do not make faster."""
    host = {**slow().host, "memory_free_bytes": 4 * 10**9}
    far = {**slow().making, "disk": 9e5}
    return slow(batch_bytes=10**6, loader_with=(4, 0.0399), host=host, making=far, **more)


def test_kept_samples_are_a_setting_with_the_memory_that_they_take() -> None:
    """On top of what the loop needs now; told as the lines of a settings file, which keep its order."""
    ram = Ram(count=2, main=10**9, each_worker=10**8, each_queue=10**6, free=4 * 10**9)
    (step,) = (option := plan_for(kept(), Budget(vram=Vram(), ram=ram)).options[0]).changes
    assert (step.change, step.value, step.kind) == ("feed", "ram", "same")
    assert 'feed = "ram"' in step.apply
    assert option.ram.need == 10**9 + 2 * (10**8 + 10**6) + 500 * 10**6
    assert option.ram.fits


def test_a_set_that_memory_cannot_keep_leaves_the_other_cures() -> None:
    """Too large, or drawn anew at every read: the local copy is then proposed, and it is said why."""
    large, random = kept(dataset=10**6), kept(unkept="reading a sample draws from torch's random generator")
    for run, why in ((large, "does not fit"), (random, "draws from torch's")):
        plan = plan_for(run)
        told = {(step.change, step.value): step for option in plan.options for step in option.changes}
        assert ("feed", "ram") not in told
        assert told[("stage", None)].predicted is not None
        assert any(note.startswith("feed=ram: ") and why in note for note in plan.notes), plan.notes


def test_a_cure_without_a_rate_says_why() -> None:
    """Nobody tried it: it stands in the plan without a figure, and its reason among the notes."""
    plan = plan_for(kept())
    assert any(note.startswith("feed=disk: no rate is predicted") for note in plan.notes)


def test_a_busy_machine_is_told_of() -> None:
    """What others used is in the rates too."""
    assert any("1.3 cores" in note for note in plan_for(slow(foreign=1.3)).notes)
    assert plan_for(slow(foreign=0.1)).notes == plan_for(slow()).notes


def test_a_run_that_died_is_planned_for_without_rates() -> None:
    """It never made a step: nothing is predicted, and nothing is infinite in it."""
    run = Evidence(step=float("inf"), shares={})
    plan = draw_up(reach(run), run, ROOMY, steps=100)
    assert (plan.epoch, plan.total) == (None, None)


def test_a_plan_reads_well_in_a_terminal() -> None:
    """Options with their rates, lines to write, warnings; nothing of what was not measured but n/a."""
    console = Console(width=110, record=True, file=None, quiet=False, force_terminal=False)
    ram = Ram(count=2, main=10**9, each_worker=3 * 10**8, each_queue=10**7, need=1_620_000_000, free=10**10,
              most_workers=29, limited_by="memory")  # fmt: skip
    with console.capture() as caught:
        show_plan(plan_for(slow()), console)
        show_budget(Budget(vram=Vram(), ram=ram), console)
    text = caught.get()
    assert "DataLoader(..., num_workers=4)" in text
    assert "now 25.0 steps/s" in text
    assert "room for 29 workers (memory)" in text
    assert "None" not in text
