"""Batches of the loader's dataset, made once more, by a process like those that made them.

Where the loader forks workers, a forked helper makes them, in the state in which a worker begins; a dataset
that hangs or dies there costs no more than that helper. Where the loader has no workers, or starts them
otherwise (a spawned one would take seconds to start), the process that trains does.
"""

import multiprocessing
import random
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.utils.data import _utils as torch_data
from torch.utils.data import dataloader as torch_dataloader

from stoker.doctor.experiments.counters import read_counters, received_between
from stoker.doctor.experiments.passes import Pass

# What an experiment yields: the name of a finding, and the finding.
Telling = tuple[str, Any]
Experiment = Callable[["Maker"], Iterator[Telling]]


class Maker:
    """A loader's dataset and collate function, and indices that the loader has handed out."""

    def __init__(self, iterator: Any, indices: Sequence[Any], seconds: float) -> None:
        self._end = time.perf_counter() + seconds
        self.dataset = iterator._dataset
        self.indices = list(indices)
        self.collate = iterator._collate_fn
        self.workers = int(getattr(iterator, "_num_workers", 0))
        self.auto = bool(iterator._auto_collation)
        self._begin = getattr(iterator, "_worker_init_fn", None)

    def get(self, index: Any) -> Any:
        """The samples of a batch, as torch's fetcher gets them."""
        if not self.auto:
            return self.dataset[index]
        if getattr(self.dataset, "__getitems__", None):
            return self.dataset.__getitems__(index)
        return [self.dataset[one] for one in index]

    def make(self, index: Any) -> Any:
        """A batch."""
        return self.collate(self.get(index))

    def become_worker(self) -> None:
        """What torch does in a worker before its first batch."""
        torch.set_num_threads(1)
        seed = torch.initial_seed()
        random.seed(seed)
        torch.manual_seed(seed)
        worker = vars(torch_data.worker)
        worker["_worker_info"] = torch_data.worker.WorkerInfo(
            id=0, num_workers=self.workers, seed=seed, dataset=self.dataset
        )
        if self._begin is not None:
            self._begin(0)

    def over(self, indices: Sequence[Any], seconds: float) -> Pass:
        """Make batches of these indices until the time is up, one at the least; what that took."""
        if time.perf_counter() > self._end:
            raise TimeoutError("no time was left for it")
        return timed(self.make, indices, seconds)


def timed(make: Callable[[Any], Any], given: Sequence[Any], seconds: float) -> Pass:
    """Make something of each in turn until the time is up, one at the least; what that took."""
    before = read_counters()
    made = 0
    for one in given:
        make(one)
        made += 1
        if time.perf_counter() - before.wall >= seconds:
            break
    after = read_counters()
    received = received_between(before, after)

    def each(now: int | None, then: int | None) -> float | None:
        return None if now is None or then is None else (now - then) / made

    return Pass(
        batches=made,
        seconds=(after.wall - before.wall) / made,
        cpu=(after.cpu - before.cpu) / made,
        asked=each(after.asked, before.asked),
        disk=each(after.disk, before.disk),
        faults=each(after.faults, before.faults),
        received=None if received is None else received / made,
    )


def why_not(iterator: Any, indices: Sequence[Any]) -> str | None:
    """Why samples cannot be read again; None where they can."""
    if iterator is None or not hasattr(iterator, "_dataset_kind"):
        return "no DataLoader of torch's own hands out the batches"
    if iterator._dataset_kind == torch_dataloader._DatasetKind.Iterable:
        return "an iterable dataset has no indices: what it gave cannot be asked for again"
    if not indices:
        return "no index that the loader asked for was seen"
    return None


def end_workers(iterator: Any) -> None:
    """End the loader's workers: they read ahead, and keep pages mapped. Nobody draws from it any more."""
    workers = [one for one in getattr(iterator, "_workers", ()) if hasattr(one, "kill")]
    if not workers:
        return
    torch._C._remove_worker_pids(id(iterator))  # else torch takes it for an accident
    iterator._worker_pids_set = False
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join(1.0)


def hold(maker: Maker, experiment: Experiment, start_method: str | None, seconds: float) -> dict[str, Any]:
    """Hold an experiment where a worker would be; its findings by name, and `failed` if it did not end.

    A helper that is not over in time is ended; in the process that trains, passes are no longer begun.
    """
    if not maker.workers or _starts_by(start_method) != "fork":
        return _hold_here(maker, experiment)
    return _hold_aside(maker, experiment, seconds)


def _starts_by(method: str | None) -> str:
    """How workers are started; a context's class may have told its name."""
    known = method or multiprocessing.get_start_method()
    return "fork" if known.lower() in ("fork", "forkcontext") else known


def _hold_here(maker: Maker, experiment: Experiment) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        for name, finding in experiment(maker):
            found[name] = finding  # noqa: PERF403  # what was found before an error counts
    except Exception as error:  # noqa: BLE001  # the user's dataset may raise anything
        found["failed"] = _said(error)
    return found


def _hold_aside(maker: Maker, experiment: Experiment, seconds: float) -> dict[str, Any]:
    context = multiprocessing.get_context("fork")
    hears, tells = context.Pipe(duplex=False)
    helper = context.Process(target=_help, args=(maker, experiment, tells), daemon=True)
    with warnings.catch_warnings():
        # That a process with threads forks is true of every worker that this loader started.
        warnings.simplefilter("ignore", DeprecationWarning)
        helper.start()
    tells.close()
    found: dict[str, Any] = {}
    end = time.monotonic() + seconds
    try:
        while True:
            if not hears.poll(max(0.0, end - time.monotonic())):
                found["failed"] = f"not over after {seconds:g} s"
                break
            name, finding = hears.recv()
            if name == "over":
                break
            found[name] = finding
    except EOFError:
        helper.join(1.0)
        found["failed"] = f"its process ended (exit code {helper.exitcode})"
    finally:
        helper.kill()
        helper.join(1.0)
        hears.close()
    return found


def _help(maker: Maker, experiment: Experiment, tells: Connection) -> None:
    try:
        maker.become_worker()
        for telling in experiment(maker):
            tells.send(telling)
    except Exception as error:  # noqa: BLE001  # as above
        tells.send(("failed", _said(error)))
    tells.send(("over", None))


def _said(error: Exception) -> str:
    """An error in a line, with the place where the dataset raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" (line {frames[-1].lineno} of {frames[-1].filename.rsplit('/', 1)[-1]})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
