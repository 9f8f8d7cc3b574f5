"""Several ranks: who is late and why, what the link costs, and how they agree on what to do when."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.doctor.board import CANNOT, HOLDS, Board
from stoker.doctor.evidence import Evidence
from stoker.doctor.ranks import Lateness, Together, together
from stoker.doctor.verdict import reach
from stoker.doctor.world import ranks_to_start
from stoker.errors import UsageError

MIB = 1 << 20


def world(
    works: list[list[float]], *, link: float = 0.001, parts: int = 1, skew: float = 0.0, part: str = "observe"
) -> dict[int, list[dict[str, Any]]]:
    """Meetings of ranks that work so long in each step: all wait for the last, then for the link.

    `parts` passes bring gradients together in a step; `skew`: the second rank is let go so much later.
    """
    lines: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(len(works))}
    free = [0.0] * len(works)
    for step in range(len(works[0])):
        for _ in range(parts):
            arrived = [free[rank] + works[rank][step] / parts for rank in lines]
            done = [max(arrived) + link + skew * (rank == 1) for rank in lines]
            for rank, found in lines.items():
                found.append(
                    {
                        "part": part, "step": step, "kind": "ddp", "bytes": MIB, "ends": True,
                        "arrived": arrived[rank], "done": done[rank],
                    }
                )  # fmt: skip
            free = done
    return lines


def met(works: list[list[float]], **more: Any) -> Together:
    found = together(world(works, **more))
    assert found is not None
    return found


def training(found: Together, *, step: float, **more: Any) -> Evidence:
    plain: dict[str, Any] = {
        "step": step,
        "shares": {"wait": 0.0, "copy": 0.0, "forward": 0.2, "backward": 0.7, "update": 0.05, "other": 0.05},
        "together": found,
        "process": {"world": 2, "affinity": 2, "parameters": {"float32": 9}},
        "host": {"cpus": 2, "usable_cores": 2.0},
    }
    return Evidence(**{**plain, **more})


def test_the_rank_that_works_longer_is_late_and_nobody_else() -> None:
    """Both are in the collective until it is over; the one that came last is known by its arrival."""
    found = met([[0.01] * 20, [0.04] * 20, [0.01] * 20])
    assert (found.ranks, found.late.rank, found.late.often) == (3, 1, 1.0)
    assert found.late.seconds == pytest.approx(0.03)
    assert found.link == pytest.approx(0.001)
    assert min(found.ahead, key=found.ahead.__getitem__) in (0, 2)


def test_a_rank_that_is_late_now_and_then_is_late_in_the_mean() -> None:
    """As one is whose garbage is collected every tenth step."""
    found = met([[0.01] * 40, [0.01 + 0.3 * (step % 10 == 0) for step in range(40)]])
    assert found.late.rank == 1
    # The first step has no collective before it, from which to count.
    assert found.late.seconds == pytest.approx(0.3 * 3 / 39)


def test_a_rank_whose_core_others_had_for_a_while_is_no_straggler() -> None:
    """In one stretch of the steps it is late, in the others as early as the rest; garbage is its own."""
    busy = [0.01 + 0.03 * (20 <= step < 28) for step in range(64)]
    found = met([[0.01] * 64, busy])
    assert found.late.seconds / 0.014 > 0.25
    assert reach(training(found, step=0.014)).cause == "healthy"
    own = replace(found, late=replace(found.late, more={"gc": found.late.seconds}))
    assert reach(training(own, step=0.014)).cause == "straggler"


def test_ranks_late_in_turn_make_no_straggler() -> None:
    """What one loses in a step the other does in the next: the mean says neither."""
    even = [0.01 + 0.01 * (step % 2) for step in range(40)]
    found = met([even, [0.03 - one for one in even]])
    assert found.late.seconds / 0.02 < 0.05
    assert found.apart == pytest.approx(0.01)


def test_a_link_that_lets_one_rank_go_later_makes_it_no_straggler() -> None:
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


def test_early_buckets_overlap_with_computing_and_cost_nothing() -> None:
    """Only what comes after the last arrival at the last bucket is waited for."""
    lines: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    for step in range(10):
        for rank, found in lines.items():
            for ends, arrived, done in ((False, 0.010, 0.018), (True, 0.020 + rank / 1000, 0.023)):
                found.append(
                    {
                        "part": "observe", "step": step, "kind": "ddp", "bytes": 10, "ends": ends,
                        "arrived": step + arrived, "done": step + done,
                    }
                )  # fmt: skip
    made = together(lines)
    assert made is not None
    assert made.link == pytest.approx(0.002)
    assert made.late.rank == 1


def test_steps_in_which_ranks_were_not_at_the_same_collectives_are_left_out() -> None:
    """And with too few of them nothing is told."""
    lines = world([[0.01] * 20, [0.02] * 20])
    lines[0][3]["kind"] = "barrier"
    lines[1][7]["done"] = None
    assert together(lines) is not None
    assert together({rank: found[:5] for rank, found in lines.items()}) is None
    assert together({0: lines[0]}) is None
    assert together({0: lines[0], 1: []}) is None


def test_a_straggler_is_named_with_what_it_alone_spends() -> None:
    """Rather than the network, which its late arrival makes look slow (look-alike 8)."""
    found = met([[0.01] * 20, [0.04] * 20], link=0.003)
    late = Lateness(
        **{
            **vars(found.late),
            "more": {"wait": 0.028, "gc": 0.0001, "queued": 0.001},
            "replayed": 0.0004,
            "causes": ("cpu-transform",),
        }
    )
    verdict = reach(training(Together(**{**vars(found), "late": late}), step=0.043))
    assert verdict.cause == "straggler"
    assert verdict.share == pytest.approx(0.03 / 0.043)
    told = " ".join(verdict.why)
    assert "rank 1 comes 30.0 ms" in told
    assert "28.0 ms waiting for its loader" in told
    assert "garbage" not in told
    assert [cure.change for cure in verdict.named[0].cures] == ["rank_data"]
    assert "interconnect" in verdict.eliminated


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


def test_even_ranks_with_little_to_tell_each_other_are_healthy() -> None:
    """Both causes are ruled out by their figures."""
    verdict = reach(training(met([[0.03] * 20, [0.0301] * 20], link=0.001), step=0.031))
    assert verdict.cause == "healthy"
    assert {"straggler", "interconnect"} <= set(verdict.eliminated)


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
