"""The trial in a process that is one of several ranks: the same parts, begun by all ranks at the same step.

The first rank calls each part on the board. Replay is held where every rank can hold it; the drain is the
last thing that a rank does: having told what its loader gave, it stops within that `next()`, and the last
rank to do so ends the run. A rank that went on alone would wait for the others in a collective.
"""

import gc
import os
import time
from pathlib import Path
from typing import Any, NoReturn

from stoker.doctor.board import AHEAD, CANNOT, HOLDS, Board
from stoker.doctor.meetings import Meetings
from stoker.doctor.padding import share_of_padding
from stoker.doctor.trial import _FEW_BY_SEVERAL, Parts, Trial, _compiled, _in_queue
from stoker.scratch import Child
from stoker.watch.session import Session

# Steps in which the ranks must have their batches to hold, once they were told to.
_HOLD_STEPS = 32


def begin(child: Child, session: Session, parts: Parts, argument: dict[str, Any]) -> None:
    """Put the trial in place in a rank's process."""
    path = board_path(Path(argument["runs"]), argument["run"])
    RankTrial(child, session, parts, Board(path, rank=session.rank, ranks=argument["ranks"]))


class RankTrial(Trial):
    """One rank's part of it."""

    def __init__(self, child: Child, session: Session, parts: Parts, board: Board) -> None:
        self._board = board
        self._cannot: str | None = None
        self._in_step = True
        self._burden = _Burden()
        self._meetings = Meetings(lambda: self._steps)
        self._meetings.install()
        super().__init__(child, session, parts)

    # --- the loop's own calls ---------------------------------------------------------------------

    def _next_of_training(self, iterator: Any) -> Any:
        if self._part == "replay":
            self._count_handed(iterator)
            return self._held.next()
        if self._part == "drain":
            self._drain_to_the_end(iterator)
        batch = self._draw(iterator)
        if self._part == "hold" and self._cannot is None:
            self._held.keep(batch)
            if self._held.full:
                self._board.vote(HOLDS)
        return batch

    def _is_over(self, now: float) -> bool:
        if self._board.leads and not self._board.waits:
            following = self._following(now)
            if following is not None:
                self._board.call(following, self._steps + AHEAD)
        return self._board.waits

    def _following(self, now: float) -> str | None:
        """The part that the first rank would have next; None while this one goes on."""
        if self._part == "hold":
            votes = self._board.votes()
            if all(vote == HOLDS for vote in votes):
                return "replay" if self._parts.replay_steps else "drain"
            return "finish" if CANNOT in votes or self._updates > _HOLD_STEPS else None
        if not super()._is_over(now):
            return None
        if self._part == "replay":
            return "drain" if self._parts.drain_seconds else "finish"
        return {"warm": "observe", "observe": "hold"}[self._part]

    def _end_part(self) -> None:
        due = self._board.due(self._steps)
        if due is None:
            return
        part, in_time = due
        self._in_step = self._in_step and in_time
        self._leave()
        if part == "finish":
            self._finish(self._cannot)
        self._begin(part)
        if part == "observe":
            self._child.report("began", t=time.time(), compiled=_compiled())
            self._burden.begin()
            self._meetings.begin("observe")
        elif part == "hold":
            self._cannot = self._why_not()
            if self._cannot is not None:
                self._board.vote(CANNOT)
        elif part == "replay":
            self._replay_began = time.time()
            self._meetings.begin("replay")

    def _leave(self) -> None:
        self._meetings.pause()
        if self._part == "observe":
            self._child.report(
                "burden",
                **self._burden.end(self._updates),
                on_device=self._meetings.on_device,
                of_some_ranks=self._meetings.of_some_ranks,
            )
            self._meetings.write(self._session.writer.rank_folder)
            self._session.describe()  # should the run be ended by force
            self._child.report(
                "observed",
                t=time.time(),
                draws=self._draws,
                compiled=_compiled(),
                loaders=[loader.to_json() for loader in self._session.account.loaders],
                cores_allowed=sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
                **self._about_process(),
            )
        elif self._part == "replay" and self._in_step:
            self._child.report("replay", t=time.time(), began=self._replay_began)
            self._child.report(
                "batch", bytes=self._held.nbytes(), padding=share_of_padding(self._held.leaves())
            )

    def _why_not(self) -> str | None:
        """Why this rank's loop can be observed and no more."""
        if not self._in_step:
            return "the ranks do not keep step: nothing is replayed or drained"
        if not self._fed:
            return "no DataLoader was drawn from"
        if self._by_several > _FEW_BY_SEVERAL * self._updates:
            return "several loaders are drawn from for one step: none of them is replayed or drained"
        return None

    def _drain_to_the_end(self, iterator: Any) -> NoReturn:
        ready, drawn, began = _in_queue(iterator), 0, time.perf_counter()
        while not self._has_drained(began):
            before = time.perf_counter()
            try:
                self._draw(iterator)
            except StopIteration:
                break
            drawn += 1
            if drawn > ready:
                self._drained.append(time.perf_counter() - before)
        self._tell_drain()
        self._finish()

    def _finish(self, why: str | None = None) -> NoReturn:
        self._meetings.write(self._session.writer.rank_folder)
        self._session.finish("done")
        self._child.report("finished", why=why)
        if self._board.finish():
            self._child.end(self._steps)
        self._child.park()


class _Burden:
    """What a rank bears beside its training: garbage collected, and standing in line for a core."""

    def __init__(self) -> None:
        self._collecting = 0.0
        self._began = 0.0
        self._queued: int | None = None

    def begin(self) -> None:
        """From now on, on this thread."""
        gc.callbacks.append(self._collected)
        self._queued = _queued_ns()

    def end(self, steps: int) -> dict[str, float | None]:
        """Seconds a step."""
        gc.callbacks.remove(self._collected)
        queued = _queued_ns()
        waited = None if queued is None or self._queued is None else (queued - self._queued) / 1e9
        return {
            "gc": self._collecting / max(1, steps),
            "queued": None if waited is None else waited / max(1, steps),
        }

    def _collected(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self._collecting += time.perf_counter() - self._began


def _queued_ns() -> int | None:
    """Nanoseconds that this thread has stood in the run queue; None where the platform does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    except OSError:
        return None


def board_path(runs: Path, run: str) -> Path:
    """Where the ranks of a run meet; removed by whoever started them."""
    return runs / f"{run}.board"
