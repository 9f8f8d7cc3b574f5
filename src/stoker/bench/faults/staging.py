"""A `stoker stage` in a process of its own, to be harmed, and what it staged, counted."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from stoker.bench.faults.scene import Child, Scene
from stoker.feed.manifest import NAME
from stoker.feed.stage_plan import LOCK


class Staging:
    """One source staged into one folder. Started again, it goes on."""

    def __init__(
        self,
        scene: Scene,
        source: str | Path,
        *,
        origin: Path,
        target: Path | None = None,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._scene = scene
        self._words = ("stage", "--json", "--jobs", "4", *options, str(source))
        self._origin = origin
        self._env = env
        self.target = scene.folder / "staged" if target is None else target

    def start(self, *options: str) -> Child:
        """Begin, or go on."""
        return self._scene.stoker(*self._words, self.target, *options, env=self._env)

    @property
    def files(self) -> int:
        """Files that have their names so far."""
        return len(self._staged())

    def reaches(self, child: Child, files: int) -> bool:
        """Wait until so many files are there; False where it ended before."""
        return self._scene.until(lambda: self.files >= files, child)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Files that must be there, and those that are, byte by byte; and what is there besides."""
        wanted = {path.relative_to(self._origin): path for path in _files(self._origin)}
        there = self._staged()
        whole = sum(name in there and there[name].read_bytes() == path.read_bytes()
                    for name, path in wanted.items())  # fmt: skip
        return {"files": (len(wanted), whole), "files that are none of the set": (0, len(there) - whole)}

    def counts_so_far(self) -> dict[str, tuple[int, int]]:
        """Of what has a name so far: all of it whole."""
        there = self._staged()
        whole = sum(
            path.read_bytes() == (self._origin / name).read_bytes()
            for name, path in there.items()
            if (self._origin / name).exists()
        )
        return {"files": (len(there), whole)}

    def _staged(self) -> dict[Path, Path]:
        """Files by their names in the set; a part of one has none."""
        if not self.target.is_dir():
            return {}
        own = (NAME, LOCK)
        return {
            path.relative_to(self.target): path
            for path in _files(self.target)
            if path.name not in own and not path.name.startswith(".stoker-part-")
        }

    def parts(self) -> tuple[str, ...]:
        """Parts of files that lie there still."""
        return tuple(f"part {path.name}" for path in self.target.rglob(".stoker-part-*"))


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
