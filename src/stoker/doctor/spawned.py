"""Ranks that a script starts by itself, with multiprocessing: each gets the trial once it has joined them.

`torch.multiprocessing.spawn` and `Process` with spawn or forkserver are followed. A process is known as a
rank once it is one: after `init_process_group`, or at the latest when a model is wrapped or a step made,
where the script has its own name for that function. Forked ones are copies of a process that is observed
already, and are left alone.
"""

import multiprocessing
import os
from collections.abc import Callable
from functools import partial, wraps
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stoker.scratch import imports

if TYPE_CHECKING:
    from stoker.scratch import Child

_LOADERS = "torch.utils.data"


def run_of_ranks(run: str) -> str:
    """The record of the ranks that a run's script has started."""
    return f"{run}-ranks"


def follow(child: "Child", argument: dict[str, Any]) -> None:
    """Have every process that the script starts from now on look whether it is a rank."""
    start, owner = BaseProcess.start, os.getpid()

    @wraps(start)
    def started(process: Any) -> None:
        if os.getpid() == owner and _is_new(process) and not _makes_batches(process._target):
            process._target = partial(_run, str(child.folder), argument, process._target)
        start(process)

    BaseProcess.start = started  # type: ignore[method-assign, assignment]


def _is_new(process: Any) -> bool:
    """Whether it is started afresh, and not forked."""
    method = getattr(type(process), "_start_method", None) or multiprocessing.get_start_method()
    return method in ("spawn", "forkserver")


def _makes_batches(target: Any) -> bool:
    return target is None or str(getattr(target, "__module__", "")).startswith(_LOADERS)


def _run(work: str, argument: dict[str, Any], target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What such a process runs: the script's own function, with an eye on what it becomes."""
    imports.install({"torch.distributed": partial(_watch, Path(work), argument)})
    return target(*args, **kwargs)


def _watch(work: Path, argument: dict[str, Any], dist: ModuleType) -> None:
    """Become a rank at the first sign of being one."""
    from torch.distributed import distributed_c10d
    from torch.nn import parallel
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    become = partial(_become_rank, work, argument)
    join, kind = distributed_c10d.init_process_group, vars(parallel)["DistributedDataParallel"]
    make = kind.__init__

    @wraps(join)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        join(*args, **kwargs)
        become()

    @wraps(make)
    def __init__(model: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        become()
        make(model, *args, **kwargs)

    for place in (dist, distributed_c10d):
        place.init_process_group = init_process_group  # type: ignore[attr-defined]
    kind.__init__ = __init__
    register_optimizer_step_pre_hook(lambda *_: become())


_ranks: list[int] = []


def _become_rank(work: Path, argument: dict[str, Any]) -> None:
    import torch.distributed as dist

    if _ranks or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    from stoker.doctor.parts import Parts
    from stoker.doctor.rank_trial import begin
    from stoker.scratch.channel import Sender
    from stoker.scratch.child import Child
    from stoker.watch.session import Plan, Session

    rank, world = dist.get_rank(), dist.get_world_size()
    _ranks.append(rank)
    child = Child(Sender(work, rank=rank), steps=None)
    run = run_of_ranks(argument["run"])
    plan = Plan(
        name="doctor", root=Path(argument["runs"]), run_id=run, rank=rank, local_rank=rank, world_size=world
    )
    session = Session(plan)
    session.start()
    child.report("ranks", world=world)
    begin(child, session, Parts(**argument["parts"]), {**argument, "run": run, "ranks": world})
