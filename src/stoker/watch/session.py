"""A run from start to end: observer, hooks, recorder, record and view, put together once."""

import os
import platform
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from operator import index
from pathlib import Path
from typing import Any

import psutil
import torch

from stoker import __version__, facts
from stoker.errors import UsageError
from stoker.facts.secrets import hide_password, hide_secrets
from stoker.watch import hooks
from stoker.watch.account import Account
from stoker.watch.observer import Observer
from stoker.watch.record import Writer, default_root
from stoker.watch.recorder import Recorder


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to observe and how: where the record goes, what it is called, what the loop will do.

    Ranks are torchrun's, by the environment, unless a trainer that starts ranks its own way tells them.
    """

    name: str
    command: Sequence[str] = ()
    root: Path = field(default_factory=default_root)
    run_id: str | None = None
    total_steps: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None


class Session:
    """One observed run of this process. `live` is the descriptor that the live view is drawn on, if any.

    >>> session = Session(Plan(name="train"))                                  # doctest: +SKIP
    >>> session.start(); ...; session.finish("done")                           # doctest: +SKIP
    """

    def __init__(
        self,
        plan: Plan,
        live: int | None = None,
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        self.plan = plan
        self.rank = _env_int("RANK", 0) if plan.rank is None else plan.rank
        self.local_rank = _env_int("LOCAL_RANK", 0) if plan.local_rank is None else plan.local_rank
        self.world_size = _env_int("WORLD_SIZE", 1) if plan.world_size is None else plan.world_size
        self.goal = None if plan.total_steps is None else index(plan.total_steps)
        self.steps_before: int | None = None
        self.facts: dict[str, Any] | None = None
        self.id = _run_id(plan.name, self.world_size) if plan.run_id is None else _folder_name(plan.run_id)
        self.folder = (plan.root / self.id).absolute()
        self.observer = Observer()
        self.writer = Writer(self.folder, self.rank)
        self.started = time.time()
        self.recorder = Recorder(
            self.observer,
            self.writer.rank_folder,
            started=self.started,
            goal=lambda: self.goal,
            on_start=self._take_facts,
            live=live,
            pause=pause,
        )
        self._working_folder = str(Path.cwd())
        self.finished = False
        self._pid = os.getpid()

    def start(self) -> None:
        """Begin to observe."""
        self._describe_run()
        self._describe_rank(outcome=None)
        hooks.install(self.observer)
        self.recorder.start()

    def finish(self, outcome: str, *, exit_code: int | None = None, error: str | None = None) -> None:
        """The run has ended: `done`, `failed` or `interrupted`."""
        if self.finished or os.getpid() != self._pid:  # a forked child leaves its parent's run alone
            return
        self.finished = True
        hooks.uninstall()
        self.recorder.stop()
        self.observer.close()
        self._describe_rank(outcome=outcome, exit_code=exit_code, error=error)

    @property
    def account(self) -> Account:
        """What the run has come to, as of half a second ago."""
        return self.recorder.account

    @property
    def failure(self) -> str | None:
        """Why the record stops; None while it goes on."""
        return self.recorder.failure or self.writer.failure

    def overhead(self) -> dict[str, Any]:
        """What observing cost this run, as measured in it."""
        account, note_us = self.account, self.recorder.note_us
        wall = time.time() - self.started
        spent = None
        if note_us is not None and account.updates:
            spent = (note_us * account.notes + self.observer.device_ns / 1e3) / account.updates
        beside = self.recorder.thread_seconds + account.cpu_seconds
        return {
            "hooks_us_per_step": spent,
            "recorder_cpu_share": beside / wall if wall > 0 else None,
        }

    def expect(self, steps: int, *, before: int | None = None) -> None:
        """So many steps are still to come, after those `before` that an earlier, resumed run had made."""
        self.recorder.exchange()
        made = self.account.steps
        self.goal = made + index(steps)
        if not made:  # a second training in one script starts counting again; the record's steps do not
            self.steps_before = before
        self._describe_run()
        self.recorder.exchange()  # whoever asks next is told of it

    def describe(self) -> None:
        """Bring the description of this rank up to date, in the middle of a run."""
        self.recorder.exchange()
        self._describe_rank(outcome=None)

    def to_json(self) -> dict[str, Any]:
        """The run as `stoker run --json` prints it."""
        account = self.account
        return {
            "schema": 1,
            "run": self.id,
            "record": str(self.folder),
            "rank": self.rank,
            "world_size": self.world_size,
            **account.tally.to_json(),
            "batches": [{"loader": n, **making.to_json()} for n, making in sorted(account.making.items())],
            "overhead": self.overhead(),
            "failure": self.failure,
        }

    def _take_facts(self) -> None:
        """What is true of this machine, taken beside the run: it may take a second."""
        if self.rank != 0:
            return
        try:
            found = facts.collect()
            self.facts = facts.to_json(found, facts.warnings_of(found))
        except Exception as error:  # noqa: BLE001  # a machine that cannot be read is no reason to lose the run
            self.facts = {"unavailable": f"{type(error).__name__}: {error}"}
        self._describe_run()

    def _describe_run(self) -> None:
        if self.rank != 0:
            return
        self.writer.describe_run(
            {
                "id": self.id,
                "name": self.plan.name,
                "command": hide_secrets(self.plan.command),
                "folder": self._working_folder,
                "started": self.started,
                "world_size": self.world_size,
                "total_steps": self.goal,
                "steps_before": self.steps_before,
                "versions": {
                    "stoker": __version__,
                    "torch": torch.__version__,
                    "python": platform.python_version(),
                },
                "settings": dict(self.plan.settings),
                "facts": self.facts,
            }
        )

    def _describe_rank(
        self, outcome: str | None, exit_code: int | None = None, error: str | None = None
    ) -> None:
        device, account = self.observer.device, self.account
        self.writer.describe_rank(
            {
                "rank": self.rank,
                "local_rank": self.local_rank,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "started": self.started,
                "ended": None if outcome is None else time.time(),
                "outcome": outcome,
                "exit_code": exit_code,
                "error": None if error is None else hide_password(error),
                "steps": account.steps,
                "device": None if device is None else device.name,
                "gradient_bytes": self.observer.gradient_bytes,
                "collectives": self.observer.meetings.to_json() if self.world_size > 1 else None,
                "loaders": [loader.to_json() for loader in account.loaders],
                "overhead": self.overhead(),
                "failure": self.failure,
            }
        )


def _env_int(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else default


def _folder_name(run_id: str) -> str:
    """An id that was given: the name of a folder among the runs, and no way out of them."""
    if run_id in ("", ".", "..") or any(c in "/\\" or not c.isprintable() for c in run_id):
        raise UsageError(
            f"a run's id is the name of its folder, not {run_id!r}: leave out slashes, or use --runs"
        )
    return run_id


def _run_id(name: str, world_size: int) -> str:
    """A name for the run that every rank arrives at by itself."""
    stem = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)[:40] or "run"
    if world_size == 1 or "TORCHELASTIC_RUN_ID" not in os.environ:
        return f"{time.strftime('%Y%m%d-%H%M%S')}-{stem}-{secrets.token_hex(2)}"
    local = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    names = ["TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"]
    seed = [os.environ.get(key, "") for key in names]
    if local:  # torchrun itself is every rank's parent, and its start time is this run's
        parent = psutil.Process(os.getppid())
        seed += [str(parent.pid), str(parent.create_time())]
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(parent.create_time()))
    else:
        stamp = "multi"
    return f"{stamp}-{stem}-{sha256('/'.join(seed).encode()).hexdigest()[:6]}"
