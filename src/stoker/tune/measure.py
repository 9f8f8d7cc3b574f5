"""What happens in a trial's process: changes are put over the script, and it ends once its rate is known.

Of several ranks the first one measures, once the samples of all count; they end after the same step.
"""

import atexit
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from stoker import changes
from stoker.changes.feed_tier import settled
from stoker.scratch import Child
from stoker.tune.agreement import Agreement
from stoker.tune.stretches import LEAST_STEPS, LEAST_STRETCHES, WARM_STEPS, length
from stoker.watch.cycle import Cycle
from stoker.watch.session import Plan, Session

# Times that the allocator found no memory and gave its cache back, in a run: more is thrashing, and no rate.
_MOST_RETRIES = 3
# How often that is looked at, at least: a step that thrashes may take seconds, and 50 of them minutes.
_LOOK_SECONDS = 1.0


def prepare(child: Child, argument: Mapping[str, Any]) -> None:
    """The hook of a trial's scratch run, in each of its ranks; `trial.hold` says with what."""
    session = Session(Plan(name="trial", root=Path(argument["runs"]), run_id=argument["run"]))
    session.start()
    atexit.register(session.finish, "done")  # of a script that ends before its rate is known
    changes.put(argument["settings"])
    _Measuring(child, session, argument).install()


class _Measuring:
    """Counts a rank's steps up to the last one: of optimizers that take turns, a step is a turn of all."""

    def __init__(self, child: Child, session: Session, argument: Mapping[str, Any]) -> None:
        self._child, self._session, self._argument = child, session, argument
        self._agreement = Agreement(child, argument["ranks"])
        self._cycle = Cycle[None]()
        self._optimizers: set[int] = set()
        self._updates = self._made = 0
        self._ready = False
        # When the samples of all ranks began to count, and how many steps were made by then.
        self._warm, self._warm_steps = 0.0, 0
        self._looked = time.monotonic()
        # Of the card, the most until then.
        self._share: float | None = None

    def install(self) -> None:
        """Into every optimizer's step."""
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        self._updates += 1
        self._child.progress(self._updates)
        if self._updates == 1:
            self._child.report("first", t=time.time())
        ended = self._cycle.add(id(optimizer), None)
        if id(optimizer) not in self._optimizers:
            self._optimizers.add(id(optimizer))
            if not self._ready:
                self._made = 0  # what was counted of the others were parts of the first step
        if not ended:
            return
        self._made += len(ended)
        self._agreement.note(self._made)
        if not self._ready and self._made >= WARM_STEPS and settled():
            self._ready = True
            self._agreement.be_ready()
            self._share = _share()
            _forget_peaks()
        if self._is_time_to_look() and (retries := _retries()) > _MOST_RETRIES:
            self._child.report("thrash", retries=retries)
            self._end(at_once=True)
        if self._agreement.leads and self._is_measured():
            self._agreement.call(self._made)
        if self._agreement.is_over(self._made):
            self._end()

    def _is_time_to_look(self) -> bool:
        now = time.monotonic()
        if self._made % LEAST_STEPS and now - self._looked < _LOOK_SECONDS:
            return False
        self._looked = now
        return True

    def _is_measured(self) -> bool:
        """Whether enough steps are made for a rate."""
        if not self._warm_steps:
            if self._ready and self._agreement.all_ready:
                self._warm, self._warm_steps = time.monotonic(), self._agreement.furthest(self._made)
                self._child.report("warm", steps=self._warm_steps)
            return False
        made = self._made - self._warm_steps
        spent = time.monotonic() - self._warm
        if made < LEAST_STEPS or made % LEAST_STEPS or spent < self._argument["seconds"]:
            return False
        told = [loader.to_json() for loader in self._session.account.loaders]
        return made >= LEAST_STRETCHES * length(told, made)

    def _end(self, *, at_once: bool = False) -> None:
        self._session.finish("done")
        told = changes.told(self._argument["settings"])
        shares = [share for share in (self._share, _share()) if share is not None]
        self._child.report("measured", told=told, vram_share=max(shares, default=None), **_peaks())
        if at_once:
            self._child.end(self._made)
        self._agreement.leave(self._made)


def _forget_peaks() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def _peaks() -> dict[str, Any]:
    """The most that was reserved on the card since the first steps; None without one."""
    return {"vram": torch.cuda.max_memory_reserved() if torch.cuda.is_initialized() else None}


def _share() -> float | None:
    """Of the card's memory, the most that was reserved since it was last forgotten; None without one."""
    if not torch.cuda.is_initialized():
        return None
    return torch.cuda.max_memory_reserved() / torch.cuda.get_device_properties().total_memory


def _retries() -> int:
    if not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))
