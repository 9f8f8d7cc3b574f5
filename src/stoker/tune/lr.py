"""The LR finder: the learning rate rises from step to step, and where the loss falls fastest is suggested.

curve = stoker.tune.find_lr(["train.py"])            # the script's own loop, in a scratch process
curve = Finder(model, optimizer, loss, loader).find()  # in this process; all is put back afterwards
"""

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isclose, nan
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from stoker.errors import TrialFailed, UsageError
from stoker.scratch import Limits, Result, run
from stoker.scratch import Plan as ScratchPlan
from stoker.tune import optimizer_state
from stoker.tune.aside import notes_of
from stoker.tune.lr_curve import HIGH, LEAST_POINTS, LOW, STEPS, Curve, Running, Sweep
from stoker.tune.lr_rates import Rates
from stoker.tune.lr_sweep import as_argument

_HOOK = "stoker.tune.lr_sweep:prepare"


def find_lr(
    command: Sequence[str],
    *,
    low: float = LOW,
    high: float = HIGH,
    steps: int = STEPS,
    seconds: float = 300.0,
    offline: bool = False,
) -> Curve:
    """Sweep the rate in a script's own loop, aside: no file of its lasts; `offline`, nothing it sends."""
    sweep = Sweep(low=low, high=high, steps=steps)
    result = run(
        ScratchPlan(
            command=tuple(command),
            hook=_HOOK,
            argument=as_argument(sweep),
            limits=Limits(seconds=seconds),
            offline=offline,
        )
    )
    points = [message.body for message in result.messages if message.kind == "point"]
    told = {message.kind: message.body for message in result.messages}
    notes = notes_of(result)
    if len(points) < LEAST_POINTS and points and "stopped" in told:
        said = _gone(" ".join(command), sweep, points, told["stopped"]["why"])
        raise TrialFailed("; ".join((said, *notes)))
    if len(points) < LEAST_POINTS:
        raise TrialFailed("; ".join((_too_short(" ".join(command), len(points), result), *notes)))
    early = f"the script made {len(points)} of {steps} steps ({result.outcome}: {result.reason})"
    return Curve(
        rates=tuple(point["lr"] for point in points),
        losses=tuple(nan if point["loss"] is None else point["loss"] for point in points),
        stopped=told["stopped"]["why"] if "stopped" in told else early,
        ratios=tuple(told["groups"]["ratios"]),
        notes=notes,
    )


def _gone(command: str, sweep: Sweep, points: Sequence[Mapping[str, Any]], why: str) -> str:
    """What to say of a sweep that ended itself: no longer training would have made it longer."""
    told = f"{command}: the sweep ended at its step {len(points)}: {why}"
    if len(points) == 1:
        return (
            f"{told}, before the rate had changed anything. What to do: run the script as it stands first; "
            "its loss must be a number"
        )
    lr = points[-1]["lr"]
    told += f", at a rate of {lr:.1e}; {LEAST_POINTS} steps are needed"
    if isclose(lr, sweep.high):
        return f"{told}. What to do: more --lr-steps, since a loss was seen in {len(points)} of them alone"
    return f"{told}. What to do: a lower --lr-range, as in {sweep.low / 1000:.0e}:{lr:.0e}"


def _too_short(command: str, points: int, result: Result) -> str:
    if result.steps and not points:
        return (
            f"{command}: {result.steps} steps, and no loss of one number went backward. What to do: sweep in "
            "your own code with stoker.tune.lr.Finder"
        )
    said = result.stderr_tail.strip().splitlines()
    return (
        f"{command} made {points} steps ({result.outcome}: {result.reason}), too few for a sweep: "
        f"{LEAST_POINTS} are needed" + (f"; it said: {said[-1]}" if said else "")
        + ". What to do: run it as it stands first, let it train longer, or give it more time"
    )  # fmt: skip


class Finder:
    """Sweeps the rate on a model and optimizer of this process, and puts everything back, bit by bit.

    `loss` takes the model and a batch, and gives the loss. Put back are parameters, buffers, gradients,
    training modes, the optimizer, `scaler`, the global generators, and those of the loader and its sampler.
    Schedulers are not stepped. What a dataset or a loss keeps to itself is not known here.

    >>> finder = Finder(model, optimizer, lambda model, batch: ..., loader)    # doctest: +SKIP
    >>> finder.find().lr                                                       # doctest: +SKIP
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loss: Callable[[nn.Module, Any], torch.Tensor],
        loader: Iterable[Any],
        *,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        if not callable(loss):
            raise UsageError(f"loss is {loss!r}: give a function that takes the model and a batch")
        if not isinstance(loader, DataLoader) and iter(loader) is loader:
            raise UsageError("the loader is an iterator, which a sweep would use up: give what it is made of")
        self._model, self._optimizer, self._loss = model, optimizer, loss
        self._loader, self._scaler = loader, scaler

    def find(self, *, low: float = LOW, high: float = HIGH, steps: int = STEPS) -> Curve:
        """The curve; the loader is begun anew as often as needed."""
        sweep = Sweep(low=low, high=high, steps=steps)
        rates, losses, stopped = [], [], "the highest rate is reached"
        with self._kept():
            groups, running = Rates(self._optimizer), Running()
            self._model.train()
            for step, batch in zip(range(steps), self._batches(), strict=False):
                groups.set(sweep.at(step))
                loss = self._step(batch)
                rates.append(sweep.at(step))
                losses.append(loss)
                if why := running.gone(loss):
                    stopped = why
                    break
        if not rates:
            raise UsageError("the loader gave no batch: there is nothing to sweep over")
        return Curve(rates=tuple(rates), losses=tuple(losses), stopped=stopped, ratios=groups.ratios)

    def _batches(self) -> Iterator[Any]:
        # A copy: a loader whose workers live on would begin its next epoch otherwise than one never used.
        loader: Any = copy.copy(self._loader) if isinstance(self._loader, DataLoader) else self._loader
        if isinstance(loader, DataLoader):
            vars(loader)["_iterator"] = None
        while True:
            given = 0
            for batch in loader:
                given += 1
                yield batch
            if not given:
                return

    def _step(self, batch: Any) -> float:
        with torch.enable_grad():
            self._optimizer.zero_grad()
            loss = self._loss(self._model, batch)
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
                raise UsageError(f"loss gave {type(loss).__name__}, not a tensor of one number")
            value = float(loss.detach())
            if self._scaler is None:
                loss.backward()
                self._optimizer.step()
            else:
                self._scaler.scale(loss).backward()
                self._scaler.step(self._optimizer)
                self._scaler.update()
        return value

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Everything as it is now, afterwards too."""
        modules = list(self._model.modules())
        modes = [module.training for module in modules]
        buffers = [
            (module, name, buffer, None if buffer is None else buffer.detach().clone())
            for module in modules
            for name, buffer in module._buffers.items()
        ]
        owned = (p for group in self._optimizer.param_groups for p in group["params"])
        parameters = {id(p): p for p in (*self._model.parameters(), *owned)}.values()
        values = [(p, p.detach().clone(), p.grad, _copied(p.grad)) for p in parameters]
        put_optimizer_back = optimizer_state.keep(self._optimizer)
        stepped = getattr(self._optimizer, "_opt_called", None)  # by which a scheduler warns
        scaler = None if self._scaler is None else copy.deepcopy(self._scaler.state_dict())
        generators = [(one, one.get_state()) for one in _generators_of(self._loader)]
        of_numpy, of_random = np.random.get_state(), random.getstate()
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            try:
                yield
            finally:
                with torch.no_grad():
                    for parameter, value, grad, kept in values:
                        parameter.copy_(value)
                        parameter.grad = grad
                        if grad is not None and kept is not None:
                            grad.copy_(kept)
                    for module, name, buffer, before in buffers:
                        module._buffers[name] = buffer
                        if buffer is not None and before is not None:
                            buffer.copy_(before)
                for module, mode in zip(modules, modes, strict=True):
                    module.training = mode
                put_optimizer_back()
                if stepped is not None:
                    self._optimizer._opt_called = stepped  # type: ignore[attr-defined]
                if self._scaler is not None and scaler is not None:
                    self._scaler.load_state_dict(scaler)
                for generator, state in generators:
                    generator.set_state(state)
                np.random.set_state(of_numpy)
                random.setstate(of_random)


def _copied(grad: torch.Tensor | None) -> torch.Tensor | None:
    return None if grad is None else grad.detach().clone()


def _generators_of(loader: Any) -> list[torch.Generator]:
    """Of a loader, its sampler, and the one that its batches are made of."""
    batches = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
    found = (getattr(owner, "generator", None) for owner in owners)
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())
