"""What the routes are given: the store, who may ask for what, the doctor; and a job as the API tells it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from stoker.facts.secrets import hide_secrets
from stoker.jobs.job import Job
from stoker.jobs.request import Policy
from stoker.jobs.schema import schema_of
from stoker.jobs.server.doctoring import Doctor
from stoker.jobs.server.prometheus import Traffic
from stoker.jobs.server.tokens import Sessions, TokenFile
from stoker.jobs.store import Store
from stoker.train.config_file import without_passwords
from stoker.workloads import NAMES, find

_MOST_SHOWN = 1000


@dataclass(frozen=True, kw_only=True)
class Service:
    """One server's parts. `dispatcher` tells whether it runs; None where there is none beside the server."""

    root: Path
    host: str
    store: Store
    policy: Policy
    tokens: TokenFile
    sessions: Sessions
    traffic: Traffic
    doctor: Doctor
    dispatcher: Callable[[], bool | None] = lambda: None
    # Of one caller, requests a second.
    rate: float = 400.0
    is_secure: bool = False
    _shown: dict[str, tuple[dict[str, Any], list[str]]] = field(default_factory=dict)

    def show(self, job: Job) -> dict[str, Any]:
        """A job's JSON; passwords in its config and its arguments are not told."""
        told = job.to_json()
        told["config"], told["arguments"] = self._asked(job)
        script = job.request.script
        told["script_name"] = None if script is None else self.policy.places.name_script(script)
        # One that never ran has no folder, and a list of such need not ask the disk twice for each.
        has_run = bool(job.attempts)
        told["doctor"] = self.doctor.told(job.id) if has_run else None
        told["report"] = self.doctor.has_report(job.id) if has_run else False
        return told

    def _asked(self, job: Job) -> tuple[dict[str, Any], list[str]]:
        """What it was asked for with, which never changes: looked through for passwords once."""
        known = self._shown.get(job.id)
        if known is None:
            if len(self._shown) >= _MOST_SHOWN:
                self._shown.clear()
            asked = job.request
            known = without_passwords(asked.config), hide_secrets(asked.arguments)
            self._shown[job.id] = known
        return known


@cache
def workloads() -> list[dict[str, Any]]:
    """Each workload with the schema of its config."""
    found = [find(name) for name in NAMES]
    return [{"name": one.name, "title": one.about, "schema": schema_of(one.config())} for one in found]
