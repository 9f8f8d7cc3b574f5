"""Where the observer is tied into torch and threading: installed together, taken out together.

Every hook asks first whether there is an observer and whether this is its thread, and otherwise does
what stood there before. A forked child has no observer.
"""

import multiprocessing.queues
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from time import perf_counter_ns
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as torch_dataloader
from torch.utils.data._utils import pin_memory as torch_pin
from torch.utils.data._utils import worker as torch_worker

from stoker.feed.feed import Feed, FeedIterator
from stoker.watch import meetings
from stoker.watch.garbage import Garbage
from stoker.watch.observer import Observer
from stoker.watch.workers import (
    ReadingPickler,
    WorkerLoop,
    WorkerSpec,
    fetched_here,
    patch_fetchers,
    take_oldest,
    unpatch_fetchers,
)

_STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"
_active: Observer | None = None
_undo: list[Callable[[], None]] = []
_forked_once = False


def active() -> Observer | None:
    """The observer of this process, if one is at work."""
    return _active


def install(observer: Observer) -> None:
    """Tie an observer in. One at a time."""
    global _active, _forked_once
    if _active is not None:
        raise RuntimeError("an observer is installed already")
    _active = observer
    ReadingPickler.mailbox = observer.mailbox
    if not _forked_once and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget)
        _forked_once = True
    _hook_loaders()
    _hook_training(observer)
    _hook_threads()
    meetings.hook(_replace, active)
    garbage = Garbage(observer)
    garbage.start()
    _undo.append(garbage.stop)
    if torch.accelerator.is_available():
        _hook_copies()
    if torch.cuda.is_available():
        _hook_streams()


def uninstall() -> None:
    """Take everything out again, in reverse."""
    global _active
    if _active is not None:
        _active.roots.restore()
    _active = None
    ReadingPickler.mailbox = None
    while _undo:
        _undo.pop()()


@contextmanager
def unobserved() -> Iterator[None]:
    """What this process does in it is not the run's: for what Stoker itself tries."""
    global _active
    kept, _active = _active, None
    try:
        yield
    finally:
        _active = kept


def _forget() -> None:
    """A forked child is not the run."""
    global _active
    if _active is not None:
        _active.close()
    _active = None
    ReadingPickler.mailbox = None


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put `make(original)` where the original stood, until `uninstall`."""
    own = name in vars(owner)
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    _undo.append(lambda: setattr(owner, name, original) if own else delattr(owner, name))


# --- loaders -------------------------------------------------------------------------------------------


def _hook_loaders() -> None:
    _replace(DataLoader, "__iter__", _observed_iter)
    iterator = torch_dataloader._BaseDataLoaderIter
    _replace(iterator, "__init__", _observed_iterator_init)
    _replace(iterator, "__next__", _observed_next)
    _replace(torch_worker, "_worker_loop", lambda _: _worker_loop)
    _replace(multiprocessing.queues, "_ForkingPickler", lambda _: ReadingPickler)
    _replace(torch_pin, "pin_memory", _observed_pin)
    patch_fetchers()
    _undo.append(unpatch_fetchers)
    _replace(Feed, "__iter__", _observed_iter)
    _replace(FeedIterator, "__next__", _observed_feed_next)
    if _STATEFUL in sys.modules:
        _adopt_stateful(sys.modules[_STATEFUL])
    elif find_spec("torchdata") is not None:
        # Its classes are made when the script imports it; that is when they can be hooked.
        iterator.__init_subclass__ = classmethod(_on_iterator_subclass)  # type: ignore[assignment]
        _undo.append(lambda: delattr(iterator, "__init_subclass__"))


_worker_loop = WorkerLoop()
_iterators = 0


def _on_iterator_subclass(kind: type, /, **_: Any) -> None:
    if kind.__module__ == _STATEFUL and kind.__name__ == "_StatefulBaseDataLoaderIter":
        _adopt_stateful(sys.modules[_STATEFUL])


def _adopt_stateful(module: Any) -> None:
    """torchdata's StatefulDataLoader overrides what is hooked in torch's own."""
    _replace(module.StatefulDataLoader, "__iter__", _observed_iter)
    if hasattr(module, "_StatefulBaseDataLoaderIter"):
        _replace(module._StatefulBaseDataLoaderIter, "__next__", _observed_next)
    else:  # its module is still being imported: this is the class being made
        kind = torch_dataloader._BaseDataLoaderIter.__subclasses__()[-1]
        _replace(kind, "__next__", _observed_next)
    _replace(module, "_worker_loop", lambda _: _worker_loop)


def _observed_iter(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def __iter__(self: Any) -> Any:  # noqa: N807
        observer = _active
        if observer is None:
            return original(self)
        loader = observer.loaders.of(self)
        here = observer.begin_iter(loader)
        try:
            iterator = original(self)
        finally:
            observer.end_without_batch(here=here)
        if loader.length is None:
            loader.length = length_of(self)
        loader.workers = tuple(worker.pid for worker in getattr(iterator, "_workers", ()))
        # An epoch begins: what was prefetched for the last and never handed out is nobody's.
        getattr(iterator, "_stoker_box", {}).clear()
        iterator._stoker_loader = loader
        return iterator

    return __iter__


def length_of(loader: Any) -> int | None:
    """How many batches an epoch has; None where the loader cannot say."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def _observed_iterator_init(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        global _iterators
        observer, told = _active, None
        if observer is not None:
            _iterators += 1
            told = self._stoker_iterator = _iterators
            self._stoker_box = observer.mailbox.open(_iterators)
            self._stoker_loader = observer.loaders.of(loader)
        # Workers of a forked child, or of what Stoker tries, start by the same loop, and tell nobody.
        stateful = type(self).__module__ == _STATEFUL
        _worker_loop.start_for(WorkerSpec(iterator=told, stateful=stateful))
        original(self, loader, *args, **kwargs)

    return __init__


def _observed_next(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807
        observer = _active
        if observer is None:
            return original(self)
        try:
            loader = self._stoker_loader
        except AttributeError:  # made before there was an observer
            return original(self)
        here = observer.begin_draw(loader)
        try:
            batch = original(self)
        except BaseException:
            observer.end_without_batch(here=here)
            raise
        if self._num_workers:
            told = self._stoker_box.pop(self._rcvd_idx - 1, None) or take_oldest(self._stoker_box)
        else:
            told = fetched_here()
        samples = None
        if told is not None:
            samples = told[0]
            observer.told.append((loader.id, told))
        observer.end_draw(loader, count_samples(batch) if samples is None else samples, here=here)
        return batch

    return __next__


def _observed_feed_next(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807
        observer, loader = _active, getattr(self, "_stoker_loader", None)
        if observer is None or loader is None:
            return original(self)
        here = observer.begin_draw(loader)
        try:
            batch = original(self)
        except BaseException:
            observer.end_without_batch(here=here)
            raise
        observer.end_draw(loader, count_samples(batch), here=here)
        return batch

    return __next__


def count_samples(batch: Any) -> int | None:
    """How many samples a batch holds, by its first tensor's first dimension; None if there is none."""
    for _ in range(8):  # a batch nested deeper than this is not looked through
        shape = getattr(batch, "shape", None)
        if shape is not None:
            return int(shape[0]) if len(shape) else None
        if isinstance(batch, dict):
            batch = next(iter(batch.values()), None)
        elif isinstance(batch, (list, tuple)) and batch:
            batch = batch[0]
        else:
            return None
    return None


_pinning = threading.local()


def _observed_pin(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def pin_memory(data: Any, device: Any = None) -> Any:
        observer = _active
        if observer is None or getattr(_pinning, "inside", False):  # it calls itself for what it contains
            return original(data, device)
        _pinning.inside = True
        started = perf_counter_ns()
        try:
            return original(data, device)
        finally:
            _pinning.inside = False
            observer.mailbox.pinned(perf_counter_ns() - started)

    return pin_memory


# --- forward (through its optimizers), backward, update ---------------------------------------------------


def _hook_training(observer: Observer) -> None:
    _replace(Optimizer, "__init__", _observed_optimizer_init)
    before = register_optimizer_step_pre_hook(observer.before_step)
    after = register_optimizer_step_post_hook(observer.after_step)
    _undo.extend((before.remove, after.remove))
    _replace(torch.amp.GradScaler, "step", _observed_scaler_step)
    _replace(torch.autograd, "backward", _observed_backward)
    _replace(torch.autograd, "grad", _observed_backward)
    _replace(torch, "compile", _observed_compile)


def _observed_optimizer_init(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        if _active is not None:
            _active.knows(self)

    return __init__


def _observed_scaler_step(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        # A step that the scaler skips for its gradients' sake is still where the loop's step ends.
        observer = _active
        if observer is None:
            return original(self, optimizer, *args, **kwargs)
        observer.before_step(optimizer, (optimizer,), {})
        try:
            return original(self, optimizer, *args, **kwargs)
        finally:
            observer.after_step(optimizer)

    return step


def _observed_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        observer = _active
        if observer is None:
            return original(*args, **kwargs)
        return observer.timed_backward(original, args, kwargs)

    return backward


def _observed_compile(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def compile(*args: Any, **kwargs: Any) -> Any:
        compiled = original(*args, **kwargs)
        if _active is not None:
            _active.look_again()
            _hide_from_compiler()
        return compiled

    return compile


def _hide_from_compiler() -> None:
    """Backward always runs outside a compiled graph; its timer must not be traced into one."""
    for name in ("backward", "grad"):
        function = getattr(torch.autograd, name)
        if not getattr(function, "_torchdynamo_disable", False):
            setattr(torch.autograd, name, torch.compiler.disable(function, reason="timed by stoker"))


# --- waiting for another thread -----------------------------------------------------------------------------


def _hook_threads() -> None:
    # Queue.get, Event.wait and Future.result all stand in Condition.wait.
    _replace(threading.Condition, "wait", _observed_wait)
    _replace(queue, "SimpleQueue", lambda original: type("SimpleQueue", (_ObservedSimpleQueue, original), {}))


def _observed_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def wait(self: Any, timeout: float | None = None) -> Any:
        observer = _active
        if observer is None or not observer.draws_aside or not observer.begin_wait():
            return original(self, timeout)
        try:
            return original(self, timeout)
        finally:
            observer.end_wait()

    return wait


class _ObservedSimpleQueue:
    """`queue.SimpleQueue` is C: its `get` can only be watched in a subclass."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """As the original's."""
        inner: Any = super()
        observer = _active
        if observer is None or not observer.draws_aside or not observer.begin_wait():
            return inner.get(block, timeout)
        try:
            return inner.get(block, timeout)
        finally:
            observer.end_wait()


# --- copies, streams and graphs ------------------------------------------------------------------------


def _hook_copies() -> None:
    _replace(torch.Tensor, "to", _observed_to)
    _replace(torch.Tensor, "cuda", _observed_to)
    _replace(torch.Tensor, "copy_", _observed_copy)


def _observed_to(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        observer = _active
        if observer is None or not self.is_cpu or self.numel() * self.itemsize < observer.smallest_copy:
            return original(self, *args, **kwargs)
        return observer.timed_copy(original, (self, *args), kwargs)

    return to


def _observed_copy(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def copy_(self: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
        observer = _active
        if observer is None or self.is_cpu or not getattr(source, "is_cpu", False):
            return original(self, source, *args, **kwargs)
        if self.numel() * self.itemsize < observer.smallest_copy:
            return original(self, source, *args, **kwargs)
        return observer.timed_copy(original, (self, source, *args), kwargs)

    return copy_


def _hook_streams() -> None:
    _replace(torch.cuda.Stream, "wait_stream", _observed_stream_wait)
    _replace(torch.cuda.Stream, "wait_event", _observed_stream_wait)
    _replace(torch.cuda.CUDAGraph, "replay", _observed_replay)
    _replace(torch.cuda.CUDAGraph, "capture_begin", _observed_capture_begin)
    _replace(torch.cuda.CUDAGraph, "capture_end", _observed_capture_end)


def _observed_stream_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        observer = _active
        if observer is None or not observer.begin_stream_wait(self):
            return original(self, *args, **kwargs)
        try:
            return original(self, *args, **kwargs)
        finally:
            observer.end_stream_wait()

    return wait


def _observed_replay(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def replay(self: Any) -> None:
        if _active is None:
            original(self)
        else:
            _active.timed_replay(self, original)

    return replay


def _observed_capture_begin(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        observer = _active
        if observer is None:
            original(self, *args, **kwargs)
            return
        observer.capture(self)
        try:
            original(self, *args, **kwargs)
        except BaseException:
            observer.capture(None)
            raise

    return capture_begin


def _observed_capture_end(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def capture_end(self: Any) -> None:
        try:
            original(self)
        finally:
            if _active is not None:
                _active.capture(None)

    return capture_end
