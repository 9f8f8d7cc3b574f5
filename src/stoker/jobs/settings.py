"""How the service is set up: what the server, the dispatcher and the runners all have to know."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from stoker.errors import UsageError
from stoker.jobs.job import Request
from stoker.jobs.places import Places


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One service. Children get it by the environment, not by their command line: a URL has passwords."""

    root: Path
    # sqlite:///FILE or postgresql://…; None: jobs.db in the root.
    store: str | None = None
    engine: Literal["local", "ray"] = "local"
    # Jobs that may run at a time without a card; each card is a slot of its own. With Ray, jobs of any kind.
    slots: int = 1
    # Folders that scripts may be run from; none: no scripts.
    scripts: tuple[Path, ...] = ()
    # Folders whose files jobs may name, and the database of those that name none; None: not looked at again
    # when a job starts.
    data: tuple[Path, ...] | None = None
    database: str | None = None
    # A job whose heartbeat was not seen for so long is lost.
    lease_s: float = 30.0
    # After it was told to save and stop, a job has so long before it is killed.
    grace_s: float = 60.0
    # ray://, http:// or "auto": where Ray's jobs are submitted.
    ray_address: str | None = None

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise UsageError(f"slots is {self.slots}: it must be 1 or more")
        if self.lease_s <= 0 or self.grace_s <= 0:
            raise UsageError(f"lease_s {self.lease_s:g} and grace_s {self.grace_s:g} must be above 0")

    @property
    def store_url(self) -> str:
        """Where the store is."""
        return self.store or f"sqlite:///{self.root / 'jobs.db'}"

    def check(self, request: Request) -> None:
        """JobRefused where a job in the store is not allowed by how the service is set up now."""
        if request.script is not None or self.data is not None:
            places = Places(scripts=self.scripts, data=self.data or (), root=self.root)
            places.check(request, self.database)

    def to_environment(self) -> dict[str, str]:
        """For a child process."""
        told = {
            **asdict(self),
            "root": str(self.root.absolute()),
            "scripts": [str(path) for path in self.scripts],
            "data": None if self.data is None else [str(path) for path in self.data],
        }
        return {VARIABLE: json.dumps(told)}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Settings":
        """What `to_environment` told."""
        if VARIABLE not in environment:
            raise UsageError(f"{VARIABLE} is not set: `stoker serve` starts this process, not a person")
        told: dict[str, Any] = json.loads(environment[VARIABLE])
        scripts = tuple(Path(path) for path in told["scripts"])
        data = None if told["data"] is None else tuple(Path(path) for path in told["data"])
        return cls(**{**told, "root": Path(told["root"]), "scripts": scripts, "data": data})


VARIABLE = "STOKER_JOBS"
