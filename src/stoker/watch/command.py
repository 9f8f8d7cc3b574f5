"""`stoker run`: from the parsed words to a script running under a session."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.errors import UsageError
from stoker.watch import launcher
from stoker.watch.live import summary
from stoker.watch.record import default_root
from stoker.watch.script import find_module, find_script
from stoker.watch.session import Plan, Session


@dataclass(frozen=True, kw_only=True)
class Altered:
    """Settings put over a script's: by `put`, once it is observed; `told` says what they met."""

    settings: Mapping[str, Any]
    put: Callable[[], None]
    told: Callable[[], Sequence[str]]


def prepare(
    words: list[str],
    *,
    module: bool = False,
    runs: Path | None = None,
    run_id: str | None = None,
    steps: int | None = None,
    quiet: bool = False,
    as_json: bool = False,
    altered: Altered | None = None,
) -> Callable[[], None]:
    """Find the script and make the record; return what runs it."""
    if words:
        find = find_module if module else find_script
        script = find(words[0], words[1:])
    else:
        raise UsageError(
            "nothing to run: give a script (stoker run train.py) or a module (stoker run -m pkg.train)"
        )
    shown = os.environ.get("RANK", "0") == "0" and not quiet
    plan = Plan(
        name=script.name,
        command=["-m", *words] if module else words,
        root=runs or default_root(),
        run_id=run_id,
        total_steps=steps,
        settings={} if altered is None else altered.settings,
    )
    session = Session(plan, live=2 if shown else None)
    answer = _divert_stdout() if as_json else None

    def at_end(session: Session) -> None:
        if shown:
            summary(session)
            for line in altered.told() if altered is not None else ():
                sys.stderr.write(f"{line}\n")
        if answer is not None:
            with os.fdopen(answer, "w") as out:
                json.dump(session.to_json(), out)
                out.write("\n")

    return lambda: launcher.run(script, session, at_end, None if altered is None else altered.put)


def _divert_stdout() -> int:
    """Send file descriptor 1 where 2 goes, for the script and its children; return the real one."""
    sys.stdout.flush()
    answer = os.dup(1)
    os.dup2(2, 1)
    return answer
