"""The memory budget: lines through measured peaks, workers that fit, and what was not measured."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.doctor.allocations import Allocations
from stoker.doctor.budget import Budget, Ram, Vram, draw_budget, most_workers, ram_with
from stoker.doctor.device import Allocator, Others, Overflow, SizePoint
from stoker.doctor.evidence import Evidence, LoaderFacts
from stoker.doctor.experiments.resize import more_sizes
from stoker.doctor.fits import Question, answer, parse
from stoker.doctor.peaks import fit
from stoker.doctor.sizes import Sizes, read_sizes, with_tried
from stoker.errors import UsageError

MB, GB = 10**6, 10**9


def seen(**more: Any) -> Evidence:
    """2 workers of 300 MB each, batches of 10 MB, 1 GB in the process that trains."""
    plain = Evidence(
        step=0.02,
        shares={},
        drawn=LoaderFacts(name="DataLoader", workers=2, batch_size=32, prefetch=2),
        batch_bytes=10 * MB,
        sizes=Sizes(main=1 * GB, worker=300 * MB),
        host={"memory_free_bytes": 4 * GB, "shm_free_bytes": 2 * GB},
    )
    return replace(plain, **more)


@given(
    fixed=st.integers(10**8, 10**10),
    each=st.integers(10**6, 10**9),
    noise=st.lists(st.floats(-0.01, 0.01), min_size=4, max_size=4),
)
def test_a_line_is_found_again_through_noise(fixed: int, each: int, noise: list[float]) -> None:
    """Sizes that were not tried come out within 3% where peaks have a noise of 1%."""
    sizes = (8, 16, 32, 64)
    points = [(n, round((fixed + each * n) * (1 + off))) for n, off in zip(sizes, noise, strict=True)]
    line = fit(points)
    assert line.fixed is not None
    assert line.per_sample is not None
    assert line.error is not None
    for untried in (12, 24, 48):
        assert line.fixed + line.per_sample * untried == pytest.approx(fixed + each * untried, rel=0.03)


def test_a_batch_of_one_is_no_point_of_the_line() -> None:
    """Other kernels and workspaces run there: 3.1 GB at 1 and 4.8 at 2 would make a wrong one."""
    peaks = [(n, 100 * MB + 50 * MB * n) for n in (2, 4, 8)]
    assert fit([(1, 3 * GB), *peaks]) == fit(peaks)
    line = fit([(1, 3 * GB), (2, 4 * GB)])
    assert (line.fixed, line.holds) == (None, False)
    assert line.asks == (4, 8)


def test_two_sizes_ask_for_a_third() -> None:
    """The line is there, but nobody has checked it."""
    line = fit([(8, 900 * MB), (32, 2100 * MB)])
    assert (line.fixed, line.per_sample) == (500 * MB, 50 * MB)
    assert line.holds is False
    assert 20 in line.asks


def test_a_line_that_misses_asks_for_more_sizes() -> None:
    """By more than 3% at a size that ran; a small size with a workspace of its own is left out first."""
    bent = fit([(4, 10 * GB), (8, 11 * GB), (16, 20 * GB), (32, 21 * GB)])
    assert not bent.holds
    assert bent.asks
    assert "more sizes" in (bent.why or "")
    upper = fit([(2, 9 * GB), (8, 5 * GB), (16, 9 * GB), (32, 17 * GB)])
    assert upper.holds
    assert (upper.fixed, upper.per_sample) == (1 * GB, GB // 2)


def test_the_card_is_budgeted_with_context_and_others() -> None:
    """Reserved bytes alone would promise what the context and other processes have."""
    points = tuple((n, 0.01, 1 * GB + 100 * MB * n) for n in (8, 16, 32))
    run = seen(
        resized=points,
        process={"context_bytes": 500 * MB},
        others=Others(total=24 * GB, bytes=4 * GB, busy=0.0),
    )
    card = draw_budget(run).vram
    assert (card.fixed, card.per_sample) == (1500 * MB, 100 * MB)
    assert card.peak == 4700 * MB
    assert (card.free, card.others) == (20 * GB, 4 * GB)
    assert card.largest == (20 * GB * 0.95 - 1500 * MB) // (100 * MB)


def test_without_a_card_nothing_is_said_of_one() -> None:
    """None and a reason, not 0."""
    card = draw_budget(seen(resized=((8, 0.01, None), (16, 0.02, None)))).vram
    assert (card.fixed, card.peak, card.largest) == (None, None, None)
    assert "no peak" in (card.why or "")


def test_the_host_is_budgeted_by_private_memory_and_queues() -> None:
    """Main + workers x (private + prefetch x batch); how many fit follows."""
    host = draw_budget(seen()).ram
    assert host.need == 1 * GB + 2 * (300 * MB + 20 * MB)
    assert (host.most_workers, host.limited_by) == (9, "memory")
    narrow = draw_budget(seen(host={"memory_free_bytes": 4 * GB, "shm_free_bytes": 64 * MB})).ram
    assert (narrow.most_workers, narrow.limited_by) == (3, "/dev/shm")


def test_memory_for_no_worker_at_all() -> None:
    """0 fit, and that is said; not a negative number."""
    host = draw_budget(seen(host={"memory_free_bytes": GB // 2})).ram
    assert host.most_workers == 0


def test_workers_that_were_not_sized_are_not_budgeted() -> None:
    """None, with the reason."""
    host = draw_budget(seen(sizes=Sizes(main=GB))).ram
    assert (host.need, host.most_workers) == (None, 100)
    assert host.limited_by == "/dev/shm"
    assert "private memory" in (host.why or "")
    assert draw_budget(seen(sizes=None)).ram.need is None
    assert most_workers(Ram()) == (None, None)
    assert ram_with(Ram(), 4) is None


def test_sizes_are_the_last_that_were_read() -> None:
    """They stand in some lines only."""
    lines = [
        {"rss_bytes": 5, "pss_bytes": 4, "processes": [{"pid": 7, "uss_bytes": 10}, {"pid": 8}]},
        {"rss_bytes": 6, "processes": [{"pid": 7, "uss_bytes": 30}, {"pid": 8, "uss_bytes": 50}]},
        {"rss_bytes": 6, "processes": [{"pid": 7}, {"pid": 8}]},
    ]
    assert read_sizes(lines) == Sizes(main=6, worker=40)
    assert read_sizes([]) is None


# --- questions ------------------------------------------------------------------------------------------

CARD = draw_budget(
    seen(
        resized=tuple((n, 0.01, 2 * GB + 100 * MB * n) for n in (8, 16, 48)),
        process={"context_bytes": 0},
        others=Others(total=20 * GB, bytes=0, busy=0.0),
    )
).vram


def test_whether_a_batch_fits_a_card_of_a_size() -> None:
    """With what it needs, and the largest that would."""
    budget = Budget(vram=CARD, ram=Ram())
    (told,) = answer(parse("batch=32,vram=8GB"), budget)
    assert (told.fits, told.need, told.most) == (True, 5200 * MB, 56)
    assert "needs 4.8 GiB (4.7 GiB to 4.9 GiB)" in told.text
    (told,) = answer(parse("batch=64,vram=8GB"), budget)
    assert told.fits is False
    (told,) = answer(parse("vram=8GB"), budget)
    assert (told.fits, told.most) == (None, 56)


def test_a_batch_is_judged_by_its_own_need() -> None:
    """It ran with less than those around it are told to need, or with more: by them it would be wrong."""
    forecast = CARD.forecast
    assert forecast is not None
    for peak, fits in ((7 * GB, True), (9 * GB, False)):
        for batch in (50, 60):
            ran = replace(forecast, ran=((batch, peak),), _told={})
            vram = replace(CARD, forecast=ran, ran=(batch,))
            (told,) = answer(parse(f"batch={batch},vram=8GB"), Budget(vram=vram, ram=Ram()))
            assert told.fits is fits
            assert told.most is not None
            assert ("do not grow evenly" in told.text) == (fits != (batch <= told.most))


def test_a_later_peak_than_that_of_the_first_steps_counts() -> None:
    """A longer sample came in the 20th step: the most that was seen is the peak, and ranges reach as far."""
    first = [
        Allocations(samples=n, events=(GB, 100 * MB * n), streams={}, peak=GB + 100 * MB * n)
        for n in (32, 16, 64)
    ]
    fresh = tuple(replace(run, peak=run.played) for run in first)
    later = fresh[0].peak * 5 // 4
    seen_later = seen(fresh=fresh, allocator=Allocator(retries=0, device_allocs=0.0, reserved_peak=later))
    card = draw_budget(seen_later).vram
    assert card.peak == later
    assert card.by_batch[32] == (fresh[0].peak, fresh[0].peak, later)
    assert card.by_batch[64].high == pytest.approx(fresh[2].peak * 1.25)
    same = draw_budget(
        replace(seen_later, allocator=Allocator(retries=0, device_allocs=0.0, reserved_peak=1))
    )
    assert same.vram.peak == fresh[0].peak


def test_how_many_workers_fit() -> None:
    """Into what is free, or into so much."""
    budget = draw_budget(seen())
    (told,) = answer(Question(workers=16), budget)
    assert (told.fits, told.most) == (False, 9)
    (told,) = answer(parse("workers=16,ram=64GiB"), budget)
    assert told.fits is True
    (told,) = answer(parse("ram=2GB"), budget)
    assert told.most == 3


def test_how_many_workers_fit_is_told_by_those_that_were_tried() -> None:
    """A loop without workers has none to size; a second run of it had four, and it is said whose they are."""
    drawn = LoaderFacts(name="DataLoader", workers=0, batch_size=32)
    alone = seen(drawn=drawn, sizes=with_tried(Sizes(main=1 * GB), (4, 300 * MB)))
    budget = draw_budget(alone)
    assert (budget.ram.need, budget.ram.most_workers, budget.ram.tried) == (1 * GB, 9, 4)
    (told,) = answer(Question(workers=16), budget)
    assert (told.fits, told.most) == (False, 9)
    assert "that of the 4 that were tried" in told.text
    untried = draw_budget(replace(alone, sizes=with_tried(Sizes(main=1 * GB), None)))
    assert answer(Question(workers=16), untried)[0].fits is None
    own = Sizes(main=1 * GB, worker=200 * MB)
    assert with_tried(own, (4, 300 * MB)) == own


def test_ranks_of_one_machine_share_what_it_has() -> None:
    """Each of four needs as much as the one that was judged: what is free is divided among them."""
    four = seen(ranks_here=4, host={"memory_free_bytes": 16 * GB, "shm_free_bytes": 8 * GB})
    ram = draw_budget(four).ram
    assert (ram.ranks, ram.free, ram.shm_free) == (4, 4 * GB, 2 * GB)
    assert ram.most_workers == draw_budget(seen()).ram.most_workers
    (told,) = answer(Question(workers=16), draw_budget(four))
    assert (told.fits, told.most) == (False, 9)
    assert "with 4 ranks in it" in told.text
    (told,) = answer(parse("ram=8GB"), draw_budget(four))
    assert told.most == 3


def test_a_question_about_what_was_not_measured_is_answered_so() -> None:
    """Not with a yes or a no."""
    (told,) = answer(parse("batch=32,vram=8GB"), Budget(vram=Vram(why="no peak was measured"), ram=Ram()))
    assert told.fits is None
    assert "cannot be told, no peak was measured" in told.text
    assert answer(parse("workers=2"), Budget(vram=CARD, ram=Ram()))[0].fits is None


@pytest.mark.parametrize(
    "text", ["batch", "batch=", "batch=-1", "batch=0", "batch=x", "gpu=8", "", "vram=8QB"]
)
def test_a_question_that_cannot_be_read_is_named(text: str) -> None:
    """With an example of one that can."""
    with pytest.raises(UsageError, match=r"--fits .*batch=32,vram=8GB"):
        parse(text)


def test_a_size_given_twice_is_refused() -> None:
    """The second would win in silence."""
    with pytest.raises(UsageError, match="twice"):
        parse("batch=1,batch=2")


# Of a shallow network on an H200: segments of the allocator are a good part of such small peaks.
SMALL = [(64, 301989888), (32, 184549376), (16, 127926272), (128, 499122176)]


def test_more_sizes_are_run_where_the_line_does_not_hold_and_they_surely_fit() -> None:
    """One in the widest gap and one above; none where it holds, none that may be too large for the card."""
    assert more_sizes(SMALL, 140 << 30) == (96, 256)
    assert more_sizes(SMALL, 1 << 30) == (96,)
    assert more_sizes([(8, 100 << 20), (16, 180 << 20), (32, 340 << 20)], 140 << 30) == ()
    assert more_sizes([(1, 113246208), (2, 220200960), (4, 419430400)], 140 << 30) == (3, 8)


def test_a_script_that_may_use_a_part_of_the_card_has_no_more_than_that() -> None:
    """It died at 16 where 18 GB were allowed: the largest that fits is not counted by the whole card."""
    gb = 10**9
    sizes = tuple(SizePoint(samples, 0.1, gb // 10 + samples * 19 * gb // 10) for samples in (4, 2, 8))
    died = Overflow(asked=gb, reserved=17 * gb, allowed=18 * gb, text="CUDA out of memory.", samples=16)
    others = Others(total=150 * gb, bytes=0, busy=0.0)
    run = Evidence(step=inf, shares={}, others=others, overflow=died, resized=sizes)
    vram = draw_budget(run).vram
    assert vram.free == 18 * gb
    assert vram.largest == 8


def test_a_loop_without_a_loader_still_has_its_own_peak_beside_the_card() -> None:
    """By the allocator's counters: what the script takes and what is left, if not how it grows."""
    others = Others(total=140 << 30, bytes=3 << 20, busy=0.0)
    allocator = Allocator(retries=0, device_allocs=0.0, reserved_peak=1 << 30)
    process = {"on_gpu": True, "context_bytes": 600 << 20}
    vram = draw_budget(
        Evidence(step=0.01, shares={}, others=others, allocator=allocator, process=process)
    ).vram
    assert vram.peak == (1 << 30) + (600 << 20)
    assert vram.free == (140 << 30) - (3 << 20)
    assert vram.largest is None
    assert vram.why == "no batch of another size was run"
