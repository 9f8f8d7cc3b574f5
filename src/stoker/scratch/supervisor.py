"""The process between the caller and the script: watches both, ends all, cleans up, tells.

Started by its path with the run's folder and the descriptor of its lock as arguments. Its stdin is the
caller: end-of-file is the caller's death. Its stdout takes the messages, one JSON object a line, the last
of them the result.
"""

import json
import os
import select
import shutil
import sys
import time
from pathlib import Path
from typing import Any

try:
    import stoker.scratch as _  # noqa: F401
except ModuleNotFoundError:
    # The caller had it on a path of its own making.
    sys.path.append(str(Path(__file__).parents[2]))

import psutil

from stoker.scratch import guards, keeper, loggers, outcome, ranks, shm, tree
from stoker.scratch.caller import Caller
from stoker.scratch.channel import Receiver
from stoker.scratch.plan_file import load
from stoker.scratch.values import Shield

# How often memory is read. At 4 GB/s, the rate at which a process can touch new pages, the headroom
# of 512 MiB lasts half of it.
_READ_EVERY_S = 0.25
_READY_WITHIN_S = 60.0
_TAIL_BYTES = 8192


class Supervisor:
    """One run, from the first attempt to hold it to its result."""

    def __init__(self, work: Path, lock: int) -> None:
        self._work = work
        self._lock = lock
        self._plan = load(work)
        self._began = time.monotonic()
        self._receiver = Receiver(work)
        self._caller = Caller()
        self._asked: str | None = None
        self._ended = False
        self._errors: dict[int, str] = {}
        # Of each rank: its last step, when it was last heard of, how it ended; and those that are to wait
        # for the others.
        self._made: dict[int, int] = {}
        self._heard: dict[int, float] = {}
        self._exits: dict[int, int] = {}
        self._left: set[int] = set()
        self._ranks = self._plan.ranks
        self._shield: Shield | None = None
        self._status_rest = b""
        self._shm_own: set[str] = set()

    def run(self) -> None:
        """Hold the run to its end."""
        if sys.platform == "linux":
            from stoker.scratch import kernel

            kernel.adopt_orphans()
        oom_before = guards.oom_kills()
        self._shm_before = shm.names()
        self._open_files()
        guard, timeout, refused = None, None, self._start()
        if refused is None:
            guard, timeout = self._watch()
        self._note_shm(tree.descendants(os.getpid()))
        left = tree.end_all()
        for message in self._receiver.receive():
            self._take(message)
        shm.remove(self._shm_own - self._shm_before)
        ended = outcome.first_to_fail(self._exits, self._errors)
        verdict = outcome.decide(
            outcome.Ending(
                refused=refused,
                ended=self._ended,
                guard=guard,
                timeout_s=timeout,
                asked=self._asked,
                exit_status=None if ended is None else self._exits[ended],
                rank=ended if self._plan.ranks > 1 else None,
                error=self._errors.get(ended or 0) or _last_line(self._tail(self._stderr)),
                uncaught=outcome.uncaught(self._errors, self._plan.ranks),
                oom_killed=guards.oom_kills() > oom_before,
                steps=self._steps,
                steps_limit=self._plan.limits.steps,
                offline=self._plan.offline,
            )
        )
        self._finish(
            {
                "outcome": verdict.outcome,
                "reason": verdict.reason,
                "exit_code": verdict.exit_code,
                "signal": verdict.signal,
                "guard": verdict.guard,
                "seconds": time.monotonic() - self._began,
                "steps": self._steps,
                "left": left,
                "shield": None if self._shield is None else vars(self._shield),
                "stderr_tail": self._tail(self._stderr),
                "stdout_tail": self._tail(self._stdout),
            }
        )

    def _open_files(self) -> None:
        folder = self._plan.output or self._work
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._stdout = os.open(folder / "stdout.txt", flags, 0o644)
        self._stderr = os.open(folder / "stderr.txt", flags, 0o644)
        self._stdin = os.open(self._plan.stdin or Path(os.devnull), os.O_RDONLY)

    def _start(self) -> str | None:
        """Have a keeper hold the run in the best way that works; return why none does."""
        reasons: list[str] = []
        for attempt in keeper.attempts(self._plan.mechanisms):
            self._status, status = os.pipe()
            self._status_rest = b""
            keeper.start(attempt, self._held(attempt), status)
            os.close(status)
            word = self._await_ready()
            if "ready" in word:
                self._shield = _shield(attempt, reasons, word["ready"])
                return None
            reasons.append(f"{attempt.by}{' with processes' if attempt.processes else ''}: {word['refused']}")
            os.close(self._status)
            tree.end_all()
        what = "run off the network (leave out --offline)" if self._plan.offline else "run"
        return f"no way to hold the {what} works here: {'; '.join(reasons) or 'this platform has none'}"

    def _held(self, attempt: keeper.Attempt) -> keeper.Held:
        env = {**os.environ, **loggers.ENVIRONMENT}
        if attempt.by != "overlay":
            (self._work / "tmp").mkdir(exist_ok=True)
            env["TMPDIR"] = str(self._work / "tmp")
        env["STOKER_SHIELD"] = attempt.by
        return keeper.Held(
            work=self._work,
            envs=ranks.environments({**env, **self._plan.env}, self._plan.ranks),
            offline=self._plan.offline,
            room_bytes=self._plan.guards.room_bytes,
            writable=tuple(str(path) for path in self._plan.writable),
            direct=tuple(str(path) for path in self._plan.direct),
            lock=self._lock,
            stdin=self._stdin,
            stdout=self._stdout,
            stderr=self._stderr,
        )

    def _await_ready(self) -> dict[str, Any]:
        deadline = time.monotonic() + _READY_WITHIN_S
        while time.monotonic() < deadline:
            select.select([self._status], [], [], deadline - time.monotonic())
            words = self._statuses()
            if words is None:
                return {"refused": "the process that holds it ended"}
            if words:
                return words[0]
        return {"refused": f"not ready within {_READY_WITHIN_S:g} s"}

    def _statuses(self) -> list[dict[str, Any]] | None:
        """What the keeper wrote; `None` when it is gone."""
        chunk = os.read(self._status, 1 << 16)
        if not chunk:
            return None
        *lines, self._status_rest = (self._status_rest + chunk).split(b"\n")
        words = [json.loads(line) for line in lines]
        for word in words:
            if "exit" in word:
                self._exits[word["rank"]] = word["exit"]
        self._note_end()
        return words

    def _watch(self) -> tuple[tuple[Any, str] | None, float | None]:
        """Wait for an end of any kind; return the guard that stopped it, or the limit that it reached."""
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(self._status, select.POLLIN)
        poll.register(self._receiver.number, select.POLLIN)
        read_at = 0.0
        while True:
            if self._caller.is_behind:
                poll.register(1, select.POLLOUT)
            ready = {number for number, _ in poll.poll(_READ_EVERY_S * 1000)}
            if 1 in ready:
                self._caller.flush()
                poll.unregister(1)
            if 0 in ready:
                self._asked = self._caller.listen()
            for message in self._receiver.receive():
                self._take(message)
            if self._ended or self._asked is not None:
                return None, None
            if self._status in ready and self._statuses() is None:
                return None, None
            now = time.monotonic()
            limit = self._limit_reached(now)
            if limit is not None:
                return limit
            if now - read_at >= _READ_EVERY_S:
                read_at = now
                processes = tree.descendants(os.getpid())
                stopped = guards.judge(self._read(processes), self._plan.guards)
                if stopped is not None:
                    name, reason = stopped
                    return (name, reason + (ranks.most_of_it(processes) if name == "ram" else "")), None

    def _limit_reached(self, now: float) -> tuple[tuple[Any, str] | None, float | None] | None:
        limits = self._plan.limits
        if limits.seconds is not None and now - self._began > limits.seconds:
            return None, limits.seconds
        heard = {rank: at for rank, at in self._heard.items() if rank not in self._over}
        made = {rank: self._made.get(rank) for rank in heard}
        for rank, at in heard.items():
            starts = made[rank] is None and limits.start_seconds is not None
            allowed = limits.start_seconds if starts else limits.idle_seconds
            if allowed is not None and now - at > allowed:
                return ("idle", ranks.no_progress(allowed, made)), None
        return None

    @property
    def _over(self) -> set[int]:
        """Ranks that make no more steps, and have not failed."""
        return self._left | {rank for rank, status in self._exits.items() if not status}

    def _note_end(self) -> None:
        """Ranks that have left are ended with the last of them."""
        self._ended = self._ended or (bool(self._left) and len(self._over) >= self._ranks)

    def _read(self, processes: list[psutil.Process]) -> guards.Reading:
        self._note_shm(processes)
        root = None
        if self._shield is not None and self._shield.by == "overlay":
            root = guards.root_of(processes)
        return guards.read(
            processes,
            ram_limit=self._plan.guards.ram_bytes,
            root=root,
            outputs=(self._stdout, self._stderr),
        )

    def _note_shm(self, processes: list[psutil.Process]) -> None:
        """Remember the shared memory of these processes, where it is the machine's and not their own."""
        if self._shield is not None and self._shield.by != "overlay":
            self._shm_own |= shm.held_by(processes)

    def _take(self, message: dict[str, Any]) -> None:
        kind, body, rank = message["kind"], message["body"], message["rank"]
        now = self._heard[rank] = time.monotonic()
        if kind in ("progress", "end", "left") and body.get("step") is not None:
            self._made[rank] = body["step"]
        self._ended = self._ended or kind == "end"
        if kind == "left":
            self._left.add(rank)
            self._ranks = body["ranks"]
            self._note_end()
        if kind == "error":
            self._errors[rank] = body["text"]
        if kind == "shield" and self._shield is not None:
            why = "; ".join(filter(None, (body["reason"], self._shield.reason)))
            self._shield = Shield(**{**vars(self._shield), **body, "reason": why})
            return
        self._caller.tell(kind=kind, body=body, at=now - self._began, rank=rank)

    @property
    def _steps(self) -> int | None:
        """Those that all ranks have made."""
        return min(self._made.values(), default=None)

    def _tail(self, number: int) -> str:
        size = os.fstat(number).st_size
        return os.pread(number, _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace")

    def _finish(self, result: dict[str, Any]) -> None:
        shutil.rmtree(self._work, ignore_errors=True)
        self._caller.tell(kind="result", body=result)
        self._caller.finish()


def _shield(attempt: keeper.Attempt, reasons: list[str], notes: list[str]) -> Shield:
    why = "; ".join([*notes, *reasons])
    return Shield(
        kind="full" if attempt.by == "overlay" else "partial",
        by=attempt.by,
        reason=why,
        pid_namespace=attempt.processes,
    )


def _last_line(text: str) -> str | None:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else None


def main() -> None:
    """Run the supervisor."""
    Supervisor(Path(sys.argv[1]), int(sys.argv[2])).run()


if __name__ == "__main__":
    main()
