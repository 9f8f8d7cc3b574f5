"""The card's memory at sizes that the doctor did not try: `python -m stoker.ward.untried [FILE]`.

A 3D U-Net with AdamW is diagnosed at a batch of 16; then it is run by itself, in a process for each, at sizes
that were not tried. Its real peaks are those that torch's allocator and the driver tell of that process. What
was predicted stands beside them in FILE, and is printed; so are the peaks of the sizes that it did try, and
what each process of its own had reserved, allocated and held beside.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stoker.ward.surroundings import SCRIPTS

_SCRIPT = "volume_segments.py"
_NET = ("--shape", "32", "64", "64", "--width", "32", "--adamw", "--workers", "2", "--ahead", "2")
_OWN = 16
# None of which a diagnosis of a batch of 16 runs: one between its sizes, and two beyond its own.
SIZES = (12, 24, 48)
_STEPS = 6
_BUDGET = 30
# Run as it stands; then what it had reserved at the most, and what the process held beside its allocator.
_PROBE = """
import json, runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
import torch
free, total = torch.cuda.mem_get_info()
told = {
    "reserved": torch.cuda.max_memory_reserved(),
    "allocated": torch.cuda.max_memory_allocated(),
    "beside": total - free - torch.cuda.memory_reserved(),
}
print(json.dumps(told))
"""


@dataclass(frozen=True, kw_only=True)
class Untried:
    """A size: bytes that were predicted for it, bytes that it took, and by how much that was off, a share."""

    batch: int
    predicted: int
    peak: int

    @property
    def error(self) -> float:
        """Of the real peak."""
        return abs(self.predicted - self.peak) / self.peak

    def to_json(self) -> dict[str, Any]:
        """All of it, by name."""
        return {**asdict(self), "error": self.error}


def compare(vram: Mapping[str, Any], peaks: Mapping[int, int]) -> tuple[Untried, ...]:
    """What a budget's line says of sizes, beside their real peaks. Pure."""
    if vram["fixed"] is None or vram["per_sample"] is None:
        raise ValueError(f"the doctor made no line of the card's memory ({vram['why']}): see its JSON")
    return tuple(
        Untried(batch=batch, predicted=vram["fixed"] + vram["per_sample"] * batch, peak=peak)
        for batch, peak in peaks.items()
    )


def measure(folder: Path) -> dict[str, Any]:
    """Diagnose, run the other sizes, and put both together; a card is needed."""
    script = str(SCRIPTS / _SCRIPT)
    doctor = ("-m", "stoker", "doctor", "--json", "--budget", str(_BUDGET))
    told = _answer(folder, *doctor, script, *_NET, "--batch", str(_OWN))
    vram = told["budget"]["vram"]
    tried = {point["samples"]: point["peak"] for point in told["device"]["resized"]}
    peaks, apart = {}, {}
    for batch in SIZES:
        few = ("--batch", str(batch), "--patches", str(batch * _STEPS), "--epochs", "1")
        held = _answer(folder, "-c", _PROBE, script, *_NET, *few)
        apart[batch] = held
        if batch not in tried:
            peaks[batch] = held["reserved"] + held["beside"] - (vram["others"] or 0)
    found = compare(vram, peaks)
    return {
        "command": f"{_SCRIPT} {' '.join(_NET)}",
        "tried": tried,
        "apart": apart,
        "line": {name: vram[name] for name in ("fixed", "per_sample", "error", "context", "why")},
        "untried": [one.to_json() for one in found],
        "vram_error_max": max(one.error for one in found),
    }


def _answer(folder: Path, *words: str) -> Any:
    """The last line that a Python process prints, as JSON; the doctor prints nothing else."""
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(words[:3])} ended with {done.returncode}: {done.stderr[-2000:]}")
    text = done.stdout.strip()
    return json.loads(text if text.startswith("{") else text.splitlines()[-1])


def main(words: list[str]) -> int:
    """Measure, print, and keep."""
    with tempfile.TemporaryDirectory(prefix="untried-") as folder:
        text = json.dumps(measure(Path(folder)), indent=1) + "\n"
    if words:
        Path(words[0]).write_text(text)
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
