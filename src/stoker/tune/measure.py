"""What happens in a trial's process: changes are put over the script, and it ends once its rate is known."""

import atexit
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from stoker import changes
from stoker.changes.feed_tier import settled
from stoker.scratch import Child
from stoker.tune.stretches import LEAST_STEPS, LEAST_STRETCHES, WARM_STEPS, length
from stoker.watch.session import Plan, Session

# Times that the allocator found no memory and gave its cache back, in a run: more is thrashing, and no rate.
_MOST_RETRIES = 3


def as_argument(runs: Path, run: str, settings: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """What `prepare` is given."""
    return {"runs": str(runs), "run": run, "settings": dict(settings), "seconds": seconds}


def prepare(child: Child, argument: Mapping[str, Any]) -> None:
    """The hook of a trial's scratch run."""
    session = Session(Plan(name="trial", root=Path(argument["runs"]), run_id=argument["run"]))
    session.start()
    atexit.register(session.finish, "done")  # of a script that ends before its rate is known
    changes.put(argument["settings"])
    made, warm, warm_steps = 0, 0.0, 0

    def stepped(*_: Any) -> None:
        nonlocal made, warm, warm_steps
        made += 1
        child.progress(made)
        if made == 1:
            child.report("first", t=time.time())
        if not warm_steps and made >= WARM_STEPS and settled():
            warm, warm_steps = time.monotonic(), made
            child.report("warm", steps=made)
            _forget_peaks()
        if not warm_steps or made == warm_steps or (made - warm_steps) % LEAST_STEPS:
            return
        if (retries := _retries()) > _MOST_RETRIES:
            child.report("thrash", retries=retries)
            _end()
        if time.monotonic() - warm < argument["seconds"]:
            return
        told = [loader.to_json() for loader in session.account.loaders]
        if made - warm_steps > LEAST_STRETCHES * length(told, made - warm_steps):
            _end()

    def _end() -> None:
        session.finish("done")
        child.report("measured", told=changes.told(argument["settings"]), **_peaks())
        child.end(made)

    register_optimizer_step_post_hook(stepped)


def _forget_peaks() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def _peaks() -> dict[str, Any]:
    """The most that was reserved on the card since the first steps; None without one."""
    return {"vram": torch.cuda.max_memory_reserved() if torch.cuda.is_initialized() else None}


def _retries() -> int:
    if not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))
