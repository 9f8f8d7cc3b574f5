"""Which files a job may name: scripts inside the allowed folders, data inside those for data.

Links are followed before a path is judged, so that none leads out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

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

    def check(self, workload: str, config: Mapping[str, Any], database: str | None) -> None:
        """JobRefused where a config names a place outside."""
        for name in _PATHS[workload]:
            given = config[name]
            if given is None or given == database:
                continue
            if given.startswith(_VARIABLE):
                _refuse(
                    f"config.{name}",
                    f"it is {given!r}: a variable of the server is named by whoever starts it "
                    "(stoker serve --database env:NAME), and left out here",
                )
            if not given.startswith(_REMOTE):
                self._check_local(f"config.{name}", given.removeprefix(_SQLITE))
        pattern = Path(config.get("pattern", ""))
        if pattern.is_absolute() or ".." in pattern.parts:
            _refuse("config.pattern", f"it is {str(pattern)!r}: it must stay inside the folder of the data")

    def find_script(self, given: Any) -> Path:
        """The script's whole path; JobRefused where it is not one of an allowed folder's."""
        if not self.scripts:
            _refuse("script", "this server runs no scripts: start it with `stoker serve --scripts FOLDER`")
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

    def _check_local(self, field: str, given: str) -> None:
        found = _resolve(Path(given).expanduser())
        if found is None or not any(found.is_relative_to(folder.resolve()) for folder in self.data):
            allowed = tuple(str(folder) for folder in self.data)
            _refuse(
                field,
                f"{given!r:.200} is outside the folders that jobs may use: put it there, or start the server "
                "with `stoker serve --data FOLDER`",
                allowed,
            )


def _resolve(path: Path) -> Path | None:
    """A path without links; None where there is no such path."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):  # too long, links in a ring, a sign that no path has
        return None


def _refuse(field: str, text: str, allowed: Sequence[str] = ()) -> NoReturn:
    raise JobRefused(Problem(field=field, text=text, allowed=tuple(allowed)))
