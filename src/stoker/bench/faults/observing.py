"""A script under `stoker run`, to be harmed, and what its record has of the steps that it made."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from stoker.bench.faults.scene import SCRIPTS, Child, Scene
from stoker.errors import StokerError
from stoker.ward.torchrun import torchrun
from stoker.watch import Record

LOOP = SCRIPTS / "loop.py"
RUN = "observed"
# A run that is killed loses the last half second of lines; on a machine that others use, rounds come late.
SLACK_S = 2.0


class Observed:
    """One run of the loop, observed."""

    def __init__(
        self,
        scene: Scene,
        *,
        steps: int = 300,
        hold_s: float = 0.02,
        workers: int = 0,
        ranks: int = 1,
        runs: Path | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        script: Path = LOOP,
        options: Sequence[str | Path] = (),
        words: Sequence[str] = (),
    ) -> None:
        self._scene = scene
        self._steps, self._ranks = steps, ranks
        self._cwd, self._env, self._prefix = cwd, env, prefix
        self.runs = scene.folder / "runs" if runs is None else runs
        self._note = scene.folder / "steps"
        self._words: list[str | Path] = ["run", "--quiet", "--runs", self.runs, "--run-id", RUN, *options]
        self._words += [script, "--note", self._note, "--steps", str(steps), "--hold", str(hold_s), *words]
        self._words += ["--workers", str(workers), *(["--ranks"] if ranks > 1 else [])]

    def start(self) -> Child:
        """Begin; with several ranks, as torchrun starts them."""
        if self._ranks == 1:
            return self._scene.stoker(*self._words, cwd=self._cwd, env=self._env, prefix=self._prefix)
        return self._scene.start(
            *torchrun(self._ranks), "-m", "stoker", *self._words, env={"GLOO_SOCKET_IFNAME": "lo"}
        )

    def made(self, rank: int = 0) -> list[float]:
        """When each step was made, by the script's own note."""
        path = self._note.with_name(f"{self._note.name}.{rank}")
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [float(line) for line in lines]

    def reaches(self, child: Child, step: int) -> bool:
        """Wait until so many steps were made; False where it ended before."""
        return self._scene.until(lambda: len(self.made()) >= step, child)

    def draw(self) -> int:
        """A step at which something is to happen."""
        return self._scene.random.randrange(1, self._steps)

    def counts(self, *, until: float | None = None) -> dict[str, tuple[int, int]]:
        """Records that can be read, and their steps beside those made by some moment, each once."""
        found: dict[str, tuple[int, int]] = {}
        readable, expected, there = 0, 0, 0
        for rank in range(self._ranks):
            made = self.made(rank)
            wanted = len(made) if until is None else sum(t < until - SLACK_S for t in made)
            recorded = self.recorded(rank)
            expected += wanted
            if recorded is not None:
                readable += 1
                there += min(wanted, len(recorded)) if recorded == list(range(len(recorded))) else 0
        found["records that can be read"] = (self._ranks, readable)
        found["steps in records"] = (expected, there)
        return found

    def counts_made(self) -> dict[str, tuple[int, int]]:
        """Steps that the script was to make, and made."""
        return {"steps made": (self._steps, len(self.made()))}

    def recorded(self, rank: int = 0) -> list[int] | None:
        """The numbers of the steps in a rank's record; None where it cannot be read."""
        try:
            part = Record.open(self.runs / RUN).ranks[rank]
            numbers = [step.step for step in part.steps()]
            for one in (part.batches(), part.resources()):
                for _ in one:
                    pass
        except (StokerError, KeyError):
            return None
        return numbers

    def about(self, rank: int = 0) -> Mapping[str, object]:
        """What the record says of a rank."""
        return Record.open(self.runs / RUN).ranks[rank].about
