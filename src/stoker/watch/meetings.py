"""Collectives of all ranks as this one meets them: when it came, and when it was let go.

A rank is at a collective once it has nothing left to do but wait for it. The functions of torch.distributed
are wrapped. DistributedDataParallel calls its own from C++ while gradients are still computed, and waits for
them in a callback that autograd's engine runs when the last of them is there. Callbacks run in the order in
which they were asked for, so one that is asked for as the pass begins runs just before: there the rank has
come, and when the pass is over it is let go. No communication hook is registered, and no sum changes.

On a GPU the host is long past both: an event on the training stream tells each of them.
"""

import sys
import weakref
from collections.abc import Callable, Iterable
from functools import partial, wraps
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn import parallel

from stoker.watch.notes import ARRIVED, BUFFERS, DDP, FUNCTIONS, RELEASED, Moment, packed

if TYPE_CHECKING:
    from stoker.watch.observer import Observer

_COMPILED_BACKWARD = "torch._dynamo.compiled_autograd"
_is_compiling = torch.compiler.is_dynamo_compiling

Replace = Callable[[Any, str, Callable[[Any], Any]], None]


class Meetings:
    """Those of one process, noted on the thread that trains.

    What cannot be timed is counted: `of_some_ranks` alone, `untimed` ones, which go on beside the loop or on
    another stream.
    """

    def __init__(self, observer: "Observer") -> None:
        self._observer = observer
        self._models: list[weakref.ref[Any]] = []
        self._buffers: dict[int, int] = {}
        self._expected = False
        self._nested = False
        self._here: tuple[int, Moment] | None = None
        self._inside = False
        self.of_some_ranks = 0
        self.untimed = 0

    def to_json(self) -> dict[str, Any]:
        """What was seen of them, as `rank.json` holds it."""
        clock = "host" if self._observer.device is None else "device"
        return {"clock": clock, "of_some_ranks": self.of_some_ranks, "untimed": self.untimed}

    # --- in a backward pass -------------------------------------------------------------------------

    def look_among(self, modules: Iterable[Any]) -> None:
        """Of these, the gradients of some are brought together in their backward passes."""
        kind = vars(parallel)["DistributedDataParallel"]
        for model in modules:
            if not isinstance(model, kind) or not self.is_of_all(model.process_group):
                continue
            if not any(ref() is model for ref in self._models):
                self._models = [ref for ref in self._models if ref() is not None]
                self._models.append(weakref.ref(model))
                self._buffers[id(model)] = sum(buffer.nbytes for buffer in model.buffers())

    def expect(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A backward pass begins: have the engine tell when nothing is left to compute in it.

        What comes back is for `over`; None where no gradients are brought together in this pass.
        """
        if not self._models or getattr(call, "__name__", "") != "backward":  # by `grad` they are not
            return None
        if self._expected:  # a pass within a pass, whose end may be where the ranks wait
            self._nested = True
            return None
        for ref in self._models:
            model = ref()
            if model is not None and model.require_backward_grad_sync:
                break
        else:
            return None
        compiled = sys.modules.get(_COMPILED_BACKWARD)
        if compiled is not None and compiled.compiled_autograd_enabled:
            self.untimed += 1
            return None
        root = args[0] if args else kwargs.get("tensors")
        if isinstance(root, (tuple, list)):
            root = root[0] if root else None
        register = getattr(getattr(root, "grad_fn", None), "register_prehook", None)
        if register is None:
            return None
        self._expected, self._nested, self._here = True, False, None
        return register(self._pass_begins)

    def over(self, handle: Any, now: int, moment: Moment) -> None:
        """That pass is over: this rank was let go just then."""
        handle.remove()
        self._expected = False
        here, self._here = self._here, None
        if here is None:  # it raised
            return
        if self._nested:
            self.untimed += 1
            return
        then, there = here
        more = packed(DDP, self._observer.gradient_bytes)
        self._observer.take((ARRIVED, then, there, more))
        self._observer.take((RELEASED, now, moment, True))

    def _pass_begins(self, _: Any) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(self._has_come)

    def _has_come(self) -> None:
        # On whichever thread of the engine's; the one that trains stands in the pass meanwhile.
        now, observer = perf_counter_ns(), self._observer
        self._here = now, None if observer.device is None else observer.mark(now)

    # --- by a call ----------------------------------------------------------------------------------

    def meet(self, kind: int, call: Callable[[], Any], first: torch.Tensor | None, size: int | None) -> Any:
        """A collective is called. One that is only begun by it is none to wait for.

        `first` is one of the tensors that it moves, `size` their bytes.
        """
        observer = self._observer
        if self._inside or get_ident() != observer.thread:
            return call()
        self._inside = True
        try:
            if not self._is_timed(first):
                self.untimed += 1
                return call()
            now = perf_counter_ns()
            moment = None if observer.device is None else observer.mark(now)
            observer.take((ARRIVED, now, moment, packed(kind, size)))
            waited = False
            try:
                work = call()
                waited = work is None
            finally:
                now = perf_counter_ns()
                moment = None if observer.device is None else observer.mark(now)
                observer.take((RELEASED, now, moment, waited))
            self.untimed += not waited
            return work
        finally:
            self._inside = False

    def meet_by_buffers(self, model: Any, call: Callable[[], Any]) -> Any:
        """A model's buffers are brought into line with those of one rank."""
        first = next(iter(getattr(model, "modules_buffers", ())), None)
        return self.meet(BUFFERS, call, first, self._buffers.get(id(model)))

    def is_of_all(self, group: Any) -> bool:
        """Whether a collective of this group is one of all ranks, of which there are several."""
        if not dist.is_initialized():
            return False
        world = dist.get_world_size()
        if group is None:
            return world > 1
        if not isinstance(group, dist.ProcessGroup):
            return False  # a group that this rank is not in
        of_all = group.size() == world
        self.of_some_ranks += not of_all
        return of_all and world > 1

    def _is_timed(self, first: torch.Tensor | None) -> bool:
        """Whether the clock that this run has tells of it: the host's, or events on the training stream."""
        device = self._observer.device
        if device is None:
            return first is None or first.is_cpu
        if first is None or first.is_cpu or device.capturing:
            return False
        return device.on_training_stream()


# --- where they are tied in -------------------------------------------------------------------------------


def hook(replace: Replace, active: Callable[[], "Observer | None"]) -> None:
    """Put the wrappers in place, by `replace`; each asks first whether there is an observer."""
    if not dist.is_available():
        return
    from torch.distributed import distributed_c10d

    for kind, name in enumerate(FUNCTIONS, BUFFERS + 1):
        whole = getattr(distributed_c10d, name, None)
        if whole is not None:
            timed = _observed(active, kind, whole)
            for place in (dist, distributed_c10d):
                replace(place, name, lambda _, timed=timed: timed)  # type: ignore[misc]
    model = vars(parallel)["DistributedDataParallel"]
    replace(model, "__init__", partial(_observed_init, active))
    replace(model, "_sync_buffers", partial(_observed_buffers, active))


def _observed(
    active: Callable[[], "Observer | None"], kind: int, function: Callable[..., Any]
) -> Callable[..., Any]:
    @wraps(function)
    def collective(*args: Any, **kwargs: Any) -> Any:
        if _is_compiling() or (observer := active()) is None:
            return function(*args, **kwargs)
        group = kwargs.get("group") or next((a for a in args if isinstance(a, dist.ProcessGroup)), None)
        if not observer.meetings.is_of_all(group):
            return function(*args, **kwargs)
        moved = _tensors(args, kwargs)
        size = sum(tensor.nbytes for tensor in moved) if moved else None
        call = partial(function, *args, **kwargs)
        return observer.meetings.meet(kind, call, moved[0] if moved else None, size)

    return collective


def _observed_init(
    active: Callable[[], "Observer | None"], original: Callable[..., None]
) -> Callable[..., None]:
    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        observer = active()
        if observer is not None:
            observer.meetings.look_among([self])

    return __init__


def _observed_buffers(
    active: Callable[[], "Observer | None"], original: Callable[..., Any]
) -> Callable[..., Any]:
    @wraps(original)
    def _sync_buffers(self: Any) -> Any:
        if _is_compiling() or (observer := active()) is None:
            return original(self)
        if not observer.meetings.is_of_all(self.process_group):
            return original(self)
        return observer.meetings.meet_by_buffers(self, partial(original, self))

    return _sync_buffers


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Of what a collective is given, the first tensor or the first list of them: what it moves."""
    for given in (*args, *kwargs.values()):
        if isinstance(given, torch.Tensor):
            return [given]
        if isinstance(given, list) and given and isinstance(given[0], torch.Tensor):
            return given
    return []
