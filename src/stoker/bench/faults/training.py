"""A training of Stoker's own in a process, to be harmed; its losses beside those of one left in peace."""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.bench.faults.scene import Child, Scene
from stoker.errors import BenchFailed, StokerError
from stoker.train.checkpoint import Checkpoints
from stoker.ward.torchrun import torchrun

# The smallest of the reference workloads: some hundred steps of a few milliseconds.
SETTINGS = (
    "made.samples=96", "width=8", "layers=1", "heads=1", "train.epochs=30", "train.batch_size=16",
    "train.device=cpu", "train.picture=false", "train.loggers=[]", "train.preflight=false",
    "train.log_every=1", "train.save.every=5", "train.seed=3",
)  # fmt: skip


class Training:
    """One training into one folder. Started again, it goes on from its last good checkpoint."""

    def __init__(
        self,
        scene: Scene,
        *,
        ranks: int = 1,
        out: Path | None = None,
        cwd: Path | None = None,
        settings: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._scene, self._ranks, self._env = scene, ranks, env
        self._cwd = _home(scene) if cwd is None else cwd
        self.out = scene.folder / "training" if out is None else out
        self._settings = (*SETTINGS, *settings)

    def start(self, *options: str, by_torchrun: bool = False) -> Child:
        """Begin, or go on; several ranks are torchrun's, or the trainer's own."""
        words = ["train", "heimdall", *self._settings, "--out", os.fspath(self.out), *options]
        env = {"GLOO_SOCKET_IFNAME": "lo", **(self._env or {})}
        if by_torchrun:
            return self._scene.start(*torchrun(self._ranks), "-m", "stoker", *words, cwd=self._cwd, env=env)
        return self._scene.stoker(*words, f"train.devices={self._ranks}", cwd=self._cwd, env=env)

    @property
    def step(self) -> int:
        """The last step in the journal."""
        return max(self.losses(), default=0)

    def reaches(self, child: Child, step: int) -> bool:
        """Wait until the journal has that step; False where the training ended before."""
        return self._scene.until(lambda: self.step >= step, child)

    def draw(self) -> int:
        """A step at which something is to happen."""
        return self._scene.random.randrange(1, len(undisturbed(self._scene, self._ranks)))

    def losses(self) -> dict[int, float]:
        """The loss of each step in the journal; of one that is there twice, none."""
        found = [(line["step"], line["loss"]) for line in self.journal() if line.get("kind") == "train"]
        often = Counter(step for step, _ in found)
        return {step: loss for step, loss in found if often[step] == 1}

    def journal(self) -> list[dict[str, Any]]:
        """The whole lines of the journal."""
        path = self.out / "metrics.jsonl"
        if not path.exists():
            return []
        found = []
        for line in path.read_text(errors="replace").split("\n")[:-1]:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # harmed
        return found

    def counts(self) -> dict[str, tuple[int, int]]:
        """Steps whose loss is that of a training left in peace, to the last bit; checkpoints that load."""
        wanted, got = undisturbed(self._scene, self._ranks), self.losses()
        same = sum(got.get(step) == loss for step, loss in wanted.items())
        return {"steps with their loss": (len(wanted), same), **self.loadable()}

    def loadable(self) -> dict[str, tuple[int, int]]:
        """Whether the newest checkpoint is whole, and no half of one lies there."""
        kept = Checkpoints(self.out / "checkpoints")
        try:
            found = kept.find_last_good()
        except StokerError:
            found = None
        return {"checkpoints that load": (1, int(found is not None and not found.passed_over))}

    def parts(self) -> tuple[str, ...]:
        """Halves of files and checkpoints that lie there still."""
        return tuple(f"part {path.name}" for path in self.out.rglob(".stoker-part-*"))


def undisturbed(scene: Scene, ranks: int) -> dict[int, float]:
    """The losses of a training that is left in peace; made once."""

    def make(folder: Path) -> None:
        training = Training(scene, ranks=ranks, out=folder / "training")
        ended = training.start().ended()
        if ended.code != 0:
            raise BenchFailed(f"a training left in peace ended with {ended.code}: {ended.said[-500:]}")
        (folder / "losses.json").write_text(json.dumps(training.losses()))

    made = scene.services.made(f"undisturbed-{ranks}", make)
    return {int(step): loss for step, loss in json.loads((made / "losses.json").read_text()).items()}


def _home(scene: Scene) -> Path:
    """The folder that trainings are started in: the data that they make are there, once for all."""
    home = scene.services.folder / "trainings"
    home.mkdir(exist_ok=True)
    return home
