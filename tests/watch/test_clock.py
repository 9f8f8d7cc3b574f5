"""Where idle marks lie on the device's timeline. No clock, no device: times are said."""

import random

import pytest

from stoker.watch.clock import DeviceClock
from stoker.watch.notes import IDLE
from stoker.watch.phases import OTHER

MS = 1_000_000


class At:
    """An event that the device passed at this millisecond of its clock."""

    def __init__(self, ms: float) -> None:
        self.ms = ms


class Told:
    """A clock that is told of each event when it is first used, as a log numbers them."""

    def __init__(self) -> None:
        self.clock = DeviceClock()
        self.numbers: dict[At, int] = {}
        self.last = 0.0

    def number(self, event: "At | int | None") -> int | None:
        if not isinstance(event, At):
            return event
        if event not in self.numbers:
            self.clock.pass_marks([event.ms - self.last])
            self.last = event.ms
            self.numbers[event] = len(self.numbers)
        return self.numbers[event]


def spans(told: Told, start: At, *marks: tuple[At | int | None, float]) -> list[float] | None:
    """In milliseconds."""
    begin = told.number(start)
    assert begin is not None
    found = told.clock.spans(
        begin, [(OTHER, False, told.number(event), round(ms * MS)) for event, ms in marks]
    )
    return None if found is None else [round(span / MS, 6) for span in found]


def test_between_events_are_their_times_alone() -> None:
    """As told by the device, whatever the host's clock says."""
    assert spans(Told(), At(100), (At(110), 0), (At(130), 1)) == [10, 20]


def test_an_idle_mark_lies_where_the_hosts_clock_puts_it() -> None:
    """The device's clock is 100 ms ahead; it stood idle from 12 to 20 ms, and then got work."""
    clock = Told()
    marks = (At(110), 10), (IDLE, 12), (IDLE, 20), (At(121), 21), (At(150), 25)
    assert spans(clock, At(100), *marks) == [10, 2, 8, 1, 29]


def test_work_behind_an_idle_mark_does_not_move_it() -> None:
    """A loader launches 7 ms of work in `next()`: the event at its end is late, the mark before it is not."""
    clock = Told()
    marks = (At(110), 10), (IDLE, 12), (At(122), 15)
    assert spans(clock, At(100), *marks) == [10, 2, 10]


def test_an_idle_mark_lies_where_the_part_before_it_said() -> None:
    """The clocks were read then; in this part every event is behind a busy device."""
    clock = Told()
    last = At(130)
    assert spans(clock, At(100), (At(110), 10), (last, 15)) == [10, 20]
    assert spans(clock, last, (IDLE, 40), (IDLE, 50), (At(190), 60)) == [10, 10, 40]


def test_an_idle_mark_needs_no_reading_before_it() -> None:
    """The event behind it bounds it: no event passes before it is recorded."""
    assert spans(Told(), At(100), (IDLE, 12), (At(121), 21)) == [12, 9]


def test_parts_that_are_left_out_do_not_move_what_follows() -> None:
    """Between two cells of a notebook: events were dropped, the clocks go on."""
    clock = Told()
    spans(clock, At(100), (At(110), 10), (At(120), 20))
    assert spans(clock, At(300), (IDLE, 205), (At(340), 210)) == [5, 35]


def test_an_event_that_serves_twice_was_recorded_once() -> None:
    """At the later mark the host was further on, and the clocks had not moved."""
    clock = Told()
    event = At(110)
    marks = (event, 10), (event, 10.04), (IDLE, 20), (At(140), 21)
    assert spans(clock, At(100), *marks) == [10, 0, 10, 20]


@pytest.mark.parametrize("millionths", [-200, 0, 200])
def test_clocks_that_drift_apart_are_followed(millionths: int) -> None:
    """For a minute; an idle mark is never more than 0.3 ms off."""
    clock = Told()
    rate = 1 + millionths / 1e6
    before = At(0)
    for host in range(100, 60_000, 100):
        read, end = At((host + 50) * rate), At((host + 90) * rate)
        found = spans(clock, before, (read, host + 50), (IDLE, host + 60), (end, host + 70))
        assert found is not None
        assert found[1] == pytest.approx((host + 60) * rate - read.ms, abs=0.3)
        before = end


def test_a_reading_from_long_ago_does_not_count() -> None:
    """After an hour the clocks may stand otherwise."""
    clock = Told()
    last = At(20)
    spans(clock, At(0), (At(10), 10), (last, 20))
    hour = 3_600_000
    later = At(hour + 500)
    assert spans(clock, last, (later, hour), (IDLE, hour + 10), (At(hour + 530), hour + 11)) == [
        later.ms - 20,
        10,
        20,
    ]


def test_spans_are_never_negative_and_sum_to_the_part() -> None:
    """Whatever the host's clock says: idle marks are held between their events."""
    draw = random.Random(7)
    for _ in range(300):
        clock = Told()
        start = At(draw.uniform(-100, 100))
        last = start
        for _ in range(3):
            begin = last
            marks: list[tuple[At | int | None, float]] = []
            for _ in range(6):
                marks.append((IDLE, draw.uniform(0, 100)))
                if draw.random() < 0.5:
                    last = At(last.ms + draw.uniform(0, 20))
                    marks.append((last, draw.uniform(0, 100)))
            last = At(last.ms + 1)
            found = spans(clock, begin, *marks, (last, 100))
            assert found is not None
            assert len(found) == len(marks) + 1
            assert min(found) >= 0
            assert sum(found) == pytest.approx(last.ms - begin.ms, abs=1e-3)


def test_without_an_event_there_is_no_span() -> None:
    """During a graph's capture there was none; and behind the last event nothing is known."""
    assert spans(Told(), At(0), (At(1), 1), (None, 2), (At(3), 3)) is None
    assert spans(Told(), At(0), (At(1), 1), (IDLE, 2)) is None


def test_events_are_forgotten_behind_the_last_mark() -> None:
    """A run of days keeps no more than its last part."""
    told = Told()
    last = At(0)
    for number in range(1000):
        later = At(number + 1)
        spans(told, last, (At(number + 0.5), number), (later, number))
        last = later
    assert len(told.clock._at) == 1
