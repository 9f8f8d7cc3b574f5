"""What memory an option needs is that of its own changes, not of the run as it is."""

from dataclasses import replace

import pytest

from stoker.doctor.budget import draw_budget, vram_for
from stoker.doctor.device import Others
from stoker.doctor.evidence import Evidence, LoaderFacts
from stoker.doctor.finding import Cure
from stoker.doctor.needs import ram_need, vram_need
from stoker.doctor.plan import draw_up
from stoker.doctor.sizes import Sizes
from stoker.doctor.verdict import Named, reach

MB, GB = 10**6, 10**9
RUN = Evidence(
    step=0.02,
    shares={"wait": 0.0, "forward": 0.6, "backward": 0.4},
    steps=100,
    samples=8.0,
    compute=0.02,
    loader=0.001,
    drawn=LoaderFacts(name="L", workers=2, batch_size=8, prefetch=2, length=500),
    batch_bytes=100 * MB,
    sizes=Sizes(main=1 * GB, worker=300 * MB),
    host={"memory_free_bytes": 4 * GB, "usable_cores": 8.0},
    resized=((8, 0.02, 2 * GB), (16, 0.022, 3 * GB), (32, 0.025, 5 * GB)),
    others=Others(bytes=0, total=80 * GB, busy=0.0),
)


BUDGET = draw_budget(RUN)


def test_a_larger_batch_needs_more_of_the_card_and_of_the_host() -> None:
    """By the forecast for its size; its queues are as much larger as it is."""
    cure = Cure(change="batch_size", text="larger", kind="optimization")
    named = Named(
        cause="tiny-batch", share=0.4, certainty=0.9, evidence=(), ceiling_after=None, cures=(cure,)
    )
    option = draw_up(replace(reach(RUN), named=(named,)), RUN, BUDGET).options[2]
    assert [(step.change, step.value) for step in option.changes] == [("batch_size", 32)]
    told = vram_for(BUDGET.vram, 32)
    assert told is not None
    assert option.vram.need == told.high
    assert told.high > 2 * (BUDGET.vram.peak or 0)
    assert option.ram.need == 1 * GB + 2 * (300 * MB + 2 * 400 * MB)


def test_a_size_that_ran_needs_what_it_had_where_nothing_is_forecast() -> None:
    """And one that did not is not told."""
    without = replace(BUDGET, vram=replace(BUDGET.vram, forecast=None, context=MB))
    assert vram_need(RUN, without, {"batch_size": 16}) == 3 * GB + MB
    assert vram_need(RUN, without, {"batch_size": 24}) is None
    assert vram_need(RUN, without, {"num_workers": 4}) == BUDGET.vram.peak


def test_a_longer_queue_and_a_pinned_batch_need_more_of_the_host() -> None:
    """With the workers that go with them."""
    assert ram_need(RUN, BUDGET, {"prefetch_factor": 16}) == 1 * GB + 2 * (300 * MB + 16 * 100 * MB)
    both = {"prefetch_factor": 4, "num_workers": 3, "pin_memory": True}
    assert ram_need(RUN, BUDGET, both) == 1 * GB + 3 * (300 * MB + 4 * 100 * MB) + 100 * MB
    assert ram_need(RUN, BUDGET, {"num_workers": 3}) == 1 * GB + 3 * (300 * MB + 2 * 100 * MB)
    assert ram_need(replace(RUN, drawn=None), BUDGET, {}) == BUDGET.ram.need


@pytest.mark.parametrize(("change", "host"), [("feed", False), ("amp", True), ("compile", True)])
def test_what_was_not_measured_is_not_told(change: str, host: bool) -> None:
    """Not as the figure of the run as it is."""
    assert vram_need(RUN, BUDGET, {change: None}) is None
    assert ram_need(RUN, BUDGET, {change: None}) == (BUDGET.ram.need if host else None)
