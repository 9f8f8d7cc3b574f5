"""`stoker.Watch`: observe a loop from code or a notebook.

for batch in stoker.Watch(loader):            # a loader, over as many epochs as you iterate it
    ...

with stoker.Watch(model=model, optimizer=optimizer) as watch:     # a loop without a DataLoader
    for step in range(1000):
        with watch.loading():
            batch = make_batch()
        ...
"""

import atexit
import html
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import index
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader

from stoker.errors import UsageError
from stoker.watch import hooks
from stoker.watch.live import plain_line, summary
from stoker.watch.notebook import leave_out_pauses
from stoker.watch.phases import PHASES
from stoker.watch.record import Record, default_root
from stoker.watch.session import Plan, Session
from stoker.watch.words import percent

_current: Session | None = None
_latest: Session | None = None


def latest() -> Session | None:
    """What this process is observed by now, or was last."""
    from stoker.watch import launcher

    return _latest if _latest is not None else launcher.current()


class Watch:
    """Observes this process from the first use to `close()`, the end of its `with`, or the process's end.

    Under `stoker run` it joins the run that is observed already. In one process one run is observed
    at a time: a new Watch ends the one before it.
    """

    def __init__(
        self,
        loader: Iterable[Any] | None = None,
        *,
        model: nn.Module | None = None,
        optimizer: Any = None,
        name: str = "watch",
        total_steps: int | None = None,
        runs: str | Path | None = None,
        live: bool = False,
    ) -> None:
        if loader is not None and not hasattr(loader, "__iter__"):
            raise UsageError(f"Watch takes a loader to iterate over, not {type(loader).__name__}")
        self._loader = loader
        self._model = model
        self._optimizers = [] if optimizer is None else _as_list(optimizer)
        root = default_root() if runs is None else Path(runs)
        self._plan = Plan(name=name, root=root, total_steps=total_steps)
        self._live = live
        self._session: Session | None = None
        self._owner = False
        self._pid = 0
        self._leave_notebook: Callable[[], None] = lambda: None

    # --- life ---------------------------------------------------------------------------------------

    def start(self) -> "Watch":
        """Begin to observe; iterating or `with` does it for you."""
        global _current, _latest
        if self._session is not None:
            return self
        if hooks.active() is not None and _current is None:
            from stoker.watch import launcher

            self._session = launcher.current()
        if self._session is None:
            if _current is not None:
                _current.finish("interrupted", error="another Watch began")
            self._session = _current = Session(self._plan, live=2 if self._live else None)
            self._owner = True
            self._pid = os.getpid()
            self._session.start()
            self._leave_notebook = leave_out_pauses(self._session)
            atexit.register(self.close)
        _latest = self._session
        observer = self._session.observer
        if self._model is not None:
            observer.roots.set([self._model])
            observer.roots.fixed = True
        for optimizer in self._optimizers:
            observer.knows(optimizer)
        return self

    def close(self, outcome: str = "done", error: str | None = None) -> None:
        """End the run and complete its record."""
        global _current
        if self._owner and self._pid != os.getpid():
            return  # a forked child leaves; the run is its parent's
        if self._owner and self._session is not None and not self._session.finished:
            self._leave_notebook()
            self._session.finish(outcome, error=error)
            _current = None
            atexit.unregister(self.close)

    def __enter__(self) -> "Watch":
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            interrupted = issubclass(kind, KeyboardInterrupt)
            self.close("interrupted" if interrupted else "failed", f"{kind.__name__}: {error}")

    # --- the loop -------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        if self._loader is None:
            raise UsageError("this Watch has no loader to iterate: make it with stoker.Watch(loader)")
        self.start()
        return self.data(self._loader)

    def __bool__(self) -> bool:
        return True  # not the loader's length, which there may be none of

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def data(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Iterate over any loader with its waits timed. A DataLoader is timed by itself."""
        session = self.start()._session
        assert session is not None
        if isinstance(loader, DataLoader):
            return iter(loader)
        return _timed(session, loader)

    @contextmanager
    def loading(self, samples: int | None = None) -> Iterator[None]:
        """What is done inside is waiting for data: for loops that make their own batches."""
        session = self.start()._session
        assert session is not None
        observer = session.observer
        loader = observer.loaders.of(self)
        samples = None if samples is None else index(samples)
        here = observer.begin_draw(loader)
        try:
            yield
        except BaseException:
            observer.end_without_batch(here=here)
            raise
        observer.end_draw(loader, samples, here=here)

    def expect(self, steps: int, *, before: int | None = None) -> None:
        """So many steps are still to come, for the ETA, after `before` that the resumed runs had made."""
        session = self.start()._session
        assert session is not None
        session.expect(steps, before=before)

    def step(self) -> None:
        """A step has ended: for loops that update their weights without torch.optim."""
        session = self.start()._session
        assert session is not None
        session.observer.mark_step()

    # --- what it found ----------------------------------------------------------------------------------

    @property
    def record(self) -> Record:
        """The record so far, on disk."""
        if self._session is None:
            raise UsageError("this Watch has not begun: iterate over it, or use it in a with statement")
        return Record.open(self._session.folder)

    def summary(self) -> None:
        """Print where the time went."""
        if self._session is None:
            raise UsageError("this Watch has not begun: iterate over it, or use it in a with statement")
        summary(self._session, Console())

    def __repr__(self) -> str:
        return f"<stoker.Watch {'not begun' if self._session is None else plain_line(self._session.account)}>"

    def _repr_html_(self) -> str:
        if self._session is None:
            return "<p>stoker.Watch: not begun</p>"
        tally = self._session.account.tally
        rows = "".join(
            f"<tr><th style='text-align:left'>{name}</th><td>{percent(share)}</td>"
            f"<td style='text-align:left'>{'█' * round((share or 0) * 40)}</td></tr>"
            for name, share in ((name, tally.shares()[name]) for name in PHASES)
        )
        said = html.escape(plain_line(self._session.account, shares=False))
        return (
            f"<p>{said}</p><table>{rows}</table><p><code>{html.escape(str(self._session.folder))}</code></p>"
        )


def _timed(session: Session, loader: Iterable[Any]) -> Iterator[Any]:
    observer = session.observer
    entry = observer.loaders.of(loader)
    here = observer.begin_iter(entry)
    try:
        iterator = iter(loader)
    finally:
        observer.end_without_batch(here=here)
    if entry.length is None:
        entry.length = hooks.length_of(loader)
    while True:
        here = observer.begin_draw(entry)
        try:
            batch = next(iterator)
        except StopIteration:
            observer.end_without_batch(here=here)
            return
        except BaseException:
            observer.end_without_batch(here=here)
            raise
        observer.end_draw(entry, hooks.count_samples(batch), here=here)
        yield batch


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
