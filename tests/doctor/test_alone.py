"""The cards before the script starts, by a fake driver; and what is told of a GPU, from messages by hand."""

import os
from typing import Any

import pytest

from stoker.doctor.causes import throttled_clocks
from stoker.doctor.device import Card, Others, SizePoint
from stoker.doctor.device_evidence import context_bytes, missing_of, read_device
from stoker.doctor.evidence import Evidence
from stoker.doctor.experiments.alone import look
from stoker.doctor.finding import Found
from stoker.facts import Sampler
from stoker.scratch import Message
from stoker.ward.fake_gpu import FakeGpus, Occupant, card

GIB = 1 << 30


def told(kind: str, **body: Any) -> Message:
    return Message(kind=kind, body=body, at=0.0)


def test_an_empty_card_is_not_asked_how_busy_it_is() -> None:
    """Nobody holds anything there: it is idle, and no time is spent on it."""
    waited: list[float] = []
    (found,) = look(source=FakeGpus(card()), pause=waited.append)
    assert found.others.bytes == 0
    assert found.others.busy == 0.0
    assert waited == []


def test_a_busy_tenant_is_seen_by_the_cards_own_utilisation() -> None:
    """Its bytes and its time, whether or not the driver names it."""
    hidden = FakeGpus(card(used_bytes=20 * GIB, utilisation_percent=97), occupants=None)
    (found,) = look(source=hidden, pause=lambda _: None)
    assert (found.others.bytes, found.others.busy) == (20 * GIB, 0.97)
    assert found.others.holders is None
    assert found.others.reason


def test_a_process_that_has_just_ended_is_nobody() -> None:
    """Its memory and its time are there for a moment longer; the last readings count."""

    class Emptying(FakeGpus):
        asked = 0

        def sample(self, index: int, *, bus: bool) -> dict[str, object]:
            self.asked += 1
            gone = self.asked > 2
            return {"used_bytes": 0 if gone else 20 * GIB, "utilisation_percent": 0 if gone else 90}

    (found,) = look(source=Emptying(card(used_bytes=20 * GIB), occupants=None), pause=lambda _: None)
    assert (found.others.bytes, found.others.busy) == (0, 0.0)


def test_a_card_that_does_not_answer_is_unknown() -> None:
    """None is not idle."""
    silent = FakeGpus(card(used_bytes=None, total_bytes=None, utilisation_percent=None), occupants=None)
    (found,) = look(source=silent, pause=lambda _: None)
    assert found.others.bytes is None
    assert found.others.busy is None


def test_holders_are_named_but_for_ourselves() -> None:
    """This process' own family is nobody else."""
    ours = FakeGpus(card(used_bytes=GIB), occupants=[Occupant(pid=os.getpid(), bytes=GIB)])
    (found,) = look(source=ours, pause=lambda _: None)
    assert found.others.holders == ()


HERE = Card(
    index=1, uuid="GPU-b", others=Others(total=80 * GIB, bytes=2 * GIB, busy=0.0), clock_mhz=1980,
    power_limit_w=700.0, power_default_w=700.0,
)  # fmt: skip
ELSEWHERE = Card(
    index=0, uuid="GPU-a", others=Others(total=80 * GIB, bytes=70 * GIB, busy=1.0), clock_mhz=1000
)


def line(**gpu: Any) -> dict[str, Any]:
    """A line of the counters with the script's card at work."""
    busy = {"utilisation_percent": 90, "sm_clock_mhz": 1500, "clock_reasons": ["sw_thermal"], **gpu}
    return {"gpus": [{"index": 0, "sm_clock_mhz": 300, "clock_reasons": []}, {"index": 1, **busy}]}


def test_the_card_is_the_scripts_own_one_of_several() -> None:
    """By its uuid, however the driver and CUDA number them; its clock is that of its own readings."""
    about = told("device", uuid="b", name="x", used=9 * GIB, reserved=6 * GIB)
    lines = [line(), line(sm_clock_mhz=1300), line(utilisation_percent=0, sm_clock_mhz=200)]
    found = read_device([about], lines, [ELSEWHERE, HERE], steps=10)
    assert found["others"] == HERE.others
    assert found["clocks"].mhz == 1400
    assert found["clocks"].held == (("sw_thermal", 1.0),)
    assert context_bytes([about], found["others"]) == GIB
    assert context_bytes([], found["others"]) is None


def test_a_clock_held_down_is_read_as_the_sampler_writes_it() -> None:
    """From the sampler's own lines, beside a fake driver, to the cause."""
    hot = card(utilisation_percent=99, sm_clock_mhz=1100, clock_reasons=("sw_thermal",))
    lines = [dict(Sampler(gpu=FakeGpus(hot)).read()) for _ in range(3)]
    (here,) = look(source=FakeGpus(hot), pause=lambda _: None)
    about = told("device", uuid=hot.uuid, used=0, reserved=0)
    clocks = read_device([about], lines, [here], steps=10)["clocks"]
    run = Evidence(step=0.01, shares={"wait": 0.0}, clocks=clocks, process={"on_gpu": True})
    found = throttled_clocks.judge(run)
    assert isinstance(found, Found)
    assert found.share == pytest.approx(1 - 1100 / 1980)


def test_allocations_are_counted_over_the_observed_steps() -> None:
    """From the first reading to the last."""
    counted = [
        {"allocator": {"retries": 2, "device_allocs": 100, "reserved_peak": GIB}},
        {"allocator": {"retries": 3, "device_allocs": 150, "reserved_peak": 2 * GIB}},
    ]
    about = told("device", uuid="b", empty_cache=1.0, empty_cache_line="t.py:3", used=0, reserved=0)
    found = read_device([about], counted, [HERE], steps=25)["allocator"]
    assert (found.retries, found.device_allocs, found.empty_cache) == (1, 2.0, 1.0)
    assert read_device([about], counted[:1], [HERE], steps=25)["allocator"] is None
    # A loop of two updates a step: calls are told by the update.
    twice = read_device([about], counted, [HERE], steps=25, updates=50)["allocator"]
    assert (twice.device_allocs, twice.empty_cache) == (2.0, 2.0)


def test_points_variants_and_lines_are_read_in_their_order() -> None:
    """Several messages of a kind are all told of; what could not be held has its reason."""
    messages = [
        told("resized", samples=8, seconds=0.1, peak=GIB),
        told("resized", samples=4, seconds=0.06, peak=None),
        told("unresized", why="OutOfMemoryError: no"),
        told("variant", name="as it is", seconds=0.1, steps=16),
        told("variant", name="bf16", seconds=0.05, steps=16),
        told("syncs", lines=[["t.py:4", 2.0]]),
    ]
    found = read_device(messages, [], [], steps=0)
    assert found["resized"] == (SizePoint(8, 0.1, GIB), SizePoint(4, 0.06, None))
    assert found["variants"] == {"as it is": 0.1, "bf16": 0.05}
    assert found["syncs"][0].line == "t.py:4"
    assert missing_of(messages) == {"resize": "OutOfMemoryError: no"}


def test_an_overflow_knows_the_batch_of_its_loader() -> None:
    """So that a smaller one can be run."""
    died = told(
        "overflow", asked=GIB, reserved=2 * GIB, allowed=3 * GIB, text="CUDA out of memory.", uuid="b",
        name="x", loaders=[{"batch_size": None}, {"batch_size": 16, "num_workers": 4}],
    )  # fmt: skip
    found = read_device([died], [], [HERE], steps=0)
    assert (found["overflow"].samples, found["overflow"].workers) == (16, 4)
    assert found["overflow"].own == 3 * GIB
    assert found["others"] == HERE.others


def test_without_a_gpu_nothing_is_told_of_one() -> None:
    """Every field is None, or empty."""
    found = read_device([told("observed", t=0.0)], [{"t": 0.0, "gpus": []}], [], steps=10)
    assert not any(found.values())
