"""Where a peer lives: an environment of its own, or a folder put on the path of this one."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Made by scripts/bench, outside the project's own environment: peers' dependencies are not ours.
PEERS = Path(".peers")


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A peer that can be run: by which interpreter, with what added to its environment."""

    name: str
    version: str
    python: Path
    env: Mapping[str, str] = field(default_factory=dict)


def find_peer(
    name: str,
    package: str = "",
    *,
    python: Path | None = None,
    path: Path | None = None,
    distribution: str = "",
) -> Peer | str:
    """The peer, or why there is none. `package` is the name to import, to see that it can be.

    With `distribution` instead only its version is asked for: whether it works is for who runs it to tell.
    """
    env: dict[str, str] = {}
    if path is not None:
        inherited = os.environ.get("PYTHONPATH")
        env["PYTHONPATH"] = str(path.absolute()) + (os.pathsep + inherited if inherited else "")
        python = python or Path(sys.executable)
    elif python is None:
        python = PEERS / name / "bin" / "python"
        if not python.exists():
            failed = PEERS / f"{name}.error"
            if failed.exists():
                return f"it could not be installed: {last_line(failed.read_text(errors='replace'))}"
            return f"no environment at {PEERS / name}: scripts/bench makes it"
    # Absolute but not resolved: a virtual environment's interpreter is a link that must stay one.
    python = python.absolute()
    code = f"import {package} as peer; print(peer.__version__)"
    if distribution:
        code = f"from importlib.metadata import version; print(version({distribution!r}))"
    try:
        asked = subprocess.run(
            [str(python), "-c", code],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=120,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{python} could not be asked for it ({error})"
    if asked.returncode:
        return f"{python} cannot import {package or distribution}: {last_line(asked.stderr)}"
    return Peer(name=name, version=asked.stdout.strip().splitlines()[-1], python=python, env=env)


def last_line(text: str) -> str:
    """What a program said last."""
    return (text.strip().splitlines() or ["no reason given"])[-1].strip()
