"""Which files a job may name: scripts inside the allowed folders, data inside those for data.

Links are followed before a path is judged, so that none leads out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.errors import JobRefused, Problem

# Settings that name a file or folder of this machine, or an address elsewhere.
_PATHS = {
    "heimdall": ("database",),
    "imagenet": ("data", "stage", "keep", "weights"),
    "sar": ("data",),
    "vesuvius": ("data",),
}
_SQLITE, _VARIABLE = "sqlite:///", "env:"
# Addresses of other machines; a file's is a path.
_REMOTE = ("postgresql://", "postgres://", "s3://", "gs://", "az://", "http://", "https://")
_MOST_LISTED, _MOST_NAMED = 500, 50


@dataclass(frozen=True, kw_only=True)
class Places:
    """The folders that were allowed when the server was started."""

    scripts: tuple[Path, ...] = ()
    data: tuple[Path, ...] = ()

    def settle(
        self, workload: str, config: Mapping[str, Any], database: str | None
    ) -> tuple[dict[str, Any], list[Problem]]:
        """A config with whole paths, since a job runs in its own folder; and what it names outside of these.

        Of one that is wrong otherwise, as far as it goes.
        """
        settled, problems = dict(config), []
        for name in _PATHS[workload]:
            given = config.get(name)
            if not isinstance(given, str) or given == database or given.startswith(_REMOTE):
                continue
            scheme = _SQLITE if given.startswith(_SQLITE) else ""
            found = _resolve(Path(given.removeprefix(scheme)))
            if given.startswith(_VARIABLE):
                text = (
                    f"it is {given!r}: a variable of the server is named by whoever starts it "
                    "(stoker serve --database env:NAME), and left out here"
                )
                problems.append(Problem(field=f"config.{name}", text=text))
            elif found is None or not any(found.is_relative_to(folder.resolve()) for folder in self.data):
                text = (
                    f"{given.removeprefix(scheme)!r:.200} is outside the folders that jobs may use: put it "
                    "there, or start the server with `stoker serve --data FOLDER`"
                )
                allowed = tuple(str(folder) for folder in self.data)
                problems.append(Problem(field=f"config.{name}", text=text, allowed=allowed))
            else:
                settled[name] = f"{scheme}{found}"
        pattern = Path(str(config.get("pattern", "")))
        if pattern.is_absolute() or ".." in pattern.parts:
            text = f"it is {str(pattern)!r}: it must stay inside the folder of the data"
            problems.append(Problem(field="config.pattern", text=text))
        return settled, problems

    def find_script(self, given: Any) -> Path:
        """The script's whole path; JobRefused where it is not one of an allowed folder's."""
        if not self.scripts:
            told = "this server runs no scripts: start it with `stoker serve --scripts FOLDER`"
            raise JobRefused(Problem(field="script", text=told))
        if isinstance(given, str) and given.endswith(".py"):
            for folder in self.scripts:
                for start in (folder.parent, folder):
                    found = _resolve(start / given)
                    if found is not None and found.is_relative_to(folder.resolve()) and found.is_file():
                        return found
        known = tuple(self.list_scripts()[:_MOST_NAMED])
        told = f"no script {given!r:.200} in the allowed folders"
        raise JobRefused(Problem(field="script", text=told, allowed=known))

    def list_scripts(self) -> list[str]:
        """The scripts that may be run, as a request names them."""
        found = []
        for folder in self.scripts:
            for path in sorted(folder.rglob("*.py"))[:_MOST_LISTED]:
                inside = path.relative_to(folder)
                if not any(part.startswith((".", "__")) for part in inside.parts):
                    found.append(str(Path(folder.name) / inside))
        return found


def whole_address(database: str) -> str:
    """A database by an address that means the same in every folder.

    >>> whole_address("postgresql://host/db"), whole_address("sqlite:////data/radio.db")
    ('postgresql://host/db', 'sqlite:////data/radio.db')
    """
    if not database.startswith(_SQLITE):
        return database
    return f"{_SQLITE}{Path(database.removeprefix(_SQLITE)).absolute()}"


def _resolve(path: Path) -> Path | None:
    """A path without links and `~`; None where there is no such path."""
    try:
        return path.expanduser().resolve()
    except (
        OSError,
        RuntimeError,
        ValueError,
    ):  # too long, links in a ring, nobody's home, a sign no path has
        return None
