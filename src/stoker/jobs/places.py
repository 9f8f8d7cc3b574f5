"""Which files a job may name: scripts inside the allowed folders, data inside those for data.

Links are followed before a path is judged, so that none leads out. What a job writes stays out of the folders
whose files are run: else a copied file could be asked for as a script.
"""

import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.errors import JobRefused, Problem
from stoker.facts.secrets import hide_password
from stoker.jobs.job import Request

# Settings that name a file or folder of this machine, or whom to ask for data.
_PATHS = {
    "heimdall": ("database",),
    "imagenet": ("data", "stage", "keep", "weights", "endpoint"),
    "sar": ("data",),
    "vesuvius": ("data",),
}
_SQLITE = "sqlite:///"
_DATABASE = ("heimdall", "database")
# What only whoever starts the server names, by how it begins: the passwords and keys that the server's user
# has in files and variables would be sent to whom a request names.
_SERVERS: Mapping[tuple[str, str], tuple[tuple[str, ...], str]] = {
    _DATABASE: (("postgresql://", "postgres://", "env:"), "stoker serve --database URL, or env:NAME"),
    ("imagenet", "endpoint"): (("",), "AWS_ENDPOINT_URL in its environment"),
}
# Of the paths, which may be another machine's, and by which addresses; all others are only ever local.
_REMOTE = {("imagenet", "data"): ("s3://", "gs://", "az://", "http://", "https://")}
# Where a training writes; a database too, where it is to be filled.
_WRITTEN = frozenset({("imagenet", "stage"), ("imagenet", "keep")})
_MOST_LISTED, _MOST_NAMED = 500, 50


@dataclass(frozen=True, kw_only=True)
class Places:
    """The folders that were allowed when the server was started."""

    scripts: tuple[Path, ...] = ()
    data: tuple[Path, ...] = ()
    # The jobs' own, where none may write but by its own folder; None: not known.
    root: Path | None = None

    def check(self, request: Request, database: str | None) -> None:
        """JobRefused where a request that was taken once names what these no longer allow."""
        if request.script is not None:
            self.find_script(request.script)
        elif request.workload is not None:
            _, problems = self.settle(request.workload, request.config, database)
            if problems:
                raise JobRefused(*problems)

    def settle(
        self, workload: str, config: Mapping[str, Any], database: str | None
    ) -> tuple[dict[str, Any], list[Problem]]:
        """A config with whole paths, since a job runs in its own folder; and what it names outside of these.

        Of one that is wrong otherwise, as far as it goes.
        """
        settled, problems = dict(config), []
        for name in _PATHS[workload]:
            setting, given = (workload, name), config.get(name)
            is_servers = setting == _DATABASE and given == database
            if not isinstance(given, str) or is_servers or given.startswith(_REMOTE.get(setting, ())):
                continue
            starts, whose = _SERVERS.get(setting, ((), ""))
            if given.startswith(starts):
                text = (
                    f"it is {hide_password(given)!r:.200}: that is named by whoever starts the server "
                    f"({whose}), and left out here"
                )
                problems.append(Problem(field=f"config.{name}", text=text))
                continue
            is_written = setting in _WRITTEN or (setting == _DATABASE and bool(config.get("fill")))
            found = self._settle_path(setting, given, is_written=is_written)
            if isinstance(found, Problem):
                problems.append(found)
            else:
                settled[name] = found
        pattern = Path(str(config.get("pattern", "")))
        if pattern.is_absolute() or ".." in pattern.parts:
            text = f"it is {str(pattern)!r}: it must stay inside the folder of the data"
            problems.append(Problem(field="config.pattern", text=text))
        return settled, problems

    def _settle_path(self, setting: tuple[str, str], given: str, *, is_written: bool) -> str | Problem:
        """One path in full, or what is wrong with it."""
        field = f"config.{setting[1]}"
        scheme = _SQLITE if setting == _DATABASE and given.startswith(_SQLITE) else ""
        named = given.removeprefix(scheme)
        if not scheme and "://" in given:
            known = _REMOTE.get(setting, ())
            text = f"{given!r:.200} is an address elsewhere: give a path of this machine"
            return Problem(field=field, text=text + (f", or {', '.join(known)}…" if known else ""))
        found = _resolve(Path(named))
        if found is None or not any(found.is_relative_to(folder.resolve()) for folder in self.data):
            text = (
                f"{named!r:.200} is outside the folders that jobs may use: put it "
                "there, or start the server with `stoker serve --data FOLDER`"
            )
            return Problem(field=field, text=text, allowed=tuple(str(folder) for folder in self.data))
        if is_written and (kept := self._kept_from(found)) is not None:
            text = (
                f"{named!r:.200} would be written to, and {kept} is kept from that (scripts, programs "
                "and the jobs' own files): name a folder that neither holds it nor lies in it"
            )
            return Problem(field=field, text=text)
        return f"{scheme}{found}"

    def _kept_from(self, path: Path) -> Path | None:
        """The folder on whose account a job may not write there."""
        own = () if self.root is None else (self.root,)
        kept: tuple[Path, ...] = (*self.scripts, *own, *_programs())
        for folder in (one.resolve() for one in kept):
            if path.is_relative_to(folder) or folder.is_relative_to(path):
                return folder
        return None

    def find_script(self, given: Any) -> Path:
        """The script's whole path; JobRefused where it is not one of an allowed folder's."""
        if not self.scripts:
            told = "this server runs no scripts: start it with `stoker serve --scripts FOLDER`"
            raise JobRefused(Problem(field="script", text=told))
        found = self._find(given) if isinstance(given, str) and given.endswith(".py") else None
        if found is None:
            known = tuple(self.list_scripts()[:_MOST_NAMED])
            told = f"no script {given!r:.200} in the allowed folders"
            raise JobRefused(Problem(field="script", text=told, allowed=known))
        return found

    def list_scripts(self) -> list[str]:
        """The scripts that may be run, as a request names them."""
        found = []
        for folder in self.scripts:
            for path in sorted(folder.rglob("*.py"))[:_MOST_LISTED]:
                inside = path.relative_to(folder)
                if not any(part.startswith((".", "__")) for part in inside.parts):
                    found.append(self._name(folder, path))
        return found

    def name_script(self, script: str) -> str | None:
        """A script by the name that `list_scripts` has for it; None where its folder is not allowed."""
        path = Path(script)
        for folder in (one for one in self.scripts if path.is_relative_to(one.resolve())):
            return self._name(folder, folder / path.relative_to(folder.resolve()))
        return None

    def _name(self, folder: Path, path: Path) -> str:
        """By its folder; in full where that leads to another, as with two folders of the same name."""
        name = str(Path(folder.name) / path.relative_to(folder))
        if len(self.scripts) > 1 and self._find(name) not in (None, _resolve(path)):
            return str(path)
        return name

    def _find(self, name: str) -> Path | None:
        # By its listed name first: inside another folder a script may have the same one.
        listed = [(one.parent, one) for one in self.scripts if Path(name).parts[:1] == (one.name,)]
        others = [(start, one) for one in self.scripts for start in (one.parent, one)]
        for start, folder in (*listed, *others):
            found = _resolve(start / name)
            if found is not None and found.is_relative_to(folder.resolve()) and found.is_file():
                return found
        return None


def whole_address(database: str) -> str:
    """A database by an address that means the same in every folder.

    >>> whole_address("postgresql://host/db"), whole_address("sqlite:////data/radio.db")
    ('postgresql://host/db', 'sqlite:////data/radio.db')
    """
    if not database.startswith(_SQLITE):
        return database
    return f"{_SQLITE}{Path(database.removeprefix(_SQLITE)).absolute()}"


def _programs() -> tuple[Path, ...]:
    """Folders that this interpreter runs code from, which may lie in a folder of data."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found: dict[str, None] = dict.fromkeys(sysconfig.get_path(name) for name in names)
    return (*map(Path, found), Path(__file__).parents[1])


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
