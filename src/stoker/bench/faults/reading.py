"""A reader of numbered samples in a process of its own, to be harmed, and what it was handed, counted."""

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from stoker.bench.faults import samples
from stoker.bench.faults.judge import Ended, Speaks
from stoker.bench.faults.scene import SCRIPTS, Child, Scene

BATCH, EPOCHS = 8, 2
STEPS = samples.COUNT // BATCH


class Reading:
    """One job of reading. Started again, it goes on where it was; `told` goes to the script as it stands."""

    def __init__(
        self,
        scene: Scene,
        kind: str = "npy",
        *,
        where: Path | str | None = None,
        tier: str = "source",
        workers: int = 0,
        cache: Path | None = None,
        hold_s: float = 0.02,
        count: int = samples.COUNT,
        home: Path | None = None,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        **told: Any,
    ) -> None:
        self._scene = scene
        self._count = count
        self._env, self._prefix = env, prefix
        home = scene.folder / "reading" if home is None else home
        home.mkdir(parents=True, exist_ok=True)
        self._note, self._spec = home / "note.json", home / "spec.json"
        if where is None:
            made = {name: told[name] for name in ("numbers", "nan") if name in told}
            where = samples.make(kind, home / "data", count=count, **made)
        self.where = where
        spec = {
            "kind": kind,
            "where": str(where),
            "tier": tier,
            "device": "cpu",
            "workers": workers,
            "cache": None if cache is None else str(cache),
            "hold_s": hold_s,
            "batch": BATCH,
            "epochs": EPOCHS,
            "seed": scene.random.randrange(1 << 30),
            "note": str(self._note),
            "count": count,
            **told,
        }
        # Names of files need not be UTF-8: their bytes travel as JSON's escapes.
        self._spec.write_text(json.dumps(spec))

    @property
    def batches(self) -> int:
        """Handed out so far, in all epochs."""
        return sum(map(len, self._epochs().values()))

    def start(self, *, prefix: Sequence[str] | None = None) -> Child:
        """Begin, or go on."""
        return self._scene.start(
            sys.executable,
            SCRIPTS / "read.py",
            self._spec,
            env=self._env,
            prefix=self._prefix if prefix is None else prefix,
        )

    def reaches(self, child: Child, batches: int) -> bool:
        """Wait until so many batches were handed out; False where it ended before."""
        return self._scene.until(lambda: self.batches >= batches, child)

    def draw(self) -> int:
        """A batch at which something is to happen: any but the last."""
        return self._scene.random.randrange(1, EPOCHS * STEPS)

    def ended(self, child: Child, *, own: str = "", names: str = "") -> Ended:
        """Its end: by an error of Stoker's tree, or of its own source (`own`)."""
        speaks: Speaks = "source" if own else "library"
        return child.ended(speaks=speaks, own=own, names=names)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Samples that must have been handed out once an epoch, and those that were, whole."""
        return {"samples": (EPOCHS * self._count, self._once())}

    def counts_so_far(self) -> dict[str, tuple[int, int]]:
        """The same of what was handed out before it ended: nothing wrong, nothing twice."""
        handed = sum(len(batch) for batches in self._epochs().values() for batch in batches)
        return {"samples": (handed, self._once())}

    def _once(self) -> int:
        found = 0
        for batches in self._epochs().values():
            seen = Counter(chain.from_iterable(batches))
            found += sum(
                number == 1 for one, number in seen.items() if one != samples.WRONG and one < self._count
            )
        return found

    def _epochs(self) -> dict[str, list[list[int]]]:
        try:
            found: dict[str, list[list[int]]] = json.loads(self._note.read_text())["epochs"]
        except FileNotFoundError:
            return {}
        return found
