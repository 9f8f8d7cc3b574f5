"""`stoker train WORKLOAD`: a config from file and command line, a folder, a training."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stoker.errors import UsageError
from stoker.train.config_file import load, to_values, without_passwords
from stoker.train.task import Workload


def go(
    workload: Workload,
    *,
    settings: Sequence[str],
    config: Path | None,
    out: Path | None,
    fresh: bool,
    compare: bool,
    find_lr: bool,
    show_config: bool,
    as_json: bool,
) -> int:
    """Train, compare, sweep or show the settings; the exit code, 143 for a training told to stop."""
    made = load(workload.config, config, settings)
    folder = out or Path("runs") / workload.name
    if show_config:
        # A task's own: it may settle some of them by others.
        sys.stdout.write(
            json.dumps(without_passwords(to_values(workload.task(made).config)), indent=1) + "\n"
        )
        return 0
    if compare:
        if workload.compare is None:
            raise UsageError(f"{workload.name} has nothing to compare: leave --compare out")
        page = workload.compare(made, folder, fresh)
        sys.stdout.write(json.dumps({"schema": 1, "page": str(page)}) + "\n" if as_json else f"{page}\n")
        return 0
    if find_lr:
        _sweep(workload, made, as_json)
        return 0
    from stoker.train.fit import fit

    fitted = fit(workload.task(made), out=folder, fresh=fresh)
    if as_json and fitted.rank == 0:
        sys.stdout.write(json.dumps({"schema": 1, "workload": workload.name, **fitted.to_json()}) + "\n")
    return fitted.exit_code


def _sweep(workload: Workload, made: Any, as_json: bool) -> None:
    """The learning rate, swept over a new model of the workload; nothing of it is kept."""
    from rich.console import Console

    from stoker.train.rate import find_rate
    from stoker.tune.lr_words import show

    curve = find_rate(workload.task(made))
    if as_json:
        sys.stdout.write(json.dumps({"workload": workload.name, **curve.to_json()}) + "\n")
    else:
        show(curve, Console())
