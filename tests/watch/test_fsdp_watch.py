"""`stoker run` under FSDP2, whose modules get classes of its own, and whose parameters are parts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from feed_loop import LENGTH
from kit import BATCH

from stoker.watch import Record

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent / "fsdp_loop.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
POINTS = 0.03
STEPS = 2 * (LENGTH // (2 * BATCH))


def test_phases_steps_and_gradients_of_sharded_models(tmp_path: Path) -> None:
    """Each step once, phases as the loop saw them, and the bytes of whole gradients, not of a rank's part."""
    told = ("run", "--runs", str(tmp_path), "--run-id", "fsdp", str(SCRIPT))
    done = subprocess.run(
        [sys.executable, *TORCHRUN, "-m", "stoker", *told],
        capture_output=True,
        text=True,
        timeout=170,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if "TRUTH " in line]
    truth = json.loads(line.partition("TRUTH ")[2])
    record = Record.open(tmp_path / "fsdp")
    assert sorted(record.ranks) == [0, 1]
    for rank in record.ranks.values():
        steps = list(rank.steps())
        assert [step.step for step in steps] == list(range(STEPS))
        assert {step.samples for step in steps} == {BATCH}
        assert rank.about["gradient_bytes"] == 4 * (8 * 8 + 8 + 3 * 8 + 3)
        [feed] = rank.about["loaders"]
        assert (feed["name"], feed["fed"]) == ("Feed(Slow)", STEPS)
    assert truth["steps"] == STEPS
    later = list(record.ranks[0].steps())[1:]
    total = sum(step.seconds for step in later)
    assert total == pytest.approx(truth["seconds"]["total"], rel=0.03)
    for phase in ("wait", "forward", "backward", "update"):
        seen = sum(getattr(step, phase) or 0.0 for step in later)
        expected = truth["seconds"][phase] / truth["seconds"]["total"]
        assert seen / total == pytest.approx(expected, abs=POINTS), phase
        assert seen > 0
