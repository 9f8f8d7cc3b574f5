"""Jobs as processes of this machine: each runner leads a session of its own, and outlives the dispatcher."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable

import psutil

from stoker.errors import EngineAway, EngineFailed
from stoker.facts import gpu, host, nvml, process
from stoker.facts.values import Gpu
from stoker.jobs import ending
from stoker.jobs.engines import admission
from stoker.jobs.engines.engine import Phase, Place, Running
from stoker.jobs.folders import JobFolder
from stoker.jobs.identity import Identity
from stoker.jobs.job import Attempt, Job
from stoker.jobs.runner import GPUS
from stoker.jobs.settings import Settings

# What a runner itself prints; what its training prints is in the log.
RUNNER_TEXT = "runner.txt"
# What a job's folder may be wrong with; everything else at a start is the machine's: memory, disk, files.
_WRONG_FOLDER = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP)


class LocalEngine:
    """`handle` is the runner's host, pid and birth, and the cards it was given."""

    name = "local"

    def __init__(
        self,
        settings: Settings,
        *,
        read_cards: Callable[[], tuple[tuple[Gpu, ...], str | None]] | None = None,
        memory_free: Callable[[], int | None] | None = None,
    ) -> None:
        self._settings = settings
        self._read_cards = read_cards or _read_cards
        self._memory_free = memory_free or _read_memory_free
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def find_place(self, job: Job, running: list[Running]) -> Place | str:
        """By slots, cards, who holds them, and memory, all as they are now."""
        # Those of another engine hold a slot, as they may run here too; their handles are not ours to read.
        ours = [one for one in running if one.engine in (None, self.name)]
        if job.request.gpus and any(one.job.request.gpus and one.handle is None for one in ours):
            return "waits for a GPU: a job is starting, and which it has is not known yet"
        cards, why = self._read_cards() if job.request.gpus else ((), None)
        handles = [Identity.parse(one.handle) for one in ours if one.handle is not None]
        return admission.find_place(
            job,
            cards=cards,
            no_cards=why,
            taken={card for one in handles for card in one.gpus},
            without_card=sum(not one.job.request.gpus for one in running),
            slots=self._settings.slots,
            memory_free=self._memory_free() if admission.need_of(job) is not None else None,
            memory_promised=admission.promised(one.job for one in ours),
            alone=not running,
        )

    def start(self, job: Job, attempt: Attempt, place: Place) -> str:
        """A session of its own: a signal to the server's terminal does not reach it."""
        folder = JobFolder(root=self._settings.root, id=job.id)
        where = folder.attempt(attempt.number)
        cards = ",".join(place.gpus)
        try:
            where.mkdir(parents=True, exist_ok=True)
            with (where / RUNNER_TEXT).open("ab") as out:
                child = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "stoker.jobs.runner",
                        job.id,
                        str(attempt.number),
                        str(attempt.token),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    env={
                        **_threads(self._settings.slots),
                        **os.environ,
                        **self._settings.to_environment(),
                        # A job that was given no card sees none, whatever its config says.
                        "CUDA_VISIBLE_DEVICES": cards,
                        GPUS: cards,
                    },
                )
        except OSError as error:
            if _is_own_fault(error, folder):
                raise EngineFailed(
                    f"cannot start a process for job {job.id}: {error}; mend that, and resume the job"
                ) from error
            raise EngineAway(f"no process can be started now: {error}; it is tried again") from error
        try:
            handle = str(Identity.of(child.pid, place.gpus))
        except OSError as error:  # as where no file can be opened: it could not be found again
            child.kill()
            child.wait()
            raise EngineAway(f"no process can be started now: {error}; it is tried again") from error
        # Those that have ended are asked for by nobody any more, and would stay as zombies.
        self._children = {known: one for known, one in self._children.items() if one.poll() is None}
        self._children[handle] = child
        return handle

    def poll(self, handle: str) -> Phase:
        """Whether the runner lives. What it may have left behind in its session is killed with it."""
        identity = Identity.parse(handle)
        if identity.lives():
            return "alive"
        child = self._children.pop(handle, None)
        if child is not None:
            child.wait()  # it is dead, and waits for that
        identity.kill_session()
        return "gone"

    def stop(self, handle: str, *, save: bool) -> None:
        """SIGTERM to the runner, which has the training save; or an end to all of its session."""
        identity = Identity.parse(handle)
        if save:
            identity.ask_to_end()
        else:
            identity.kill_session()

    def last_words(self, job: Job, attempt: Attempt) -> str | None:
        """The last line that the runner itself printed: a traceback's, where it could not start."""
        folder = JobFolder(root=self._settings.root, id=job.id)
        return ending.last_line(folder.attempt(attempt.number) / RUNNER_TEXT) or None

    def adopt(self, handle: str) -> bool:
        """Those of this machine."""
        return Identity.parse(handle).is_here

    def close(self) -> None:
        """Nothing is held."""


def _is_own_fault(error: OSError, folder: JobFolder) -> bool:
    """Whether something is wrong with this job's own folder, while others' could be made beside it."""
    return (
        error.errno in _WRONG_FOLDER
        and os.path.lexists(folder.path)
        and os.access(folder.path.parent, os.W_OK | os.X_OK)
    )


def _threads(slots: int) -> dict[str, str]:
    """Each its share of the cores: two trainings that each take all of them slow each other to a crawl."""
    cores = host.read().usable_cores
    return {} if cores is None or slots == 1 else {"OMP_NUM_THREADS": str(max(1, int(cores / slots)))}


def _read_cards() -> tuple[tuple[Gpu, ...], str | None]:
    source, reason = nvml.connect()
    if source is None:
        return (), gpu.explain_absence(reason)
    try:
        return gpu.read(source, family=process.family()), None
    finally:
        source.close()


def _read_memory_free() -> int | None:
    found = host.read().memory_free_bytes
    return found if found is not None else int(psutil.virtual_memory().available)
