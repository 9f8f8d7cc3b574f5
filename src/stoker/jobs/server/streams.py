"""What happens, as it happens: server-sent events, gone on with from the last one seen.

One tailer a server reads the store's news and hands it to every open stream: twenty pages that watch cost as
many queries as one. Points, lines and events have one increasing number, which is the event's id; a stream
that broke off sends the last it saw (`Last-Event-ID`) and is told the rest, nothing twice and nothing left
out. One that does not read fast enough is ended, and comes back the same way.
"""

import asyncio
import json
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from stoker.errors import DatabaseUnreachable, NoSuchJob
from stoker.jobs.job import Event, Job, Line, Point
from stoker.jobs.store import Store
from stoker.train.journal import plain

_EVERY_S = 0.25
# Nothing for so long, and a comment is sent: else nobody would notice that the other end has gone.
_SILENCE_S = 15.0
_TOGETHER = 2000
# Batches that a stream may be behind.
_BEHIND = 64
_OPENING = b"retry: 2000\n\n"
_COMMENT = b": still here\n\n"

Show = Callable[[Job], dict[str, Any]]


def dumps(value: Any) -> str:
    """As JSON, which has no number for what is not finite."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(plain(value), allow_nan=False, separators=(",", ":"))


@dataclass(frozen=True, kw_only=True)
class Message:
    """One event as it is sent; without an id, one that is not in the store."""

    id: int | None
    job: str
    kind: str
    data: str

    @cached_property
    def raw(self) -> bytes:
        """In the format of server-sent events; made once, for whoever follows."""
        number = "" if self.id is None else f"id: {self.id}\n"
        return f"{number}event: {self.kind}\ndata: {self.data}\n\n".encode()


class _Follower:
    """A stream that is open: what it is to be told next. `None` in its queue ends it."""

    def __init__(self, job: str | None) -> None:
        self.job = job
        self.queue: asyncio.Queue[list[Message] | None] = asyncio.Queue(_BEHIND + 1)

    def wants(self, message: Message) -> bool:
        """A job's stream has all of the job; the other one the states of all."""
        return message.kind in ("state", "deleted") if self.job is None else message.job == self.job

    def tell(self, messages: Sequence[Message]) -> bool:
        """Whether it keeps up."""
        wanted = [one for one in messages if self.wants(one)]
        if wanted and self.queue.qsize() < _BEHIND:
            self.queue.put_nowait(wanted)
            return True
        return not wanted

    def end(self) -> None:
        """Nothing more after what it has; there is room for that behind what it may have."""
        self.queue.put_nowait(None)


class Tailer:
    """The one reader of news, and those who follow. Made and run in the server's loop."""

    def __init__(self, store: Store, show: Show, *, every_s: float = _EVERY_S) -> None:
        self._store, self._show, self._every_s = store, show, every_s
        self._followers: set[_Follower] = set()
        self._position = 0
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        # What was last said to be wrong.
        self._trouble: str | None = None

    @property
    def streams(self) -> int:
        """How many are open."""
        return len(self._followers)

    async def run(self) -> None:
        """Read and hand out, for as long as the server runs; nothing is read while nobody follows."""
        while not self._is_closed:
            if not self._followers:
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                messages, self._position = await asyncio.to_thread(self._read, self._position, None)
            except DatabaseUnreachable:
                messages = []  # health tells; what happens meanwhile is read when it answers again
            except Exception as error:  # noqa: BLE001 - whatever it is, streams would have no news ever after
                messages = []
                self._tell_trouble(error)
            else:
                self._trouble = None
            self._hand_out(messages)
            await asyncio.sleep(self._every_s)

    def tell(self, job: str) -> None:
        """A job looks different, by its doctor's visit, and the store has no news of it. From any thread."""
        try:
            told = dumps(self._show(self._store.job(job)))
        except (NoSuchJob, DatabaseUnreachable):
            return  # who follows sees it when the job is next told of
        message = Message(id=None, job=job, kind="state", data=told)
        if not self._is_closed:
            self._loop.call_soon_threadsafe(self._hand_out, [message])

    def close(self) -> None:
        """End every stream, and the reading; once is enough."""
        if self._is_closed:
            return
        self._is_closed = True
        for one in self._followers:
            one.end()
        self._wake.set()

    async def follow(self, job: str | None, after: int | None) -> AsyncIterator[bytes]:
        """A stream's bytes: what came after a number, or from now on; then what comes.

        A number that was not given out yet is another store's, as after one was put back from a copy: who has
        it is told what comes from now on, and does not wait until this store has come so far.
        """
        follower = _Follower(job)
        if not self._followers or after is not None:
            newest = await asyncio.to_thread(self._store.last_id)
            if not self._followers:  # else another came first, and has a claim to what is between
                self._position = newest
            after = None if after is None or after > newest else after
        seen = self._position if after is None else after
        self._followers.add(follower)
        self._wake.set()
        try:
            yield _OPENING
            if after is None and job is not None:
                found = await asyncio.to_thread(self._store.job, job)
                yield Message(id=seen, job=job, kind="state", data=dumps(self._show(found))).raw
            while after is not None:
                messages, last = await asyncio.to_thread(self._read, seen, job)
                if wanted := [one for one in messages if follower.wants(one)]:
                    yield b"".join(one.raw for one in wanted)
                if last == seen:
                    break
                seen = last
            async for told in self._live(follower, seen):
                yield told
        except (DatabaseUnreachable, NoSuchJob):
            return  # it has begun, and can only end: who follows comes back, and is told why then
        finally:
            self._followers.discard(follower)

    async def _live(self, follower: _Follower, seen: int) -> AsyncIterator[bytes]:
        while not self._is_closed:
            try:
                async with asyncio.timeout(_SILENCE_S):
                    batch = await follower.queue.get()
            except TimeoutError:
                yield _COMMENT
                continue
            if batch is None:
                return
            # What was read before the tailer told it is not told again.
            fresh = [one for one in batch if one.id is None or one.id > seen]
            if fresh:
                yield b"".join(one.raw for one in fresh)
            if follower.job is not None and any(one.kind == "deleted" for one in batch):
                return

    def _tell_trouble(self, error: Exception) -> None:
        """On stderr, once for as long as it is the same: it is read again four times a second."""
        told = f"{type(error).__name__}: {error}"
        if told != self._trouble:
            self._trouble = told
            shown = "".join(traceback.format_exception(error))
            sys.stderr.write(f"stoker: news for the streams cannot be read: {told}; read again\n{shown}")

    def _hand_out(self, messages: list[Message]) -> None:
        if messages:
            for one in list(self._followers):
                if not one.tell(messages):
                    self._followers.discard(one)
                    one.end()

    def _read(self, after: int, job: str | None) -> tuple[list[Message], int]:
        """News since a number, as messages, and the number of the last."""
        found = self._store.news(after=after, id_=job, limit=_TOGETHER).items
        # A job as it stands says all that its events of this moment say: it is told once, with the last.
        newest = {one.job: one.id for one in found if isinstance(one, Event)}
        jobs = self._store.some(list(newest))
        messages = []
        for one in found:
            if isinstance(one, (Point, Line)):
                kind = "point" if isinstance(one, Point) else "line"
                messages.append(Message(id=one.id, job=one.job, kind=kind, data=dumps(one.to_json())))
            elif newest[one.job] == one.id:
                messages.append(self._state(one, jobs.get(one.job)))
        return messages, found[-1].id if found else after

    def _state(self, event: Event, job: Job | None) -> Message:
        kind, told = ("deleted", {"id": event.job}) if job is None else ("state", self._show(job))
        return Message(id=event.id, job=event.job, kind=kind, data=dumps(told))
