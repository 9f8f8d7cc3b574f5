"""Observe a transformers training: `Trainer(…, callbacks=[StokerCallback()])`.

The trainer tells its callbacks of a beginning and an end, and not of a failure; so `Trainer.train` is
wrapped, once a StokerCallback has been made, to close the record of a training that raised.
"""

from functools import wraps
from pathlib import Path
from typing import Any

from stoker.errors import MissingExtra, UsageError
from stoker.watch.record import Record
from stoker.watch.session import Plan
from stoker.watch.trainers import TrainerWatch, outcome_of, root_of

try:
    from transformers import Trainer, TrainerCallback
except ImportError as error:
    raise MissingExtra("transformers", "transformers", "stoker.watch.transformers") from error

__all__ = ["StokerCallback"]


class StokerCallback(TrainerCallback):  # type: ignore[misc]
    """Observes `trainer.train` and adds where its time goes to what the trainer logs.

        trainer = Trainer(model, args, train_dataset=…, callbacks=[StokerCallback()])

    Whenever the trainer logs its loss, `stoker/wait` and the other phases' shares, the rates and the
    ETA go with it to wherever it reports. `log=False` leaves the logs alone.
    """

    def __init__(
        self,
        *,
        name: str = "transformers",
        runs: str | Path | None = None,
        log: bool = True,
        live: bool = False,
    ) -> None:
        _wrap_train()
        self._name = name
        self._runs = runs
        self._log = log
        self._live = live
        self._watch: TrainerWatch | None = None

    @property
    def record(self) -> Record:
        """The last training's record, on disk."""
        if self._watch is None:
            raise UsageError("nothing has been observed yet: the record is there once the training has begun")
        return self._watch.record

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to observe: the model is prepared, a checkpoint restored, no data drawn."""
        self.end("interrupted", "the training began again")  # as auto_find_batch_size does after an OOM
        plan = Plan(name=self._name, root=root_of(self._runs))
        self._watch = TrainerWatch(plan, live=self._live and state.is_world_process_zero)
        session = self._watch.session
        optimizer = _innermost(kwargs.get("optimizer"))
        if optimizer is not None:
            session.observer.knows(optimizer)
        if state.max_steps > 0:
            self._watch.expect(max(0, state.max_steps - state.global_step), before=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Add the figures to what is logged of the training."""
        if self._log and self._watch is not None and logs is not None and "loss" in logs:
            logs.update({name: round(value, 4) for name, value in self._watch.figures().items()})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The training is over."""
        self.end("done")

    def end(self, outcome: str, error: str | None = None) -> None:
        """Complete the record, if one is open."""
        if self._watch is not None:
            self._watch.close(outcome, error)


def _innermost(optimizer: Any) -> Any:
    """The torch optimizer inside accelerate's: it alone makes the updates."""
    while getattr(optimizer, "optimizer", None) is not None:
        optimizer = optimizer.optimizer
    return optimizer


def _wrap_train() -> None:
    train = Trainer.train
    if getattr(train, "_stoker_wrapped", False):
        return

    @wraps(train)
    def observed(self: Any, *args: Any, **kwargs: Any) -> Any:
        ours = [each for each in self.callback_handler.callbacks if isinstance(each, StokerCallback)]
        # First, so that the reporters, which come before a user's callbacks, see the figures in the logs.
        for callback in ours:
            self.callback_handler.callbacks.remove(callback)
        self.callback_handler.callbacks[:0] = ours
        try:
            return train(self, *args, **kwargs)
        except BaseException as error:
            for callback in ours:
                callback.end(outcome_of(error), f"{type(error).__name__}: {error}")
            raise

    observed._stoker_wrapped = True  # type: ignore[attr-defined]
    Trainer.train = observed
