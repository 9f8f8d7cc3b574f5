"""One chain of `stoker bench resumes`: a training that is begun, hit and gone on with until it is done."""

import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from stoker.bench.resumes_crew import Crew, Hung, Launcher, end_readers
from stoker.bench.resumes_draws import AIMS, FRESH, MOST, Blow, Plan, Room, Start, draw_blow, draw_start
from stoker.bench.resumes_judge import Trained, count_steps_off, judge, read_trained
from stoker.bench.resumes_places import HELD
from stoker.bench.resumes_rank import DAMAGED, STOPPED, Chain
from stoker.bench.resumes_task import BATCH, STEPS, write_shards
from stoker.errors import BenchFailed
from stoker.feed import Feed
from stoker.feed.sources.npy import NpySource

# Of a batch of rows on one rank, so many pieces are written at least.
_PIECES = 100
# What all chains are compared with: one rank, the whole batch at once, straight from the files.
ALONE = Start(ranks=1, micro_batch=BATCH, way="source", workers=0)


class Runner:
    """Runs a chain. `begun` is how many starts there were before it, over all chains."""

    def __init__(
        self, plan: Plan, chance: Random, room: Room, launcher: Launcher, folder: Path, begun: int
    ) -> None:
        self._plan, self._chance, self._room = plan, chance, room
        self._launcher, self._begun = launcher, begun
        self._chain = Chain(
            folder=folder,
            device="cuda" if room.cards else "cpu",
            salt=plan.seed,
            seed=plan.seed % 1000,
            shuffle=plan.shuffle,
            dropout=plan.dropout,
        )
        self._out = folder / "training"
        self._sessions: set[int] = set()
        self.events: list[dict[str, Any]] = []
        self.starts: list[dict[str, Any]] = []

    def run(self) -> dict[str, Any]:
        """All of it; its line in the state. What went wrong is told in there."""
        began = time.monotonic()
        line: dict[str, Any] = {
            "chain": self._plan.number,
            "seed": self._plan.seed,
            "shuffle": self._plan.shuffle,
            "steady": self._plan.steady is not None,
        }
        failed = verdict = None
        try:
            write_shards(self._chain.origin, self._chain.salt, self._chain.device)
            self._stage()
            alone = self._train_alone(replace(ALONE, fresh=self._room.cards))
            same = self._train_same(alone)
            self._train(alone)
            found = read_trained(self._out)
            if found is None:
                raise BenchFailed("a training that is done has no checkpoint")
            verdict = asdict(judge(found, alone, same))
        except BenchFailed as error:
            failed = f"{'hung: ' if isinstance(error, Hung) else ''}{error}"
        finally:
            self._clear()
        return line | {
            "failed": failed,
            "verdict": verdict,
            "seconds": round(time.monotonic() - began, 1),
            "events": self.events,
            "starts": self.starts,
        }

    # --- staging ----------------------------------------------------------------------------------

    def _stage(self) -> None:
        """Staged whole, after the kills that were drawn for it."""
        for number in range(self._plan.stagings):
            nth, part = self._chance.randint(1, 6), self._chance.random()
            with self._launcher.staging(self._chain, f"stage-{number}") as crew:
                self._know(crew)
                [page] = crew.pages
                if crew.await_place(lambda page=page, nth=nth: page.entered("copy") >= nth):  # type: ignore[misc]
                    time.sleep(part * self._launcher.typical("copy"))
                blow = Blow(kind="rank", rank=0, aim="copy", nth=nth, part=part, latest=0)
                hit = crew.hit(blow)
                crew.see_out()
            if hit is not None:
                self.events.append(
                    {"blow": "staging", "aim": "copy", "fell": hit[1], "damaged": self._count_partial()}
                )
        with self._launcher.staging(self._chain, "stage") as crew:
            self._know(crew)
            [code] = crew.see_out()
        files = [path.name for path in self._chain.origin.iterdir()]
        if code or self._count_partial() or not all((self._chain.data / name).exists() for name in files):
            raise BenchFailed(f"the set was not staged whole: {crew.tails()}")

    def _count_partial(self) -> int:
        """Files that have their name and are not whole."""
        there = self._chain.data.glob("*.npy")
        return sum(path.read_bytes() != (self._chain.origin / path.name).read_bytes() for path in there)

    # --- what it is compared with -----------------------------------------------------------------

    def _train_alone(self, start: Start) -> Trained:
        """A training that nobody hits."""
        name = f"alone-{start.ranks}-{start.micro_batch}"
        with self._launcher.training(self._chain, start, self._chain.folder / name, name) as crew:
            self._know(crew)
            codes = crew.see_out()
            if any(codes):
                raise BenchFailed(f"a training that was left alone ended with {codes}: {crew.tails()}")
        found = read_trained(self._chain.folder / name)
        if found is None or found.step != STEPS:
            raise BenchFailed("a training that was left alone did not come to its end")
        return found

    def _train_same(self, alone: Trained) -> Trained | None:
        """With the chain's own ranks and micro-batch, where these stay."""
        steady = self._plan.steady
        if steady is None:
            return None
        start = replace(ALONE, ranks=steady.ranks, micro_batch=steady.micro_batch)
        return alone if start == ALONE else self._train_alone(replace(start, fresh=self._room.cards))

    # --- the training -----------------------------------------------------------------------------

    def _train(self, alone: Trained) -> None:
        """Begun, hit and gone on with until it is done."""
        kept, blows = 0, 0
        while True:
            start = draw_start(self._chance, self._plan.steady, self._room)
            # A process that is forked from one that has looked for cards cannot use one.
            if self._room.cards or (self._begun + len(self.starts)) % FRESH == FRESH - 1:
                start = replace(start, fresh=True, workers=min(1, start.workers))
            blow = draw_blow(self._chance, start) if blows < MOST else None
            if blow is not None and blow.aim in ("disk", "ram"):
                start = replace(start, bare=True)  # else there may be nothing to write
            event = self._go_on(start, blow, kept)
            self.starts.append(asdict(start) | {name: event.pop(name) for name in ("tier", "direct")})
            if event["blow"] is None:
                return
            blows += 1
            found = read_trained(self._out)
            step = 0 if found is None else found.step
            # A chain's own events are told by the start that each of them ended.
            self.events.append(
                {
                    **event,
                    "start": len(self.starts) - 1,
                    "kept": step,
                    "off": 0 if found is None else count_steps_off(found.journal, alone.journal),
                    "back": max(0, kept - step),
                }
            )
            kept = step

    def _go_on(self, start: Start, blow: Blow | None, kept: int) -> dict[str, Any]:
        """One start, up to its end; what hit it, where, and how far it had come."""
        hit = None
        if start.bare:
            self._clear()
            shutil.rmtree(self._chain.cache, ignore_errors=True)  # there may be none yet
        with self._launcher.training(self._chain, start, self._out, f"start-{len(self.starts)}") as crew:
            self._know(crew)
            if blow is not None and self._await(crew, start, blow, kept):
                hit = crew.hit(blow)
            codes = crew.see_out()
            if hit is not None and not any(codes):
                hit = None  # it came too late
            if hit is None and any(codes):
                raise BenchFailed(f"nobody hit it, and it ended with {codes}, {start}: {crew.tails()}")
            reached = max(kept, crew.updates)
            return {
                "blow": None if hit is None else hit[0],
                "aim": None if blow is None else blow.aim,
                "fell": None if hit is None else hit[1],
                "reached": reached,
                "stopped": bool(codes) and set(codes) == {STOPPED},
                "damaged": codes.count(DAMAGED),
                "forced": crew.forced,
                "tier": crew.pages[0].tier,
                "direct": sum(page.direct for page in crew.pages),
            }

    def _await(self, crew: Crew, start: Start, blow: Blow, kept: int) -> bool:
        """Until the moment that was drawn; False where the start ended before."""
        started: list[float] = []
        if blow.aim in HELD:
            for page in crew.pages if blow.kind in ("all", "stop all") else [crew.pages[blow.rank]]:
                page.order(blow.aim, nth=blow.nth, after=1 + int(blow.part * _PIECES))

        def is_due() -> bool:
            if not started and crew.pages[0].entered("wait"):
                started.append(time.monotonic() - crew.begun)
            return self._aims[blow.aim](crew, start, blow) or crew.updates >= kept + blow.latest

        if not crew.await_place(is_due):
            return False
        if started:
            self._launcher.learn_start(start, started[0])
        if blow.aim not in ("start", "any", *HELD):
            time.sleep(blow.part * self._launcher.typical(blow.aim))
        return True

    @property
    def _aims(self) -> dict[str, Callable[[Crew, Start, Blow], bool]]:
        into = {aim: partial(_is_inside, aim) for aim in AIMS}
        held = dict.fromkeys(HELD, _is_held)
        return into | held | {"start": self._is_starting, "any": lambda crew, start, blow: False}

    def _is_starting(self, crew: Crew, start: Start, blow: Blow) -> bool:
        return time.monotonic() - crew.begun >= blow.part * self._launcher.starting(start)

    # --- afterwards -------------------------------------------------------------------------------

    def _know(self, crew: Crew) -> None:
        """Ranks are the first of their sessions."""
        self._sessions |= {member.process.pid for member in crew.members if member.process.pid is not None}

    def _clear(self) -> None:
        """Nothing of it runs, and nothing is held in memory."""
        end_readers(self._sessions)
        if self._chain.data.is_dir():
            feed = Feed(NpySource(self._chain.data), batch_size=BATCH, device="cpu", tier="ram", workers=0)
            assert feed.tier  # opened: whoever closes it last removes it
            feed.close()


def _is_inside(place: str, crew: Crew, start: Start, blow: Blow) -> bool:
    """Whether who is to be hit is there; beside a checkpoint being written, any rank may be hit."""
    alone = blow.kind == "rank" and place not in ("save", "prune", "restore")
    pages = [crew.pages[blow.rank]] if alone else crew.pages
    return any(page.is_inside(place) and page.entered(place) >= blow.nth for page in pages)


def _is_held(crew: Crew, start: Start, blow: Blow) -> bool:
    return any(page.held is not None for page in crew.pages)
