"""What happens in the script's process during a diagnosis: it trains as ever, then its loader changes.

observe
    The loop as it is, under the observer.
replay
    `next()` hands out held batches: what a step takes when its data costs nothing.
drain
    Within one `next()` batches are drawn and let go of, past what lay ready in the queue: what the loader
    gives when nobody computes.
look
    In the place of both where no loader is drawn from: whether a generator of the script makes its batches.

No epoch is made longer: what was handed out again, or let go of, counts, and at the loader's length the epoch
ends. All is told to the caller in messages; then the run ends, before another line of the script runs.
"""

import atexit
import os
import sys
import time
from collections.abc import Iterator
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import dataloader as torch_dataloader

from stoker.doctor import overrides
from stoker.doctor.deaths import tell_of_deaths, telling
from stoker.doctor.experiments.condition import Condition, Conditions
from stoker.doctor.experiments.convolutions import Convolutions
from stoker.doctor.experiments.from_memory import from_memory
from stoker.doctor.experiments.generators import Generators
from stoker.doctor.experiments.history import History
from stoker.doctor.experiments.indices import Handed
from stoker.doctor.experiments.memory import Emptied, about_device, held_there, tell_of_overflow
from stoker.doctor.experiments.on_device import conditions
from stoker.doctor.experiments.storage import probe_storage
from stoker.doctor.held import Held, bytes_in, samples_of
from stoker.doctor.iterators import in_queue, pids_of, workers_of
from stoker.doctor.padding import share_of_padding
from stoker.doctor.parts import Parts
from stoker.doctor.process import about_process
from stoker.doctor.sharing import Sharing
from stoker.doctor.spawned import follow
from stoker.doctor.work import Work
from stoker.doctor.world import world_size
from stoker.scratch import Child
from stoker.watch.hooks import count_samples, length_of
from stoker.watch.launcher import adopt
from stoker.watch.session import Plan, Session

# Epochs over which a drain is tried: a short one may end before the queue's own batches are through.
_EPOCHS = 4
# Of the observed steps, so many may draw from two loaders, or from another, at the turn of an epoch say.
_FEW_BY_SEVERAL = 0.1
# The share of a step that held batches must save for the data to be read again.
_WORTH_PROBING = 0.05
# A loop that held batches save this share of a step waits for its loader all along, whose rate is the loop's.
# One that has waited for this share of the time is waited for itself, should batches come in bursts.
_WAITS_ALWAYS, _WAITS = 0.9, 0.5
# Steps of a replay that count, should the epoch have no more, and seconds that are long for a batch.
_LEAST_REPLAYED, _LONG_BATCH = 8, 2.5
_NO_LOADER = "no DataLoader was drawn from"


def prepare(child: Child, argument: dict[str, Any]) -> None:
    """The hook of a scratch run: put the observer and the experiments in place."""
    parts = Parts(**argument["parts"])
    if parts.workers is not None:
        overrides.put({"num_workers": parts.workers}, workers=parts.instead_of)
    if parts.batch is not None:
        overrides.put({"batch_size": parts.batch[0]}, workers=parts.batch[1])
    if parts.threads is not None:
        overrides.put({"threads": parts.threads})
    session = Session(Plan(name="doctor", root=Path(argument["runs"]), run_id=argument["run"]))
    session.start()
    adopt(session)
    atexit.register(session.finish, "done")  # of a script that ends before its diagnosis
    tell_of_deaths(child)
    tell_of_overflow(child.report, lambda: [one.settings for one in list(session.observer.loaders.all)])
    if argument.get("ranks", 1) > 1:
        from stoker.doctor.rank_trial import begin  # which builds on this module

        begin(child, session, parts, argument)
    else:
        follow(child, argument)
        history = History() if parts.device or parts.peak_alone else None
        probe = Convolutions(parts.probe) if parts.probe else None
        Trial(child, session, parts, Emptied(), history, probe)


class Trial:
    """Goes from one part to the next at the loop's own `next()` and `step()`."""

    def __init__(
        self,
        child: Child,
        session: Session,
        parts: Parts,
        emptied: Emptied | None = None,
        history: History | None = None,
        probe: Convolutions | None = None,
    ) -> None:
        self._child, self._session, self._parts = child, session, parts
        self._emptied, self._history, self._probe = emptied, history, probe
        self._held = Held()
        self._work = Work()
        self._sharing = Sharing()
        self._generators = Generators()
        self._pid = os.getpid()
        self._part = "warm"
        self._began = 0.0
        self._steps = 0
        self._updates = 0
        self._replay_began = 0.0
        # Loaders drawn from since the last step; steps by the loader drawn from last before them.
        self._since: list[int] = []
        self._fed: dict[int, int] = {}
        self._draws = 0
        self._by_several = 0
        self._samples = 0
        self._iterator: Any = None
        self._paces: dict[str, float] = {}
        # Of the part at work, the time in which it was drawn; batches observed, and the seconds for it.
        self._drawing = 0.0
        self._observed = (0, 0.0)
        # Seconds that a worker takes over a batch, or the loop itself, where it waits for that; else 0.
        self._batch_takes = 0.0
        self._handed = 0
        self._drained: list[float] = []
        self._over = False
        self._epochs = 0
        self._late: Conditions | None = None
        self._why: str | None = None
        self._given = Handed()
        self._draw = self._given.noting(telling(child, torch_dataloader._BaseDataLoaderIter.__next__))
        self._take_the_loaders_place()
        register_optimizer_step_post_hook(lambda *_: self._stepped())

    def _take_the_loaders_place(self) -> None:
        trial = self

        @wraps(self._draw)
        def __next__(iterator: Any) -> Any:  # noqa: N807
            return trial._next(iterator)

        def _reset(iterator: Any, *args: Any, **kwargs: Any) -> None:
            trial._iterator = None  # an epoch begins, with the same iterator where workers are persistent
            reset(iterator, *args, **kwargs)

        kind = vars(torch_dataloader)["_BaseDataLoaderIter"]
        reset = kind._reset
        kind.__next__, kind._reset = __next__, _reset

    # --- the loop's own calls ---------------------------------------------------------------------

    def _next(self, iterator: Any) -> Any:
        known = getattr(iterator, "_stoker_loader", None)
        if known is None or not self._trains(known.id):
            batch = self._draw(iterator)
        else:
            if iterator is not self._iterator:
                self._iterator, self._handed, self._over = iterator, 0, False
            batch = self._next_of_training(iterator)
        if known is not None and torch.is_grad_enabled():
            if not self._steps and not self._since:
                self._child.report("first", bytes=bytes_in(batch))  # should there be no other
            self._since.append(known.id)
            if self._part == "warm":
                self._samples = max(self._samples, count_samples(batch) or 0)
        return batch

    def _next_of_training(self, iterator: Any) -> Any:
        if self._over:
            self._over = False
            raise StopIteration
        if self._part == "replay":
            self._count_handed(iterator)
            return self._held.next()
        if self._part == "drain":
            return self._drain(iterator)
        if self._late is not None and (held := self._late.held) is not None:
            self._count_handed(iterator)
            return held.next()
        if self._handed and self._is_at_length(iterator):
            raise StopIteration
        began = time.perf_counter()
        batch = self._draw(iterator)
        self._drawing += time.perf_counter() - began
        if self._part == "hold" or self._is_observed_long:
            self._held.keep(batch)
            self._begin_replay()
        return batch

    def _stepped(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked copy, whose steps nobody hears of
        now = time.perf_counter()
        self._steps += 1
        self._updates += 1
        if self._since:
            self._fed[self._since[-1]] = self._fed.get(self._since[-1], 0) + 1
            self._draws += sum(self._trains(loader) for loader in self._since)
            self._by_several += len(set(self._since)) > 1 or not self._trains(self._since[-1])
            self._since.clear()
        if self._probe is not None and self._steps == 1 and _compiled() is None:
            self._probe.note()
        if self._part == "observe":
            self._sharing.stepped(pids_of(self._iterator))
            if _compiled() is None:  # which would be compiled anew for a hook
                self._work.stepped()
        elif self._part == "look":
            self._generators.stepped()
        self._child.progress(self._steps)
        if self._is_over(now):
            self._end_part()

    # --- parts --------------------------------------------------------------------------------------

    def _begin(self, part: str) -> None:
        self._part, self._began = part, time.perf_counter()
        self._updates = self._draws = self._by_several = 0
        self._drawing = 0.0

    def _begin_replay(self) -> None:
        """Once enough batches are held, and no more is observed."""
        if self._part == "hold" and self._held.full:
            self._begin("replay" if self._parts.replay_steps else "drain")
            self._replay_began = time.time()

    @property
    def _is_observed_long(self) -> bool:
        """Batches come seldom, and the next ones may come too late to be held."""
        lasted = time.perf_counter() - self._began
        return self._part == "observe" and lasted >= self._parts.observe_most and self._has_waited(lasted)

    def _has_waited(self, lasted: float) -> bool:
        return self._drawing >= _WAITS * lasted

    def _is_over(self, now: float) -> bool:
        parts, lasted, made = self._parts, now - self._began, self._updates
        if self._part == "warm":
            return self._steps >= parts.warm_steps
        if self._part == "observe":
            # On a GPU more is asked afterwards, and steps are short there.
            least = parts.observe_seconds / (1 if self._session.observer.device is None else 2)
            enough = made >= parts.observe_steps and lasted >= least
            # Workers that take long over a batch end theirs together: of such a burst all count, or none.
            amid = self._has_waited(lasted) and self._draws % max(1, workers_of(self._iterator))
            most = parts.observe_most * (2 if amid else 1)
            return enough or lasted >= most
        if self._part == "replay":
            enough = made >= parts.replay_steps and lasted >= parts.replay_seconds
            # In another epoch the loop would wait for its workers, who are at work on what nobody draws.
            late = self._batch_takes > _LONG_BATCH and self._is_at_length(self._iterator, left=1)
            return enough or (late and made >= _LEAST_REPLAYED) or lasted >= parts.replay_most
        if self._part == "look":
            enough = made >= parts.warm_steps and lasted >= parts.look_seconds
            return enough or lasted >= parts.look_most
        if self._late is not None:
            return not self._late.stepped()
        return self._part == "drained"

    def _end_part(self) -> None:
        self._paces[self._part] = (time.perf_counter() - self._began) / max(1, self._updates)
        if self._part == "warm":
            self._tell_history()
            self._child.report("began", t=time.time(), compiled=_compiled())
            if self._emptied is not None:
                self._emptied.calls = 0
            self._begin("observe")
        elif self._part == "observe":
            self._note_observed(time.perf_counter() - self._began)
            self._work.stop()
            self._sharing.read(pids_of(self._iterator))
            self._session.describe()  # should the run be ended by force
            self._child.report(
                "observed",
                t=time.time(),
                draws=self._draws,
                updates=self._updates,
                compiled=_compiled(),
                work=self._work.sizes,
                padding=self._work.padding,
                loaders=[loader.to_json() for loader in self._session.account.loaders],
                **about_process(self._session.observer),
            )
            self._tell_device()
            if world_size() > 1:
                self._finish("it is one of several ranks, and the others are not examined: see --nproc")
            if not self._fed and self._parts.drain_seconds:
                self._begin("look")
                self._generators.start()
            elif not self._fed:
                self._go_on(_NO_LOADER)
            elif self._by_several > _FEW_BY_SEVERAL * self._updates:
                self._go_on("several loaders feed the steps: none of them is replayed or drained")
            else:
                self._begin("hold")
                self._begin_replay()
        elif self._part == "replay":
            self._child.report("replay", t=time.time(), began=self._replay_began)
            padding = share_of_padding(self._held.leaves())
            self._child.report(
                "batch", bytes=self._held.nbytes(), padding=padding, dataset=samples_of(self._iterator)
            )
            if self._parts.drain_seconds and self._is_drained_already:
                drawn, seconds = self._observed
                self._drained = [seconds / drawn] * drawn
                self._tell_drain()
                self._go_on()
            elif self._parts.drain_seconds:
                self._begin("drain")
            elif self._parts.device:
                self._go_on()
            else:
                self._finish()
        elif self._part == "look":
            self._child.report("generator", **self._generators.stop())
            self._go_on(_NO_LOADER)
        elif self._late is None:
            self._go_on()
        else:
            self._end_run()

    def _tell_history(self) -> None:
        device = self._session.observer.device
        if self._history is not None:
            if device is not None and self._samples:
                self._child.report("allocations", samples=self._samples, **self._history.take(device.index))
            else:
                self._history.stop()
        if self._parts.peak_alone:
            if self._probe is not None and device is not None and self._samples:
                self._probe.tell(self._child.report, self._samples, device.index)
            self._finish()

    def _tell_device(self) -> None:
        device = self._session.observer.device
        if device is not None:
            self._child.report(
                "device",
                **about_device(device.index),
                **held_there(device.index),
                empty_cache=None if self._emptied is None else self._emptied.calls / max(1, self._updates),
                empty_cache_line=None if self._emptied is None else self._emptied.line,
            )

    def _go_on(self, why: str | None = None) -> None:
        """What is asked of a GPU comes next, or of a loop that waits beside none; else the run ends here."""
        self._why = why
        self._late = Conditions(self._conditions())
        self._begin("late")
        if not self._parts.device or not self._late.start():
            self._end_run()

    def _conditions(self) -> Iterator[Condition]:
        if self._session.observer.device is None:
            waits = self._held_saves_time and self._iterator is not None
            return from_memory(self._held, self._iterator, self._child.report) if waits else iter(())
        return conditions(
            self._session.observer,
            self._held if self._held.full and self._why is None else None,
            self._child.report,
            step=self._paces["observe"],
            emptied=self._emptied is not None and self._emptied.calls > 0,
            end=self._end_by,
            sizes_alone=self._parts.sizes_alone,
        )

    def _end_by(self, error: BaseException) -> NoReturn:
        """An experiment has made the loop raise: it does not go on from there."""
        self._child.report("unresized", why=f"{type(error).__name__}: {error}".splitlines()[0])
        self._end_run()

    def _end_run(self) -> NoReturn:
        self._probe_storage()
        self._finish(self._why)

    @property
    def _held_saves_time(self) -> bool:
        """Whether steps with held batches were tried, and are shorter."""
        alone = self._paces.get("replay")
        return alone is not None and 1 - alone / self._paces["observe"] >= _WORTH_PROBING

    def _note_observed(self, lasted: float) -> None:
        self._observed = (self._draws, lasted)
        workers = workers_of(self._iterator)
        if self._draws and not workers:
            self._batch_takes = self._drawing / self._draws
        elif self._draws and self._has_waited(lasted):
            self._batch_takes = lasted / self._draws * workers

    @property
    def _is_drained_already(self) -> bool:
        """Whether the loop drew as fast as it can, while observed: what lies ready takes longer to draw."""
        waits = self._paces["replay"] <= (1 - _WAITS_ALWAYS) * self._paces["observe"]
        drawn, lasted = self._observed
        return waits and drawn > 0 and in_queue(self._iterator) * lasted / drawn > self._parts.drain_most

    def _probe_storage(self) -> None:
        """Where the loop waits for data, read some of it again. The last experiment: it ends the loader."""
        seconds = self._parts.storage_seconds
        if not seconds or not self._held_saves_time or self._iterator is None:
            return
        self._session.finish("done")  # what is read from now on is no batch of the run
        loader = self._iterator._stoker_loader
        given = self._given.of(loader.id)
        method = loader.settings.get("start_method")
        found = probe_storage(self._iterator, given, method, seconds, made=self._batch_takes)
        self._child.report("storage", **found)

    def _trains(self, loader: int) -> bool:
        """Whether it is the loader whose batches reach the steps; before that is known, any may be."""
        return not self._fed or loader == max(self._fed, key=lambda one: self._fed[one])

    def _count_handed(self, iterator: Any) -> None:
        """One batch of the epoch goes to a held one in its place; at the loader's length the epoch ends."""
        if self._is_at_length(iterator):
            raise StopIteration
        self._handed += 1

    def _is_at_length(self, iterator: Any, *, left: int = 0) -> bool:
        """Whether the epoch has no more than so many batches left."""
        length = length_of(iterator)  # None of an iterable dataset, or a sampler, that has none
        return length is not None and bool(iterator._num_yielded + self._handed + left >= length)

    def _drain(self, iterator: Any) -> Any:
        """Draw without training; the last batch goes to the loop.

        Where the epoch comes to its end so does the loop's, after that batch: an epoch without any would be
        one that the script never had.
        """
        ready = in_queue(iterator)
        began = time.perf_counter()
        self._epochs += 1
        drawn, batch = 0, None
        while True:
            before = time.perf_counter()
            try:
                batch = self._draw(iterator)
            except StopIteration:
                if self._epochs >= _EPOCHS or self._has_drained(began):
                    self._tell_drain()
                if not drawn:
                    raise
                self._over = True
                return batch
            drawn += 1
            if drawn > ready:
                self._drained.append(time.perf_counter() - before)
            if self._has_drained(began):
                self._tell_drain()
                return batch

    def _has_drained(self, began: float) -> bool:
        lasted = time.perf_counter() - began
        enough = sum(self._drained) >= self._parts.drain_seconds and len(self._drained) >= 8
        return enough or lasted >= self._parts.drain_most

    def _tell_drain(self) -> None:
        self._sharing.read(pids_of(self._iterator))
        self._child.report(
            "drain",
            batches=len(self._drained),
            seconds=sum(self._drained),
            sized=self._sharing.lines,
        )
        self._part = "drained"

    def _finish(self, why: str | None = None) -> NoReturn:
        self._session.finish("done")
        self._child.report("finished", why=why)
        self._child.end(self._steps)


def _compiled() -> tuple[int, float] | None:
    """Graphs that torch.compile has made so far, and seconds that it took; None where it was not used."""
    told = sys.modules.get("torch._dynamo.utils")
    graphs = 0 if told is None else int(told.counters["stats"]["unique_graphs"])
    if told is None or not graphs:
        return None
    return graphs, float(told.cumulative_time_spent_ns["entire_frame_compile"]) / 1e9
