"""Shares, rates and the ETA."""

import pytest

from stoker.watch import Step
from stoker.watch.phases import Batch
from stoker.watch.tally import Making, Tally
from stoker.watch.words import duration, figure, percent, rate


def tally_of(seconds: list[float], *, gap: float = 0.0, wait: float | None = 0.5) -> Tally:
    """A tally over steps of these lengths, `gap` seconds of stall before the last."""
    tally = Tally()
    now = 100.0
    for number, length in enumerate(seconds):
        stall = gap if number == len(seconds) - 1 else 0.0
        now += length + stall
        tally.add(
            Step(
                step=number, t=now, samples=8, loader=0, copy=0.0,
                wait=None if wait is None else length * wait,
                forward=length * (1 - (wait or 0)), backward=0.0, update=0.0, other=stall,
            )
        )  # fmt: skip
    return tally


def test_the_first_step_is_kept_apart() -> None:
    """Compiling and worker start-up in the first step do not colour the shares or the rate."""
    tally = tally_of([50.0, 1.0, 1.0])
    assert tally.shares()["wait"] == 0.5
    assert tally.sustained == pytest.approx(1.0)
    assert tally.samples == 16
    assert tally.first is not None
    assert tally.first.seconds == 50.0


def test_sustained_counts_stalls_and_burst_does_not() -> None:
    """Nine steps of 0.1 s and a stall of 9: a bar would say 10 a second, and it is 1."""
    tally = tally_of([0.1] * 10 + [0.1], gap=9.0)
    assert tally.burst == pytest.approx(10.0)
    assert tally.sustained == pytest.approx(1.0)
    assert tally.eta(60) == pytest.approx(60.0)


def test_what_was_not_measured_is_none() -> None:
    """No steps, no shares; no loader, no share of waiting."""
    assert set(Tally().shares().values()) == {None}
    assert Tally().sustained is None
    assert Tally().eta(10) is None
    assert tally_of([1.0, 1.0], wait=None).shares()["wait"] is None


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "n/a"),
        (0.0012, "1.2 ms"),
        (3.44, "3.4 s"),
        (125, "2 m 05 s"),
        (11_240, "3 h 07 m"),
        (187_300, "2 d 04 h"),
    ],
)
def test_durations_in_words(seconds: float | None, said: str) -> None:
    """Two units at most."""
    assert duration(seconds) == said


def test_shares_and_rates_in_words() -> None:
    """n/a where nothing was measured; slow rates turned round."""
    assert [percent(x) for x in (None, 0.0, 0.004, 0.41, 1.0)] == ["n/a", "0%", "0.4%", "41%", "100%"]
    assert [rate(x, "step") for x in (None, 0.1, 14.23, 6780.0)] == [
        "n/a steps/s",
        "10.0 s/step",
        "14.2 steps/s",
        "6,780 steps/s",
    ]


def making_of(*parts: tuple[float, float | None]) -> dict[str, object]:
    """What making batches came to, of which each read and queued so long; None: that was not counted."""
    made = Making()
    for number, (read, queued) in enumerate(parts):
        made.add(
            Batch(
                loader=0, worker=0, seq=number, t=0.0, samples=4, read=read, transform=0.0014, collate=0.0,
                handoff=0.0, pin=None, cpu=0.0014, queued=queued, bytes=None, disk=None, faults=None,
                calls={},
            )
        )  # fmt: skip
    return made.to_json()


def test_short_fetches_queue_as_long_as_those_that_were_counted() -> None:
    """Of one in sixteen the kernel's counters are read; the others' time in the queue is no reading."""
    told = making_of((0.0, 0.0014), *[(0.0014, None)] * 15)
    assert told["queued"] == pytest.approx(0.0014)
    assert told["read"] == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("parts", "queued", "read"),
    [
        ([(0.001, 0.003), (0.001, None)], 0.002, 0.0005),  # no longer than it was off the CPU
        ([(0.001, 0.0), (0.001, None)], 0.0, 0.001),
        ([(0.001, 0.002), (0.001, 0.004)], 0.003, 0.001),
        ([(0.001, None)], None, 0.001),
    ],
)
def test_time_in_the_queue_is_no_more_than_what_was_off_the_cpu(
    parts: list[tuple[float, float | None]], queued: float | None, read: float
) -> None:
    """What was counted stays as it was; nothing is known of a platform without counters."""
    told = making_of(*parts)
    assert told["queued"] == (None if queued is None else pytest.approx(queued))
    assert told["read"] == pytest.approx(read)


def test_a_figure_is_never_a_power_of_ten() -> None:
    """However large it is."""
    assert [figure(value) for value in (0.125, 58.34, 326.4, 7_430.0, 1.2e7)] == [
        "0.125",
        "58.3",
        "326",
        "7,430",
        "12,000,000",
    ]
