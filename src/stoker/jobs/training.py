"""`python -m stoker.jobs.training PLAN`: a workload by a job's plan; 143 where it was told to stop."""

import sys
from pathlib import Path

from stoker.errors import StokerError
from stoker.jobs.plan import Plan


def main(words: list[str]) -> int:
    """Train; the exit code."""
    from stoker.train.config_file import build
    from stoker.train.fit import fit
    from stoker.workloads import find

    [path] = words
    plan = Plan.read(Path(path))
    assert plan.workload is not None
    workload = find(plan.workload)
    try:
        fitted = fit(workload.task(build(workload.config, plan.config)), out=plan.training)
    except StokerError as error:  # for a person: what is wrong and what to do, without a traceback
        sys.stderr.write(f"stoker: {error}\n")
        return error.exit_code
    return fitted.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
