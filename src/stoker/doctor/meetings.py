"""Collectives of torch.distributed in a rank's process: when this rank came to each, and when it was over.

The public functions are wrapped. DistributedDataParallel calls its own from C++, once a bucket: a
communication hook that does what it would do by itself (the mean over the ranks) takes the place of that, or
stands around the script's own hook. For 2, 4, 8 … ranks the gradients are the same bits; what is trained here
is thrown away in any case.

Arrivals tell who is late; durations do not, since all ranks wait for the last.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn import parallel

NAME = "meetings"
_FUNCTIONS = (
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter",
    "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier",
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list",
)  # fmt: skip
# Of a run of minutes, more than enough.
_MOST = 100_000


@dataclass(slots=True)
class Meeting:
    """One collective of all ranks. `ends`: this rank had nothing left to compute before it is over."""

    step: int
    kind: str
    bytes: int
    ends: bool
    arrived: float
    done: float | None = None


class Meetings:
    """Those of one rank, by the part of the diagnosis in which they were."""

    def __init__(self, step: Callable[[], int]) -> None:
        self._step = step
        self._seen: dict[str, list[Meeting]] = {}
        self._now: list[Meeting] | None = None
        self._inside = threading.local()
        self.on_device = False
        self.of_some_ranks = False

    def install(self) -> None:
        """Put the wrappers in place; they stay for the life of the process."""
        for name in _FUNCTIONS:
            whole = getattr(distributed_c10d, name)
            timed = self._timed(name, whole)
            for place in (dist, distributed_c10d):
                setattr(place, name, timed)
        self._take_part_in_ddp()

    def begin(self, part: str) -> None:
        """What comes now belongs to this part."""
        self._now = self._seen.setdefault(part, [])

    def pause(self) -> None:
        """What comes now belongs to none."""
        self._now = None

    def write(self, folder: Path) -> None:
        """Put all of them into a rank's folder of the record."""
        with (folder / f"{NAME}.jsonl").open("w") as file:
            for part, meetings in self._seen.items():
                for one in meetings:
                    line = {name: getattr(one, name) for name in Meeting.__slots__}
                    file.write(json.dumps({"part": part, **line}) + "\n")

    # --- the wrappers -----------------------------------------------------------------------------

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "one", False) or not dist.is_initialized():
                return function(*args, **kwargs)
            group = kwargs.get("group") or next((a for a in args if isinstance(a, dist.ProcessGroup)), None)
            if not self._is_of_all(group):
                return function(*args, **kwargs)
            meeting = self._arrive(name, _tensors(args, kwargs), ends=True)
            self._inside.one = True
            try:
                work = function(*args, **kwargs)
            finally:
                self._inside.one = False
            if work is None:
                _over(meeting)
            elif meeting is not None:  # under way: the rank goes on computing
                meeting.ends = False
                work.get_future().add_done_callback(lambda _: _over(meeting))
            return work

        return call

    def _take_part_in_ddp(self) -> None:
        meetings, kind = self, vars(parallel)["DistributedDataParallel"]
        forward, register = kind.forward, kind.register_comm_hook

        @wraps(register)
        def register_comm_hook(model: Any, state: object, hook: Callable[..., Any]) -> None:
            model._stoker_meets = True
            register(model, state, meetings._around(model.process_group, hook))

        @wraps(forward)
        def timed_forward(model: Any, *args: Any, **kwargs: Any) -> Any:
            # At the first forward pass and not when it is made: a script's own hook may come in between.
            if not getattr(model, "_stoker_meets", False):
                model._stoker_meets = True
                register(model, model.process_group, meetings._around(model.process_group, _mean))
            meetings._inside.one = True  # it brings buffers into line by collectives of its own
            try:
                return forward(model, *args, **kwargs)
            finally:
                meetings._inside.one = False

        kind.register_comm_hook = register_comm_hook
        kind.forward = timed_forward

    def _around(self, group: Any, hook: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(hook)
        def call(state: Any, bucket: Any) -> Any:
            meeting = None
            if self._is_of_all(group):
                meeting = self._arrive("ddp", [bucket.buffer()], ends=bucket.is_last())
            self._inside.one = True
            try:
                future = hook(state, bucket)
            finally:
                self._inside.one = False
            if meeting is not None:
                future.add_done_callback(lambda _: _over(meeting))
            return future

        return call

    def _is_of_all(self, group: Any) -> bool:
        if group is None:
            return True
        if not isinstance(group, dist.ProcessGroup):
            return False  # a group that this rank is not in
        of_all = group.size() == dist.get_world_size()
        self.of_some_ranks = self.of_some_ranks or not of_all
        return of_all

    def _arrive(self, kind: str, tensors: list[torch.Tensor], *, ends: bool) -> Meeting | None:
        self.on_device = self.on_device or any(tensor.device.type != "cpu" for tensor in tensors)
        if self._now is None or len(self._now) >= _MOST:
            return None
        meeting = Meeting(
            step=self._step(),
            kind=kind,
            bytes=sum(tensor.nbytes for tensor in tensors),
            ends=ends,
            arrived=time.time(),
        )
        self._now.append(meeting)
        return meeting


def _over(meeting: Meeting | None) -> None:
    if meeting is not None:
        meeting.done = time.time()


def _mean(
    group: Any,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # by which torch knows a hook
) -> torch.futures.Future[torch.Tensor]:
    """What DistributedDataParallel does by itself."""
    whole = bucket.buffer().div_(group.size())
    future = dist.all_reduce(whole, group=group, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])  # type: ignore[no-any-return]


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Of what a collective is given, the first tensor or the first list of them: what it moves."""
    for given in (*args, *kwargs.values()):
        if isinstance(given, torch.Tensor):
            return [given]
        if isinstance(given, list) and given and isinstance(given[0], torch.Tensor):
            return given
    return []
