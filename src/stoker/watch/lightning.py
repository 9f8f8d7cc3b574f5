"""Observe a Lightning training: `Trainer(callbacks=[StokerCallback()])`.

Lightning calls `training_step`, not the module, and runs it inside a closure that it hands to the
optimizer. `forward` is therefore timed on the module (for `self(x)`) and on those of its children
that are trained (for `self.net(x)`); what else `training_step` does is `other`, as in a plain loop.
Where a wrapper such as DDP stands around the module, its call contains the whole `training_step`,
so there the children alone are timed. A compiled module cannot be looked into: there the whole
`training_step` is `forward`.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any

from torch import nn

from stoker.errors import MissingExtra, UsageError
from stoker.watch.record import Record
from stoker.watch.session import Plan
from stoker.watch.trainers import TrainerWatch, outcome_of, root_of

__all__ = ["StokerCallback"]


def _callback_class() -> Any:
    """The Callback of the package that the script uses; hooks are called by name, so either serves both."""
    packages = ("lightning.pytorch", "pytorch_lightning")
    for name in packages:
        if name in sys.modules:
            return import_module(name).Callback
    for name in packages:
        if find_spec(name.partition(".")[0]) is not None:
            return import_module(name).Callback
    raise MissingExtra("lightning", "lightning", "stoker.watch.lightning")


class StokerCallback(_callback_class()):  # type: ignore[misc]
    """Observes `trainer.fit` and logs where its time goes.

        trainer = Trainer(callbacks=[StokerCallback()])

    Every `every_n_steps` steps (by default as often as the trainer logs) `stoker/wait` and the other
    phases' shares, the rates and the ETA go to the trainer's loggers. `log=False` leaves them alone.
    """

    def __init__(
        self,
        *,
        name: str = "lightning",
        runs: str | Path | None = None,
        every_n_steps: int | None = None,
        log: bool = True,
        live: bool = False,
    ) -> None:
        super().__init__()
        self._name = name
        self._runs = runs
        self._every = every_n_steps
        self._log = log
        self._live = live
        self._watch: TrainerWatch | None = None
        self._logged_step = -1
        self._compiled_in: Any = None

    @property
    def record(self) -> Record:
        """The last training's record, on disk."""
        if self._watch is None:
            raise UsageError("nothing has been observed yet: the record is there once the training has begun")
        return self._watch.record

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to observe: the strategy is set up, no data has been drawn."""
        self._end("interrupted", "another fit began")
        plan = Plan(
            name=self._name,
            root=root_of(self._runs),
            rank=trainer.global_rank,
            local_rank=trainer.local_rank,
            world_size=trainer.world_size,
        )
        if trainer.world_size == 1:
            self._watch = self._begin(plan)
        elif trainer.global_rank == 0:
            self._watch = self._begin(plan)
            trainer.strategy.broadcast(self._place())
        else:  # rank 0 has named the run, and may have joined one
            run_id, root = trainer.strategy.broadcast(None)
            self._watch = self._begin(replace(plan, run_id=run_id, root=Path(root)))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """A checkpoint has been restored by now: the steps it holds are not to come again."""
        watch = self._watch
        if watch is None:
            return
        observer = watch.session.observer
        for optimizer in trainer.optimizers:
            observer.knows(optimizer)
        observer.find_roots()
        if getattr(pl_module, "_compiler_ctx", None) is not None:
            self._time_training_step(trainer.strategy, pl_module)
        else:
            observer.roots.set(_called_modules(trainer, pl_module))
        # A checkpoint taken at a batch's end counts its update and not yet the batch.
        made = trainer.global_step if pl_module.automatic_optimization else _stepped_batches(trainer)
        self._logged_step = -1
        total = _total_steps(trainer)
        if total is not None:
            watch.expect(max(0, total - made), before=made)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        """Log now and then."""
        if not self._log or self._watch is None:
            return
        every = self._every or trainer.log_every_n_steps
        step = _stepped_batches(trainer)  # this batch not yet among them: Lightning counts it afterwards
        if not every or step == self._logged_step or (step + 1) % every:
            return
        self._logged_step = step
        figures = self._watch.figures()
        for logger in trainer.loggers:
            logger.log_metrics(figures, step=step)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """The training is over."""
        self._end("done")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The training ends with an error, or was stopped."""
        self._end(outcome_of(exception), f"{type(exception).__name__}: {exception}")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Whatever way it ended."""
        if stage == "fit":
            self._end("done")

    def _begin(self, plan: Plan) -> TrainerWatch:
        watch = TrainerWatch(plan, live=self._live and plan.rank == 0)
        watch.start()
        return watch

    def _place(self) -> tuple[str, str]:
        assert self._watch is not None
        session = self._watch.session
        return session.id, str(session.folder.parent)

    def _end(self, outcome: str, error: str | None = None) -> None:
        if self._compiled_in is not None:
            del self._compiled_in.training_step
            self._compiled_in = None
        if self._watch is not None:
            self._watch.close(outcome, error)

    def _time_training_step(self, strategy: Any, pl_module: nn.Module) -> None:
        assert self._watch is not None
        observer = self._watch.session.observer
        training_step = strategy.training_step

        def timed(*args: Any, **kwargs: Any) -> Any:
            return observer.timed_call(pl_module, training_step, args, kwargs)

        strategy.training_step = timed
        self._compiled_in = strategy

    def __getstate__(self) -> dict[str, Any]:
        # A strategy that spawns its ranks pickles the callbacks: what is observed stays in its process.
        return {**self.__dict__, "_watch": None, "_compiled_in": None}


def _called_modules(trainer: Any, pl_module: nn.Module) -> list[nn.Module]:
    """The modules whose call is the forward pass, outermost first."""
    trained = {id(p) for o in trainer.optimizers for group in o.param_groups for p in group["params"]}
    children = [
        module
        for module in _without_containers(pl_module)
        if any(id(parameter) in trained for parameter in module.parameters())
    ]
    wrapper = trainer.strategy.model
    if wrapper is pl_module:
        return [pl_module, *children]
    return children or [wrapper]


def _without_containers(module: nn.Module) -> Iterator[nn.Module]:
    """A module's children; a list or dict of modules, which nobody calls, gives its own."""
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from _without_containers(child)
        else:
            yield child


def _stepped_batches(trainer: Any) -> int:
    """Batches that ended in an update, over all resumed runs: the step that Lightning itself logs by."""
    loop = getattr(trainer.fit_loop, "epoch_loop", None)
    return int(getattr(loop, "_batches_that_stepped", trainer.global_step))


def _total_steps(trainer: Any) -> int | None:
    """Batches that will have stepped when the training ends; None where the trainer cannot say."""
    try:
        total = trainer.estimated_stepping_batches
    except Exception:  # noqa: BLE001  # a changing accumulation has no estimate; an ETA is not worth a run
        return None
    if not isfinite(total) or total < 0:
        return None
    if total == trainer.max_steps and not trainer.lightning_module.automatic_optimization:
        return None  # max_steps then counts every optimizer's updates, and a step here is a batch's
    return int(total)
