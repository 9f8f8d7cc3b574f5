"""The processes of one start of a training: begun, hit, and seen out.

They are forked by a server that has imported all they need, or begun each as a new interpreter. When one of
them dies, the others are treated as torchrun does: asked to end after a while, and killed when they do not.
"""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import torch.distributed as dist

from stoker.bench.resumes_draws import Blow, Start
from stoker.bench.resumes_places import PLACES, Page
from stoker.bench.resumes_rank import PRELOADED, STOPPED, Chain, Post, stage, train
from stoker.errors import BenchFailed

# Nothing here takes nearly as long: what does, hangs. A new interpreter imports for seconds on busy cores.
PATIENCE_S = 400.0
# After one has died: for the others to notice, and then to end when they are asked to. torchrun waits 30 s.
_NOTICE_S, _GRACE_S = 3.0, 15.0
_NAP_S, _LOOK_S, _LONGEST_LOOK_S = 0.0002, 0.01, 1.0
_TAIL = 1500
# Seconds that are spent in a place as a rule, until some have been measured.
_TYPICAL = {
    "wait": 0.003, "step": 0.01, "epoch": 0.05, "save": 0.02, "prune": 0.002,
    "restore": 0.005, "disk": 0.003, "ram": 0.002, "copy": 0.005,
}  # fmt: skip
_STARTING = {False: 0.5, True: 6.0}


class Hung(BenchFailed):
    """A training that neither goes on nor ends."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One process: its page, its log, and a handle that stays its own when its number is another's."""

    process: BaseProcess
    page: Page
    log: Path
    # None where it had ended before one could be had.
    handle: int | None

    def send(self, number: signal.Signals) -> None:
        """A signal, if it is still there."""
        if self.handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, number)

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.process.exitcode

    @property
    def tail(self) -> str:
        """The end of what it said."""
        return self.log.read_text(errors="replace")[-_TAIL:] if self.log.exists() else ""

    def readers(self) -> list[psutil.Process]:
        """The processes that read for it. Found at once: to look through all processes takes longer than most
        of what is aimed at."""
        found = []
        with contextlib.suppress(psutil.Error, OSError):
            for told in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
                found += [psutil.Process(int(word)) for word in told.read_text().split()]
        return found


class Crew:
    """All ranks of one start, or a staging."""

    def __init__(self, members: Sequence[Member], store: Any = None) -> None:
        self.members = members
        self.begun = self._looked = time.monotonic()
        self._waited = 0.0
        # The ranks meet by it: it lives as long as they do.
        self._store = store
        self.forced = 0

    @property
    def pages(self) -> list[Page]:
        """All of their pages."""
        return [member.page for member in self.members]

    @property
    def codes(self) -> list[int | None]:
        """All exit codes; None of those that run."""
        return [member.code for member in self.members]

    @property
    def updates(self) -> int:
        """The updates of the training's whole life, as far as this start has come; 0 where it made none."""
        return max(page.updates for page in self.pages)

    def await_place(self, is_there: Callable[[], bool]) -> bool:
        """Until it is so; False where a process ended before."""
        looked = 0.0
        while not is_there():
            now = time.monotonic()
            if now - looked > _LOOK_S:
                looked = now
                if any(code is not None for code in self.codes):
                    return False
                self._check_patience()
            time.sleep(_NAP_S)
        return True

    def hit(self, blow: Blow) -> tuple[str, str] | None:
        """Kill, or ask to stop; whom it hit, and where. None where that had ended by itself."""
        one = self.members[blow.rank]
        if blow.is_stop:
            told = [one] if blow.kind == "stop one" else self.members
            where = _most_telling([member.page for member in told])
            for member in told:
                member.send(signal.SIGTERM)
            self._release()
            return blow.kind, where
        if blow.kind == "reader" and (read := self._hit_reader(one, blow.part)) is not None:
            return blow.kind, read
        kind = "all" if blow.kind == "all" else "rank"
        killed = self.members if kind == "all" else [one]
        for member in killed:
            member.send(signal.SIGKILL)
        if kind == "all":
            end_readers({member.process.pid for member in killed})
        for member in killed:
            member.process.join(PATIENCE_S)
        self._release()
        dead = [member.page for member in killed if member.code == -signal.SIGKILL]
        return (kind, _most_telling(dead)) if dead else None

    def _hit_reader(self, rank: Member, part: float) -> str | None:
        """Kill the reader that waits for it, or any; where it fell. None where there is none."""
        readers, where, held = rank.readers(), rank.page.where, rank.page.held
        waiting = [reader for reader in readers if reader.pid == held]
        for reader in [*waiting, *readers[int(part * len(readers)) :]][:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                reader.kill()
                self._release()
                return where
        return None

    def _release(self) -> None:
        for page in self.pages:
            page.release()

    def see_out(self) -> list[int]:
        """Wait until all have ended; when one has failed, the others are made to."""
        while (codes := set(self.codes)) & {None}:
            if codes - {None, 0, STOPPED}:
                self._make_end()
                break
            self._check_patience()
            time.sleep(_LOOK_S)
        return [code for code in self.codes if code is not None]

    def _make_end(self) -> None:
        """Let those that are left notice that one has died; ask them to end; kill them."""
        if self._have_ended(_NOTICE_S):
            return
        self._send(signal.SIGTERM)
        if not self._have_ended(_GRACE_S):
            self.forced = self.codes.count(None)
            self._send(signal.SIGKILL)
            for member in self.members:
                member.process.join(PATIENCE_S)

    def _have_ended(self, within_s: float) -> bool:
        for _ in range(int(within_s / _LOOK_S)):
            if None not in self.codes:
                return True
            time.sleep(_LOOK_S)
        return False

    def _send(self, number: signal.Signals) -> None:
        for member in self.members:
            if member.code is None:
                member.send(number)

    def _check_patience(self) -> None:
        # By the looks and not by the clock: a machine that was stopped meanwhile hangs nowhere.
        now = time.monotonic()
        self._waited += min(now - self._looked, _LONGEST_LOOK_S)
        self._looked = now
        if self._waited > PATIENCE_S:
            self._send(signal.SIGUSR1)  # where each of them stands goes into its log
            time.sleep(1)
            raise Hung(f"no end after {PATIENCE_S:.0f} s: {self.tails()}")

    def tails(self) -> str:
        """What each of them said last."""
        return "\n".join(f"[{at}: {member.code}] {member.tail}" for at, member in enumerate(self.members))

    def end(self) -> None:
        """Nothing of it is left when this returns, but for its readers."""
        self._send(signal.SIGKILL)
        for member in self.members:
            member.process.join()
            if member.handle is not None:
                os.close(member.handle)
        self._store = None


class Launcher:
    """Begins processes, and knows how long a training is in each of its places as a rule."""

    def __init__(self) -> None:
        self._forked = multiprocessing.get_context("forkserver")
        self._forked.set_forkserver_preload(list(PRELOADED))
        self._fresh = multiprocessing.get_context("spawn")
        self._typical = dict(_TYPICAL)
        self._starting: dict[tuple[bool, int], float] = {}

    @contextlib.contextmanager
    def training(self, chain: Chain, start: Start, out: Path, name: str) -> Iterator[Crew]:
        """All ranks of a start, ended after the block."""
        store = None
        if start.ranks > 1:
            store = dist.TCPStore(  # type: ignore[attr-defined]
                "127.0.0.1", 0, None, True, wait_for_workers=False
            )
        with contextlib.ExitStack() as stack:
            crew = Crew([], store)
            stack.callback(crew.end)
            members = []
            for rank in range(start.ranks):
                post = _post(chain, f"{name}-{rank}", rank, 0 if store is None else store.port)
                context = self._fresh if start.fresh else self._forked
                members.append(self._begin(context, train, (chain, start, out, post), post))
                crew.members = members
            yield crew
            self._learn(crew)

    @contextlib.contextmanager
    def staging(self, chain: Chain, name: str) -> Iterator[Crew]:
        """A staging, ended after the block."""
        post = _post(chain, name)
        crew = Crew([self._begin(self._forked, stage, (chain, post), post)])
        try:
            yield crew
            self._learn(crew)
        finally:
            crew.end()

    def typical(self, place: str) -> float:
        """Seconds that are spent there at one go."""
        return self._typical[place]

    def starting(self, start: Start) -> float:
        """Seconds from the beginning of a start to its first epoch."""
        return self._starting.get((start.fresh, start.ranks), _STARTING[start.fresh] * start.ranks)

    def learn_start(self, start: Start, seconds: float) -> None:
        """One took so long."""
        self._starting[start.fresh, start.ranks] = _mixed(self.starting(start), seconds)

    def _begin(
        self,
        context: ForkServerContext | SpawnContext,
        work: Callable[..., None],
        words: tuple[Any, ...],
        post: Post,
    ) -> Member:
        page = Page(post.page)
        process = context.Process(target=work, args=words)
        process.start()
        assert process.pid is not None
        handle = None
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(process.pid)
        return Member(process=process, page=page, log=post.log, handle=handle)

    def _learn(self, crew: Crew) -> None:
        for place in self._typical:
            for page in crew.pages:
                if (seconds := page.seconds(place)) is not None:
                    self._typical[place] = _mixed(self._typical[place], seconds)


def end_readers(sessions: Collection[int | None]) -> None:
    """End what ranks that were killed have left; each was the first of its session."""
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            # The ranks themselves are waited for by who began them.
            if process.pid not in sessions and os.getsid(process.pid) in sessions:
                process.kill()
                left.append(process)
    until = time.monotonic() + PATIENCE_S
    while any(map(_is_running, left)) and time.monotonic() < until:
        time.sleep(_LOOK_S)


def _is_running(process: psutil.Process) -> bool:
    """Whether it may still write; one that is dead may be nobody's to wait for."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
    return False


def _post(chain: Chain, name: str, rank: int = 0, port: int = 0) -> Post:
    folder = chain.folder / "processes"
    folder.mkdir(exist_ok=True)
    return Post(page=folder / f"{name}.page", log=folder / f"{name}.log", rank=rank, port=port)


def _most_telling(pages: Sequence[Page]) -> str:
    return min((page.where for page in pages), key=PLACES.index)


def _mixed(old: float, new: float) -> float:
    return 0.7 * old + 0.3 * new
