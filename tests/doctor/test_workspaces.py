"""Workspaces at sizes that did not run whole: from calls that ran alone there, where they prove to tell."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, count
from pathlib import Path
from typing import Any

import pytest

from stoker.doctor.allocations import Allocations, at_size
from stoker.doctor.forecast import Forecast, foresee
from stoker.doctor.workspaces import Probed, Workspaces

RECORDED = Path(__file__).parent / "recorded"
MIB = 1 << 20


@pytest.fixture(scope="module")
def runs() -> dict[int, Allocations]:
    """First steps of a 3D U-Net with AdamW on an H200 (torch 2.11), a process for each size."""
    told = json.loads(gzip.decompress((RECORDED / "allocations_h200.json.gz").read_bytes()))
    return {
        one["samples"]: Allocations(
            samples=one["samples"],
            events=tuple(one["events"]),
            streams=dict(one["streams"]),
            peak=one["peak"],
        )
        for one in told
        if one["network"] == "unet3d"
    }


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """Workspaces that its convolutions took there when each ran alone, and the peak of a size that only the
    benchmark of untried sizes has run.
    """
    found: dict[str, Any] = json.loads((RECORDED / "workspaces_h200.json").read_text())
    return found


def events(*made: int | tuple[int]) -> tuple[int, ...]:
    """Tensors that stay, and workspaces (in brackets) that are freed at once."""
    found: list[int] = []
    for number, one in enumerate(made, 1):
        found += [one] if isinstance(one, int) else [one[0], -number]
    return tuple(found)


def probed(alone: dict[str, Any], without: Sequence[int] = ()) -> tuple[Probed, ...]:
    """The calls as the card's memory history tells them: the tensors are those of the layers."""
    found: list[Probed] = []
    for call in alone["calls"]:
        inside, outside, kernel = call["inside"], call["outside"], call["kernel"]
        voxels = call["space"][0] * call["space"][1] * call["space"][2]
        weight, bias = 4 * inside * outside * kernel**3, 4 * outside
        forward, backward = {}, {}
        for size, taken in call["taken"].items():
            samples, left = int(size), list(taken)
            if samples in without:
                continue
            before: list[int | tuple[int]] = [4 * samples * outside * voxels]
            after: list[int | tuple[int]] = []
            if len(left) == 4:
                before.append((left.pop(0),))
            if inside > 1:  # the first layer's input has no gradient
                after.append(4 * samples * inside * voxels)
            if len(left) == 3:
                after.append((left.pop(0),))
            after += [weight, (left[0],), bias, bias + 2048, (left[1],)]
            forward[samples], backward[samples] = events(*before), events(*after)
        name = f"{inside} to {outside}"
        found += [Probed(call=f"{name}, forward", events=forward)]
        found += [Probed(call=f"{name}, backward", events=backward)]
    return tuple(found)


def told(runs: Sequence[Allocations], calls: tuple[Probed, ...]) -> Forecast:
    """The last of the processes has also run calls alone."""
    return foresee((), [*runs[:-1], replace(runs[-1], probed=calls)])


def test_every_size_is_told_to_the_byte_from_any_two_that_ran(
    runs: dict[int, Allocations], alone: dict[str, Any]
) -> None:
    """Between them and beyond; without calls that ran alone 12 and 96 are missed by 15% from 16 and 32."""
    calls = probed(alone)
    real = {size: run.peak for size, run in runs.items()} | {int(n): b for n, b in alone["peaks"].items()}
    assert sorted(real) == [8, 12, 16, 24, 32, 48, 96]
    for ran in combinations(runs, 2):
        forecast = told([runs[size] for size in ran], calls)
        for size in set(real) - set(ran):
            need = forecast.at(size)
            assert need is not None
            assert need.mid == real[size], (ran, size)
            assert need.low <= real[size] <= need.high
            assert need.high < 1.03 * real[size]
    bare = foresee((), [runs[16], runs[32]]).at(12)
    assert bare is not None
    assert bare.mid > 1.13 * real[12]


def test_a_third_size_that_libraries_choose_otherwise_for_no_longer_makes_it_unsure(
    runs: dict[int, Allocations], alone: dict[str, Any]
) -> None:
    """16 is missed by 13% from 8 and 32 as lines, and to the byte by what its calls take alone."""
    three = [runs[8], runs[16], runs[32]]
    assert not foresee((), three).holds
    forecast = told(three, probed(alone))
    assert (forecast.holds, forecast.error, forecast.why) == (True, 0.0, None)


def test_a_size_at_which_nothing_ran_alone_keeps_the_range_of_lines(
    runs: dict[int, Allocations], alone: dict[str, Any]
) -> None:
    """As before; and as wide as lines have missed the size that checks them."""
    three = [runs[8], runs[16], runs[32]]
    bare = foresee((), three)
    forecast = told(three, probed(alone, without=[48]))
    before, now = bare.at(48), forecast.at(48)
    assert before is not None
    assert now is not None
    assert bare.error == forecast.elsewhere
    assert now.mid == before.mid
    assert now.low == min(before.low, round(now.mid * (1 - (bare.error or 0))))
    assert now.high == max(before.high, round(now.mid * (1 + (bare.error or 0))))


def test_calls_that_take_something_else_alone_than_in_the_runs_change_nothing(
    runs: dict[int, Allocations], alone: dict[str, Any]
) -> None:
    """And it is said which they are."""
    other = tuple(
        replace(call, events={size: _wider(one) for size, one in call.events.items()})
        for call in probed(alone)
    )
    two = [runs[16], runs[32]]
    forecast = told(two, other)
    bare = foresee((), two).at(12)
    now = forecast.at(12)
    assert bare is not None
    assert now is not None
    assert now[:2] == bare[:2]
    said = "\n".join(forecast.unlike)
    assert "alone, with 16 samples, 96 to 32, forward takes 1074073811 bytes: the run did not" in said
    assert "with 16 samples the run took 1074073747 bytes: no call did alone" in said


def _wider(found: Sequence[int]) -> tuple[int, ...]:
    """Its workspaces 64 bytes larger."""
    freed = {-one for one in found if one < 0}
    numbers = count(1)
    return tuple(one + 64 if one > 0 and next(numbers) in freed else one for one in found)


def test_what_no_convolution_takes_is_said(runs: dict[int, Allocations], alone: dict[str, Any]) -> None:
    """The U-Net's interpolation, which grows in a line."""
    forecast = told([runs[16], runs[32]], probed(alone))
    assert forecast.unlike == (
        "with 16 samples the run took 536870912 bytes: no call did alone",
        "with 32 samples the run took 1073741824 bytes: no call did alone",
    )


def run_of(size: int, taken: int | None) -> Allocations:
    """A layer of 10 MiB a sample with a workspace, if any."""
    made: list[int | tuple[int]] = [10 * size * MIB]
    found = events(*made, *([] if taken is None else [(taken,)]), 512)
    run = Allocations(samples=size, events=found, streams={}, peak=0)
    return replace(run, peak=run.played)


def test_a_workspace_that_is_not_taken_at_every_size_comes_and_goes() -> None:
    """As the call has it alone: none at 12, one at 40."""
    sizes: dict[int, tuple[int, ...]] = {
        8: run_of(8, 30 * MIB).events,
        12: run_of(12, None).events,
        16: run_of(16, None).events,
        40: run_of(40, 7 * MIB).events,
    }
    chosen = Workspaces(calls=(Probed(call="it", events=sizes),))
    for size, events_there in sizes.items():
        there = at_size(run_of(8, 30 * MIB), run_of(16, None), size, chosen=chosen)
        assert there is not None
        assert there.events == events_there


def test_one_that_no_run_has_a_place_for_widens_the_range() -> None:
    """It is taken at 64 alone, and nobody knows where: there is room for it at the upper end."""
    runs = [run_of(8, None), run_of(16, None)]
    sizes = {8: runs[0].events, 16: runs[1].events, 64: run_of(64, 200 * MIB).events}
    forecast = told(runs, (Probed(call="it", events=sizes),))
    need, bare = forecast.at(64), foresee((), runs).at(64)
    assert need is not None
    assert bare is not None
    assert need[:2] == bare[:2]
    assert need.high == pytest.approx(bare.high + 1.02 * 200 * MIB)


def test_calls_that_cannot_be_told_apart_make_the_range() -> None:
    """Two that take the same at both sizes and differ at a third, between the same tensors."""
    runs = [run_of(8, 30 * MIB), run_of(16, 60 * MIB)]
    same = {run.samples: run.events for run in runs}
    calls = tuple(
        Probed(call=str(taken), events={**same, 64: run_of(64, taken * MIB).events}) for taken in (10, 700)
    )
    need = told(runs, calls).at(64)
    assert need is not None
    assert need.low < run_of(64, 10 * MIB).peak
    assert need.high > run_of(64, 700 * MIB).peak


def test_a_size_at_which_a_call_does_other_things_is_left_out() -> None:
    """More tensors than at the first: which workspace is which is not known there."""
    call = Probed(call="it", events={8: events(64, (30,)), 16: events(128, (60,)), 32: events(64, 64, (9,))})
    assert [dict(places) for places in call.places] == [{8: ((30,), 64, 0), 16: ((60,), 128, 0)}]
    assert Probed(call="none", events={}).places == ()


def test_sizes_are_those_at_which_all_calls_ran() -> None:
    """One that did not fit with 32 samples leaves that size as it was."""
    first = Probed(call="a", events={8: (), 16: (), 32: ()})
    second = Probed(call="b", events={8: (), 16: ()})
    assert Workspaces(calls=(first, second)).sizes == (8, 16)
    assert Workspaces().sizes == ()
