"""Ranks joined by their collectives: who is late, by how much, and what is the link's. Made-up times."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from stoker.watch import Meeting, Record, Step
from stoker.watch.export import export
from stoker.watch.ranks import Joined, join, join_record, why_not_joined
from stoker.watch.record import LineWriter, Writer

MIB = 1 << 20


def world(
    works: Sequence[Sequence[float]],
    *,
    link: float = 0.001,
    parts: int = 1,
    skew: float = 0.0,
    clocks: Sequence[tuple[float, float]] = (),
) -> dict[int, list[Meeting]]:
    """Meetings of ranks that work so long in each step: all wait for the last, then for the link.

    `parts` passes bring gradients together in a step; `skew`: the second rank is let go so much later. A
    rank's clock may be ahead, and go faster, by so much.
    """
    lines: dict[int, list[Meeting]] = {rank: [] for rank in range(len(works))}
    free = [0.0] * len(works)
    for step in range(len(works[0])):
        for _ in range(parts):
            arrived = [free[rank] + works[rank][step] / parts for rank in lines]
            done = [max(arrived) + link + skew * (rank == 1) for rank in lines]
            for rank, found in lines.items():
                ahead, faster = clocks[rank] if clocks else (0.0, 0.0)
                came, let = (ahead + at * (1 + faster) for at in (arrived[rank], done[rank]))
                found.append(Meeting(step, "ddp", MIB, "backward", came, let))
            free = done
    return lines


def met(works: Sequence[Sequence[float]], **more: object) -> Joined:
    found = join(world(works, **more))  # type: ignore[arg-type]
    assert found is not None
    return found


def test_the_rank_that_works_longer_is_late_and_nobody_else() -> None:
    """Both are in the collective until it is over; the one that came last is known by its arrival."""
    found = met([[0.01] * 20, [0.04] * 20, [0.01] * 20])
    assert (len(found.ranks), found.late.ranks, found.late.often) == (3, (1,), 1.0)
    assert found.late.seconds == pytest.approx(0.03)
    assert found.link == pytest.approx(0.001)
    assert found.first in (0, 2)
    assert found.ranks[0].stood_in == {"backward": pytest.approx(0.031, abs=1e-3)}
    assert (found.ranks[0].last, found.ranks[1].last) == (0.0, 1.0)


def test_ranks_that_are_late_together_are_found_together() -> None:
    """Each by itself is no later than the last of the others; half of the ranks at the most are late."""
    found = met([[0.02] * 20, [0.04] * 20, [0.021] * 20, [0.0405] * 20])
    assert found.late.ranks == (3, 1)
    assert found.late.seconds == pytest.approx(0.0195)
    assert found.ranks[3].behind == pytest.approx(0.0005)
    assert found.behind(found.late.ranks) == pytest.approx(0.0195)
    alone = met([[0.02] * 20, [0.04] * 20, [0.02] * 20, [0.021] * 20])
    assert alone.late.ranks == (1,)


def test_a_rank_that_is_late_now_and_then_is_late_in_the_mean() -> None:
    """As one is whose garbage is collected every tenth step."""
    found = met([[0.01] * 40, [0.01 + 0.3 * (step % 10 == 0) for step in range(40)]])
    assert found.late.ranks == (1,)
    # The first step has no collective before it, from which to count.
    assert found.late.seconds == pytest.approx(0.3 * 3 / 39)


def test_ranks_late_in_turn_are_late_by_nothing() -> None:
    """What one loses in a step the other does in the next: the mean says neither."""
    even = [0.01 + 0.01 * (step % 2) for step in range(40)]
    found = met([even, [0.03 - one for one in even]])
    assert found.late.seconds / 0.02 < 0.05
    assert found.apart == pytest.approx(0.01)


def test_a_link_that_lets_one_rank_go_later_makes_it_no_late_one() -> None:
    """What a rank does counts from when it was let go, whenever that was."""
    found = met([[0.01] * 20, [0.01] * 20], link=0.02, skew=0.005)
    assert found.late.seconds == pytest.approx(0.0, abs=1e-9)
    assert found.link >= 0.02


def test_what_the_link_costs_is_counted_from_the_last_arrival() -> None:
    """And its rate by the bytes that each of two ranks sends."""
    found = met([[0.01] * 20, [0.03] * 20], link=0.02, parts=4)
    assert found.link == pytest.approx(0.08)
    assert (found.meetings, found.backwards, found.bytes) == (4, 4, 4 * MIB)
    assert found.rate == pytest.approx(MIB / 0.02)


def test_clocks_of_several_hosts_need_no_offset() -> None:
    """One an hour ahead and drifting by 100 millionths tells the same as one clock for all."""
    works = [[0.01] * 200, [0.03] * 200]
    lines = world(works, link=0.005, clocks=((0.0, 0.0), (3600.0, 1e-4)))
    found = join(lines, {0: "here", 1: "there"})
    assert found is not None
    assert found.late.ranks == (1,)
    assert found.late.seconds == pytest.approx(0.02, rel=1e-3)
    assert found.link == pytest.approx(0.005, rel=1e-2)
    taken_for_one = join(lines, {0: "here", 1: "here"})
    assert taken_for_one is not None
    assert taken_for_one.link == 0.0


def test_steps_in_which_ranks_were_not_at_the_same_collectives_are_left_out() -> None:
    """And with too few of them nothing is told."""
    lines = world([[0.01] * 20, [0.02] * 20])
    lines[0][3] = lines[0][3]._replace(kind="barrier")
    del lines[1][7]
    found = join(lines)
    assert found is not None
    assert found.steps == 20 - 5  # the first; those two, and the one after each
    assert join({rank: found[:5] for rank, found in lines.items()}) is None
    assert join({0: lines[0]}) is None
    assert join({0: lines[0], 1: []}) is None


def test_bytes_that_one_collective_does_not_tell_are_not_known() -> None:
    """Nor is a rate made of the others'."""
    lines = world([[0.01] * 20, [0.02] * 20])
    lines = {rank: [*found[:-1], found[-1]._replace(bytes=None)] for rank, found in lines.items()}
    found = join(lines)
    assert found is not None
    assert (found.bytes, found.rate) == (None, None)


# --- a record ---------------------------------------------------------------------------------------------


def record_of(
    root: Path, lines: dict[int, list[Meeting]], *, world_size: int, told: object = "host"
) -> Record:
    for rank, found in lines.items():
        writer = Writer(root / "it", rank)
        if rank == 0:
            writer.describe_run({"id": "it", "world_size": world_size})
        collectives = {"clock": told, "of_some_ranks": 0, "untimed": 0} if told else None
        writer.describe_rank({"rank": rank, "host": "here", "steps": 20, "collectives": collectives})
        out = LineWriter(writer.rank_folder)
        for number in range(20):
            step = Step(
                step=number, t=1.0 + number, samples=4, loader=0, wait=0.5, copy=0.0,
                forward=0.2, backward=0.2, update=0.05, other=0.05, gc=0.01, gc_wait=0.0,
            )  # fmt: skip
            out.add("steps", step.to_line())
        for one in found:
            out.add("meetings", one.to_line())
        out.close()
    return Record.open(root / "it")


def test_a_record_s_ranks_are_joined_and_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Meetings come back as they were written; who is behind stands in the text of a collector."""
    lines = world([[0.01] * 20, [0.04] * 20])
    record = record_of(tmp_path, lines, world_size=2)
    assert [one.step for one in record.ranks[1].meetings()] == list(range(20))
    assert why_not_joined(record) is None
    found = join_record(record, dict.fromkeys(record.ranks, lambda step: step >= 5))
    assert found is not None
    assert (found.steps, found.late.ranks) == (14, (1,))
    export(record, "prometheus")
    text = capsys.readouterr().out
    assert 'stoker_rank_last_ratio{run="it",rank="1"} 1.0' in text
    behind = next(
        line for line in text.splitlines() if line.startswith("stoker_rank_behind_step_seconds{run")
    )
    assert float(behind.split()[-1]) == pytest.approx(-0.03)


def test_devices_have_a_clock_each(tmp_path: Path) -> None:
    """Also on one host: what one calls now is not what another does."""
    lines = world([[0.01] * 20, [0.03] * 20], link=0.005, clocks=((0.0, 0.0), (1.0, 0.0)))
    found = join_record(record_of(tmp_path, lines, world_size=2, told="device"))
    assert found is not None
    assert found.link == pytest.approx(0.005)


def test_what_keeps_ranks_from_being_joined_is_told(tmp_path: Path) -> None:
    """A rank's folder that is elsewhere; a record older than arrivals; collectives that none could time."""
    lines = world([[0.01] * 20, [0.04] * 20])
    record = record_of(tmp_path / "a", lines, world_size=4)
    assert "ranks 2, 3 of 4 left no record here" in (why_not_joined(record) or "")
    older = record_of(tmp_path / "b", {0: [], 1: []}, world_size=2, told=None)
    assert why_not_joined(older) == "the record was made without them"
    export(older, "prometheus", tmp_path / "text")
    assert "stoker_rank_" not in (tmp_path / "text").read_text()
    none = record_of(tmp_path / "c", {0: [], 1: []}, world_size=2)
    assert why_not_joined(none) == "none was seen"
    about = tmp_path / "c" / "it" / "rank0" / "rank.json"
    told = json.loads(about.read_text())
    told["collectives"]["untimed"] = 9
    about.write_text(json.dumps(told))
    assert "on a stream of their own" in (why_not_joined(Record.open(tmp_path / "c" / "it")) or "")


def test_a_step_of_an_older_record_has_no_garbage_to_tell_of(tmp_path: Path) -> None:
    """It opens as ever; what it did not measure is not 0. Meetings as the doctor once had them are none."""
    record = record_of(tmp_path, {0: []}, world_size=1)
    lines = record.ranks[0].folder / "steps.jsonl"
    old = [json.loads(line) for line in lines.read_text().splitlines()]
    for line in old:
        del line["gc"], line["gc_wait"]
    lines.write_text("".join(json.dumps(line) + "\n" for line in old))
    (lines.parent / "meetings.jsonl").write_text('{"part": "observe", "step": 1, "kind": "ddp"}\n')
    assert {step.gc for step in record.ranks[0].steps()} == {None}
    assert list(record.ranks[0].meetings()) == []
