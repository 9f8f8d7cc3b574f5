"""Several ranks: who is late and why, what the link costs, and how they agree on what to do when."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stoker.doctor.board import CANNOT, HOLDS, Board
from stoker.doctor.evidence import Evidence
from stoker.doctor.experiments.links import _pairs
from stoker.doctor.rank_evidence import read_ranks
from stoker.doctor.ranks import Together, Transfer
from stoker.doctor.verdict import reach
from stoker.doctor.world import ranks_to_start
from stoker.errors import UsageError
from stoker.watch import Meeting, Record, Step
from stoker.watch.ranks import join
from stoker.watch.record import LineWriter, Writer

MIB = 1 << 20


def meetings(works: list[list[float]], *, link: float, parts: int = 1) -> dict[int, list[Meeting]]:
    """Of ranks that work so long in each step: all wait for the last, then for the link."""
    lines: dict[int, list[Meeting]] = {rank: [] for rank in range(len(works))}
    free = 0.0
    for step in range(len(works[0])):
        for _ in range(parts):
            arrived = [free + works[rank][step] / parts for rank in lines]
            free = max(arrived) + link
            for rank, found in lines.items():
                found.append(Meeting(step, "ddp", MIB, "backward", arrived[rank], free))
    return lines


def met(works: list[list[float]], *, link: float = 0.001, parts: int = 1, **more: Any) -> Together:
    found = join(meetings(works, link=link, parts=parts))
    assert found is not None
    return Together(met=found, **more)


def training(found: Together, *, step: float, **more: Any) -> Evidence:
    plain: dict[str, Any] = {
        "step": step,
        "shares": {"wait": 0.0, "copy": 0.0, "forward": 0.2, "backward": 0.7, "update": 0.05, "other": 0.05},
        "together": found,
        "process": {"world": 2, "affinity": 2, "parameters": {"float32": 9}},
        "host": {"cpus": 2, "usable_cores": 2.0},
    }
    return Evidence(**{**plain, **more})


def test_a_rank_whose_core_others_had_for_a_while_is_no_straggler() -> None:
    """In one stretch of the steps it is late, in the others as early as the rest; garbage is its own."""
    busy = [0.01 + 0.03 * (20 <= step < 28) for step in range(64)]
    found = met([[0.01] * 64, busy], doubt=0.004)
    assert found.met.late.seconds / 0.014 > 0.25
    assert reach(training(found, step=0.014)).cause == "healthy"
    own = replace(found, more={"gc": found.met.late.seconds})
    assert reach(training(own, step=0.014)).cause == "straggler"


@pytest.mark.parametrize(
    ("more", "cure", "told"),
    [
        ({"wait": 0.028, "gc": 0.0001, "queued": 0.001}, "rank_data", "28.0 ms waiting for its loader"),
        ({"wait": 0.001, "gc": 0.03, "queued": 0.002}, "scheduled_gc", "30.0 ms collecting garbage"),
        ({"wait": 0.004, "gc": 0.0, "queued": 0.026}, "rank_host", "26.0 ms waiting for a core"),
        ({"wait": 0.0, "gc": 0.0, "queued": 0.0, "work": 0.03}, "rank_work", "30.0 ms at work"),
        ({"wait": 0.0, "gc": 0.0}, "rank_work", "no more is spent than by the others"),
    ],
)
def test_a_straggler_is_named_with_what_it_alone_spends(more: dict[str, float], cure: str, told: str) -> None:
    """Rather than the network, which its late arrival makes look slow (look-alike 8)."""
    found = met(
        [[0.01] * 20, [0.04] * 20],
        link=0.003,
        more=more,
        phases={"other": 0.02, "forward": 0.009},
        replayed=0.0004,
        causes=("cpu-transform",),
    )
    verdict = reach(training(found, step=0.043))
    assert verdict.cause == "straggler"
    assert verdict.share == pytest.approx(0.03 / 0.043)
    said = " ".join(verdict.why)
    assert "rank 1 comes 30.0 ms" in said
    assert told in said
    assert ("garbage" in said) == (cure == "scheduled_gc" or "no more" in told)
    assert ("by phase that is 20.0 ms other, 9.0 ms forward" in said) == (cure == "rank_work")
    assert verdict.named[0].cures[0].change == cure
    assert "interconnect" in verdict.eliminated


def test_ranks_that_are_late_together_are_named_together() -> None:
    """As those of one busy core are."""
    found = met([[0.02] * 20, [0.04] * 20, [0.02] * 20, [0.04] * 20], more={"queued": 0.02})
    verdict = reach(training(found, step=0.041))
    assert verdict.cause == "straggler"
    assert "ranks 1, 3 come 20.0 ms" in verdict.why[0]
    assert verdict.named[0].cures[0].change == "rank_host"


def test_all_ranks_slow_alike_make_no_straggler() -> None:
    """What each of them loses is told as of one process."""
    slow = met([[0.2] * 20] * 4, more={"wait": 0.0})
    shares = {"wait": 0.8, "copy": 0.0, "forward": 0.1, "backward": 0.1, "update": 0.0, "other": 0.0}
    verdict = reach(training(slow, step=0.2, shares=shares))
    assert "straggler" in verdict.eliminated
    assert verdict.cause not in ("straggler", "healthy")


def test_a_slow_link_is_named_where_all_ranks_come_in_time() -> None:
    """With its rate, and what to do where gradients are brought together more often than they are used."""
    once = reach(training(met([[0.005] * 20, [0.005] * 20], link=0.02), step=0.025))
    assert once.cause == "interconnect"
    assert once.share == pytest.approx(0.8)
    assert "straggler" in once.eliminated
    assert "no_sync" not in [cure.change for cure in once.named[0].cures]
    often = reach(training(met([[0.005] * 20, [0.005] * 20], link=0.02, parts=4), step=0.085))
    assert often.cause == "interconnect"
    assert often.named[0].cures[0].change == "no_sync"
    assert "4 times a step" in " ".join(often.why)


def transfers(slow: int | None, ranks: int = 4) -> tuple[Transfer, ...]:
    """Between neighbours, at 1 GiB/s, or a hundredth of that where one rank has a part."""
    return tuple(
        Transfer(
            sender=one, receiver=other, seconds=1e-4, rate=1024 * MIB / (100 if slow in (one, other) else 1)
        )
        for one, other in _pairs(ranks)
    )


def test_of_a_slow_link_the_rank_is_named_whose_it_is() -> None:
    """By what neighbours give each other; where all give as little, it is nobody's."""
    works = [[0.005] * 20] * 4
    one = reach(training(met(works, link=0.02, transfers=transfers(2)), step=0.025))
    assert one.cause == "interconnect"
    assert one.named[0].cures[0].change == "rank_link"
    assert (
        "the link of rank 2 is slow: 10.2 MiB/s, 0.1 ms there and back; between others 1.0 GiB/s"
        in " ".join(one.why)
    )
    alike = met(works, link=0.02, transfers=transfers(None))
    assert (alike.slow, alike.slow_rank) == ((), None)
    assert reach(training(alike, step=0.025)).named[0].cures[0].change == "link"
    one_way = [*transfers(None, 2), Transfer(sender=1, receiver=0, seconds=1e-4, rate=MIB)]
    of_two = met(works[:2], link=0.02, transfers=tuple(one_way[:1] + one_way[2:]))
    assert of_two.slow_rank is None
    assert "slow from rank 1 to 0" in " ".join(reach(training(of_two, step=0.025)).why)


def test_a_collective_that_waits_for_a_core_is_no_slow_link() -> None:
    """The threads that send and add up stood in line for it."""
    busy = met([[0.02] * 20] * 2, link=0.01, crowded={0: 0.0, 1: 0.0095})
    verdict = reach(training(busy, step=0.03))
    assert "stand in line for a core for 9.5 ms of that" in verdict.eliminated["interconnect"]
    assert verdict.cause == "healthy"


def test_more_ranks_than_cores_make_no_link_slow() -> None:
    """All ranks' threads stand in line alike, and links carry the sums in far less; a slow one does not."""
    works, crowded = [[0.03] * 20] * 4, dict.fromkeys(range(4), 0.011)
    found = met(works, link=0.02, crowded=crowded, transfers=transfers(None))
    verdict = reach(training(found, step=0.2))
    assert verdict.cause == "healthy"
    assert "stand in line for a core for 11.0 ms of that" in verdict.eliminated["interconnect"]
    slow = replace(found, transfers=transfers(2))
    assert reach(training(slow, step=0.2)).cause == "interconnect"
    # Of a record alone no link is known, and that all stand in line tells nothing of it.
    untold = replace(found, transfers=())
    assert reach(training(untold, step=0.2)).cause == "interconnect"


def test_even_ranks_with_little_to_tell_each_other_are_healthy() -> None:
    """Both causes are ruled out by their figures."""
    verdict = reach(training(met([[0.03] * 20, [0.0301] * 20], link=0.001), step=0.031))
    assert verdict.cause == "healthy"
    assert {"straggler", "interconnect"} <= set(verdict.eliminated)


# --- from a record ----------------------------------------------------------------------------------------


def write_record(root: Path, works: list[list[float]], spent: list[dict[str, float]]) -> Record:
    """Ranks that take so long from one collective to the next; what each spends a step, and its counters."""
    for rank, found in meetings(works, link=0.001).items():
        writer = Writer(root / "it", rank)
        if rank == 0:
            writer.describe_run({"id": "it", "world_size": len(works)})
        told = {"clock": "host", "of_some_ranks": 0, "untimed": 0}
        writer.describe_rank({"rank": rank, "host": "h", "steps": len(found), "collectives": told})
        out, mine = LineWriter(writer.rank_folder), spent[rank]
        for one in found:
            wait, gc = mine.get("wait", 0.0), mine.get("gc", 0.0)
            stood = one.done - one.arrived
            step = Step(
                step=one.step, t=one.done, samples=4, loader=0, wait=wait, copy=0.0, forward=0.0,
                backward=works[rank][one.step] - wait + stood, update=0.0, other=0.0, gc=gc, gc_wait=0.0,
            )  # fmt: skip
            out.add("steps", step.to_line())
            out.add("meetings", one.to_line())
            at = one.step + 1
            queued = {"queued_s": at * mine.get("queued", 0.0), "loop_queued_s": at * mine.get("queued", 0.0)}
            line = {"t": one.done, "cpu_s": at * 0.01, "loop_cpu_s": at * mine.get("cpu", 0.01), **queued}
            out.add("resources", json.dumps(line))
        out.close()
    return Record.open(root / "it")


@pytest.mark.parametrize(
    ("late", "others", "named"),
    [
        ({"wait": 0.04, "cpu": 0.05}, {"wait": 0.01, "cpu": 0.02}, "wait"),
        ({"gc": 0.03}, {}, "gc"),
        ({"queued": 0.03}, {}, "queued"),
        # All stand in line as long as they compute: who computes more does so more, and for that.
        ({"wait": 0.04, "cpu": 0.025, "queued": 0.025}, {"cpu": 0.01, "queued": 0.01}, "wait"),
        ({"cpu": 0.02, "queued": 0.05}, {"cpu": 0.02, "queued": 0.02}, "queued"),
        ({"cpu": 0.04}, {"cpu": 0.01}, "work"),
    ],
)
def test_what_a_late_rank_spends_beyond_the_others_is_told_from_a_record_alone(
    tmp_path: Path, late: dict[str, float], others: dict[str, float], named: str
) -> None:
    """Data, garbage, cores or work, of 30 ms that the last of four comes late."""
    works = [[0.02] * 40] * 3 + [[0.05] * 40]
    record = write_record(tmp_path, works, [others] * 3 + [late])
    found = read_ranks(record, (), {}, {})
    assert found is not None
    assert found.together is not None
    assert found.together.met.late.ranks == (3,)
    more = found.together.more
    assert max(more, key=lambda name: more[name]) == named
    assert sum(more.values()) == pytest.approx(0.03, rel=0.05)
    assert json.loads(json.dumps(found.together.to_json()))["late"]["ranks"] == [3]
    assert found.process == {}  # a record alone tells nothing of it
    assert found.ranks_here == 4


def test_each_rank_sends_to_the_next_and_back() -> None:
    """And no two pairs can do so at once: each has a rank of the one before it."""
    assert list(_pairs(2)) == [(0, 1), (1, 0)]
    pairs = list(_pairs(4))
    assert pairs[-2:] == [(3, 0), (0, 3)]
    assert all({*one} & {*other} for one, other in pairwise(pairs))


def test_ranks_wait_for_each_other_at_the_end_and_not_for_ever(tmp_path: Path) -> None:
    """One that never comes costs the others their patience."""
    first, second = (Board(tmp_path / "board", rank=rank, ranks=2) for rank in range(2))
    assert first.meet(0.01) is False
    assert second.meet(0.01) is True


@pytest.mark.parametrize(("process", "untold"), [({"world": 1}, False), ({"world": 2}, True), ({}, True)])
def test_without_arrivals_nothing_is_said_of_ranks(process: dict[str, Any], untold: bool) -> None:
    """Unless one process trains by itself: then there is nobody to wait for."""
    verdict = reach(training(met([[0.01] * 20] * 2), step=0.02, together=None, process=process))
    assert ("straggler" in verdict.untold) is untold
    assert ("interconnect" in verdict.untold) is untold


def test_a_call_counts_from_its_step_on_for_every_rank(tmp_path: Path) -> None:
    """A rank hears of it at that step; one that is past it is told that it came late."""
    lead, other, ahead = (Board(tmp_path / "board", rank=rank, ranks=3) for rank in range(3))
    assert lead.leads
    assert not other.leads
    assert other.due(5) is None
    lead.call("hold", 7)
    assert (other.waits, other.due(6)) == (True, None)
    assert other.due(7) == ("hold", True)
    assert (other.due(8), other.waits) == (None, False)
    assert ahead.due(9) == ("hold", False)


def test_votes_and_ends_of_all_ranks_are_seen_by_each(tmp_path: Path) -> None:
    """The last one to finish knows that it is the last."""
    first, second = (Board(tmp_path / "board", rank=rank, ranks=2) for rank in range(2))
    second.vote(HOLDS)
    assert first.votes() == [0, HOLDS]
    first.vote(CANNOT)
    assert second.votes() == [CANNOT, HOLDS]
    assert first.finish() is False
    assert second.finish() is True


def test_torchruns_first_process_examines_all_ranks_and_the_others_none() -> None:
    """They are started once more, aside; so a later process has nothing to do."""
    assert ranks_to_start(None, {}) == 1
    assert ranks_to_start(3, {}) == 3
    torchrun = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    assert ranks_to_start(None, {**torchrun, "RANK": "0"}) == 2
    assert ranks_to_start(None, {**torchrun, "RANK": "1"}) is None


@pytest.mark.parametrize(
    ("nproc", "env", "told"),
    [
        (2, {"WORLD_SIZE": "2", "RANK": "0"}, "--nproc 2 under a launcher that has started 2 ranks"),
        (None, {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, "2 of 4 ranks are on this host"),
        (None, {"WORLD_SIZE": "many"}, "WORLD_SIZE is 'many'"),
    ],
)
def test_what_cannot_be_examined_is_refused(nproc: int | None, env: dict[str, str], told: str) -> None:
    """With what to do in its place."""
    with pytest.raises(UsageError, match=told):
        ranks_to_start(nproc, env)
