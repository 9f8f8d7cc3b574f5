"""`python -m stoker.jobs.work PLAN`: the observed training itself, started by the runner and ended with it.

It knows its plan and its folder, and nothing of the store: what it prints and writes is told by the runner.
"""

import os
import sys
from pathlib import Path

from stoker.jobs.folders import RECORD
from stoker.jobs.plan import Plan
from stoker.watch import command


def main(words: list[str]) -> None:
    """Run the plan under the observer; ends as the training does."""
    if sys.platform == "linux":
        from stoker.scratch import kernel

        kernel.die_with_parent()
        if os.getppid() == 1:  # it was gone before the kernel was asked
            sys.exit("stoker: the runner of this job is gone")
    [path] = words
    plan = Plan.read(Path(path))
    os.chdir(plan.training)
    if plan.workload is not None:
        run = command.prepare(
            ["stoker.jobs.training", path], module=True, runs=plan.records, run_id=RECORD, quiet=True
        )
    else:
        assert plan.script is not None
        run = command.prepare([plan.script, *plan.arguments], runs=plan.records, run_id=RECORD, quiet=True)
    run()


if __name__ == "__main__":
    main(sys.argv[1:])
