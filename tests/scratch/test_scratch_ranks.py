"""Several processes of one script in a run: they know each other, end together, and say which one failed."""

import os
from pathlib import Path

import pytest
from scratch_kit import marked, plan

from stoker.errors import UsageError
from stoker.scratch import Limits, run
from stoker.scratch.ranks import environments

SCRIPT = """
import os, signal, sys, time
import steps
rank = os.environ["RANK"]
steps.child.report("here", rank=rank, world=os.environ["WORLD_SIZE"], port=os.environ["MASTER_PORT"])
if rank == "1":
    {one}
{rest}
"""


def write(folder: Path, one: str, rest: str) -> Path:
    path = folder / "train.py"
    path.write_text(SCRIPT.format(one=one, rest=rest))
    return path


def test_each_rank_has_its_place_and_says_who_it_is(tmp_path: Path) -> None:
    """Messages carry the rank they came from, long ones whole; the run is done when all of them are."""
    told = 'steps.child.report("long", text="x" * 200_000)'
    script = write(tmp_path, "pass", told)
    result = run(plan(script, hook="scratch_hooks:give_child", ranks=3, limits=Limits(seconds=60)))
    assert (result.outcome, result.exit_code) == ("done", 0)
    here = [message for message in result.messages if message.kind == "here"]
    assert sorted((m.rank, m.body["rank"], m.body["world"]) for m in here) == [
        (0, "0", "3"),
        (1, "1", "3"),
        (2, "2", "3"),
    ]
    assert len({message.body["port"] for message in here}) == 1
    assert sorted(m.rank for m in result.messages if m.kind == "long") == [0, 1, 2]


@pytest.mark.parametrize(
    ("one", "outcome", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "crashed", "rank 1: killed by signal 9 (SIGKILL)"),
        ("raise ValueError('no river')", "failed", "rank 1: exit code 1: ValueError: no river"),
    ],
)
def test_a_rank_that_dies_ends_the_others(tmp_path: Path, one: str, outcome: str, reason: str) -> None:
    """None of them is left waiting for it, and the result names it."""
    mark = f"mark-{os.getpid()}-{tmp_path.name}"
    result = run(
        plan(
            write(tmp_path, one, "time.sleep(600)"), hook="scratch_hooks:give_child", ranks=2,
            limits=Limits(seconds=60), env={"MARK": mark},
        )
    )  # fmt: skip
    assert (result.outcome, result.reason) == (outcome, reason)
    assert marked(mark) == []


def test_a_parked_rank_waits_for_another_to_end_the_run(tmp_path: Path) -> None:
    """It makes not one more line, and its being there ends nothing."""
    mark = f"mark-{os.getpid()}-{tmp_path.name}"
    script = write(tmp_path, "steps.child.park()", "time.sleep(0.3); steps.child.end(7)")
    result = run(
        plan(script, hook="scratch_hooks:give_child", ranks=2, limits=Limits(seconds=60), env={"MARK": mark})
    )
    assert (result.outcome, result.steps) == ("done", 7)
    assert marked(mark) == []


def test_a_torchrun_around_the_caller_is_not_the_ranks_own() -> None:
    """Its store and its port are its own; of a script alone nothing is changed."""
    env = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": "1", "RANK": "0", "A": "b"}
    assert environments(env, 1) == (env,)
    first, second = environments(env, 2)
    assert first["TORCHELASTIC_USE_AGENT_STORE"] == "False"
    assert first["MASTER_PORT"] == second["MASTER_PORT"] != "1"
    assert (first["RANK"], second["RANK"], second["A"]) == ("0", "1", "b")


def test_no_ranks_are_no_run(tmp_path: Path) -> None:
    """The plan says so at once."""
    with pytest.raises(UsageError, match="0 ranks"):
        plan(tmp_path / "train.py", ranks=0)
