"""How much of a step the loop stands in a generator of the script's own, which makes its batches.

Where no DataLoader is drawn from, nothing is seen to wait. A thread looks at the training thread's stack
every few milliseconds instead. What lies deeper there than the frame that steps is work of the loop; it is a
generator's where a generator's frame is in it that lives from step to step. One that runs the model itself
cannot be made to work beside it, and is told as such. Batches made by a plain function look like any other
work of the loop, and are not told.
"""

import gc
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import CodeType, FrameType, GeneratorType
from typing import Any

import torch

# Seconds from one look to the next: 1.5 s are 300 of them, so a share of 0.1 is told to 0.03 (nine in ten).
_EVERY = 0.005
# Fewer tell no share.
_LEAST_LOOKS = 60
_NOT_THE_SCRIPTS = tuple(str(Path(str(module.__file__)).parent) for module in (torch, sys.modules["stoker"]))
_RUNS_A_MODEL = str(Path(str(torch.nn.__file__)).parent / "modules")


@dataclass(frozen=True, kw_only=True)
class Generator:
    """The share of a step within it, its name and where it stands; whether it runs a model itself."""

    share: float
    name: str
    place: str
    runs_model: bool


class Generators:
    """Looks at the thread that trains, from `start` to `stop`; both are called on that thread."""

    def __init__(self) -> None:
        self._looks = 0
        self._within: Counter[CodeType] = Counter()
        self._with_model: Counter[CodeType] = Counter()
        # Frames that the last step was made in, by number: held, they would keep what is in them.
        self._outer: frozenset[tuple[int, CodeType]] = frozenset()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Look from now on."""
        self.stepped()
        trains = threading.get_ident()
        self._thread = threading.Thread(target=self._look_on, args=(trains,), daemon=True)
        self._thread.start()

    def stepped(self) -> None:
        """A step was made from here: what called it is the loop."""
        self._outer = frozenset((id(frame), frame.f_code) for frame in _outwards(sys._getframe()))

    def stop(self) -> dict[str, Any]:
        """Look no more, and tell of the generator in which the loop stood longest, if there is one."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        waiting = _suspended()
        for code, looks in self._within.most_common():
            if code in waiting and self._looks >= _LEAST_LOOKS:
                return {
                    "share": looks / self._looks,
                    "name": code.co_name,
                    "place": f"{Path(code.co_filename).name}:{code.co_firstlineno}",
                    "runs_model": self._with_model[code] > 0,
                }
        return {"share": 0.0 if self._looks >= _LEAST_LOOKS else None}

    def _look_on(self, trains: int) -> None:
        while not self._over.wait(_EVERY):
            frame = sys._current_frames().get(trains)
            self._look(frame)
            del frame  # it holds what the loop's own names do

    def _look(self, frame: FrameType | None) -> None:
        outer = self._outer
        deeper = takewhile(lambda one: (id(one), one.f_code) not in outer, _outwards(frame))
        codes = [one.f_code for one in deeper]
        self._looks += 1
        # The innermost: a progress bar around it is a generator too.
        found = next((code for code in codes if _is_of_the_script(code)), None)
        if found is not None:
            self._within[found] += 1
            inside = codes[: codes.index(found)]
            self._with_model[found] += any(code.co_filename.startswith(_RUNS_A_MODEL) for code in inside)


def read_generator(told: Mapping[str, Any] | None) -> Generator | None:
    """What was told of it; None where nobody looked, or too seldom. Without a name there is none."""
    if not told or told.get("share") is None:
        return None
    return Generator(
        share=float(told["share"]),
        name=str(told.get("name") or ""),
        place=str(told.get("place") or ""),
        runs_model=bool(told.get("runs_model")),
    )


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_of_the_script(code: CodeType) -> bool:
    """Whether it is a generator that may make batches: no expression, and none of torch's or Stoker's."""
    return (
        bool(code.co_flags & inspect.CO_GENERATOR)
        and not code.co_name.startswith("<")
        and not code.co_filename.startswith(_NOT_THE_SCRIPTS)
    )


def _suspended() -> set[CodeType]:
    """Of the generators there are now, between two steps, those that wait for their next call."""
    return {
        one.gi_code
        for one in gc.get_objects()
        if type(one) is GeneratorType and inspect.getgeneratorstate(one) == inspect.GEN_SUSPENDED
    }
