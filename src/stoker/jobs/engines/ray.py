"""Jobs on a Ray cluster, by its Jobs API: each runner is the entry point of one Ray job.

Ray chooses the node and gives out its cards. What a job reads and writes must be the same on all nodes: the
root on a shared file system, and a store in PostgreSQL where there is more than one node. The package must be
installed there.
"""

import re
import shlex
from typing import Any

from stoker.errors import EngineAway, EngineFailed, MissingExtra
from stoker.jobs.engines.engine import Phase, Place, Running
from stoker.jobs.job import Attempt, Job
from stoker.jobs.settings import Settings

_GONE = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
# Answers that say that the request itself is wrong; all others are Ray's own trouble, which passes.
_REFUSED = re.compile(r"status code (400|413|422)\b")
_MOST_TEXT = 500


class RayEngine:
    """`handle` is the id that Ray knows the job by; made of job and token, so that none starts twice."""

    name = "ray"

    def __init__(self, settings: Settings) -> None:
        try:
            from ray.job_submission import JobSubmissionClient
        except ImportError as error:
            raise MissingExtra("ray", "ray", "The engine ray") from error
        self._settings = settings
        try:
            self._client: Any = JobSubmissionClient(settings.ray_address)
        except (OSError, RuntimeError) as error:
            raise EngineFailed(
                f"no Ray cluster at {settings.ray_address or 'RAY_ADDRESS'}: {error}; start one "
                "(ray start --head), or give the address of its dashboard (http://HOST:8265)"
            ) from error

    def find_place(self, job: Job, running: list[Running]) -> Place | str:
        """As many as there are slots; which node has the cores and cards is Ray's to find."""
        taken, slots = len(running), self._settings.slots
        return Place() if taken < slots else f"waits for a slot: {taken} of {slots} are taken"

    def start(self, job: Job, attempt: Attempt, place: Place) -> str:
        """Submit the runner."""
        handle = f"stoker-{job.id}-{attempt.token}"
        words = [
            "python",
            "-m",
            "stoker.jobs.runner",
            job.id,
            str(attempt.number),
            str(attempt.token),
            handle,
        ]
        try:
            self._client.submit_job(
                entrypoint=shlex.join(words),
                submission_id=handle,
                # Without a core of its own Ray would run every job on the head, whatever nodes there are.
                entrypoint_num_cpus=1,
                entrypoint_num_gpus=job.request.gpus or None,
                entrypoint_memory=job.request.ram_bytes,
                runtime_env={"env_vars": self._settings.to_environment()},
                metadata={"job": job.id, "name": job.name},
            )
        except (OSError, RuntimeError) as error:
            if _REFUSED.search(str(error)):
                raise EngineFailed(f"Ray did not take job {job.id}: {error}") from error
            raise EngineAway(f"Ray takes no job now: {error}; it is asked again") from error
        return handle

    def poll(self, handle: str) -> Phase:
        """As Ray tells it; a job that it does not know is gone. One that does not answer tells nothing."""
        try:
            status = str(self._client.get_job_status(handle).value)
        except OSError:  # also of the library that it asks by, whose errors are these
            return "alive"  # its heartbeat tells
        except RuntimeError as error:
            if "does not exist" in str(error) or "404" in str(error):
                return "gone"
            return "alive"
        if status == "PENDING":
            return "pending"
        return "gone" if status in _GONE else "alive"

    def stop(self, handle: str, *, save: bool) -> None:
        """Kill it. To save first, a runner hears from the store: Ray's own stop leaves it 3 s."""
        if save:
            return
        try:
            self._client.stop_job(handle)
        except (OSError, RuntimeError) as error:
            raise EngineFailed(f"Ray did not stop {handle}: {error}") from error

    def last_words(self, job: Job, attempt: Attempt) -> str | None:
        """Ray's own message: of a runner that could not start it has how that ended, and what it printed."""
        if attempt.handle is None:
            return None
        try:
            told = self._client.get_job_info(attempt.handle).message
        except (OSError, RuntimeError) as error:
            told = f"Ray tells nothing of it: {error}"
        lines = [line.strip() for line in str(told or "").splitlines() if line.strip()]
        # The first says what happened, the last is what was printed last.
        return " ".join(dict.fromkeys((lines[0], lines[-1])))[:_MOST_TEXT] if lines else None

    def adopt(self, handle: str) -> bool:
        """Those that Ray started."""
        return handle.startswith("stoker-")

    def close(self) -> None:
        """The client holds nothing open."""


def count_cards(address: str | None) -> int:
    """Cards of all nodes of the cluster that are there now; EngineFailed where it cannot be asked."""
    try:
        from ray.util.state import list_nodes
    except ImportError as error:
        raise MissingExtra("ray", "ray", "The engine ray") from error
    try:
        nodes = list_nodes(address=address, limit=10_000)
    except Exception as error:  # its own errors have no root but this
        raise EngineFailed(f"the cards of the Ray cluster at {address or 'RAY_ADDRESS'}: {error}") from error
    return sum(int((one.resources_total or {}).get("GPU", 0)) for one in nodes if one.state == "ALIVE")
