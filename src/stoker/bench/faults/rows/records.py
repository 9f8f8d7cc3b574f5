"""What is read back later: records, settings, scores. Harmed, they are read as far as they go, or told."""

import json
from functools import partial
from pathlib import Path

from stoker.bench.faults import damage
from stoker.bench.faults.judge import Seen
from stoker.bench.faults.observing import LOOP, RUN, Observed
from stoker.bench.faults.row import Row
from stoker.bench.faults.scene import Scene
from stoker.errors import BenchFailed

_SETTINGS = """# Made by hand
[changes]
num_workers = 2
prefetch_factor = 4
persistent_workers = true
threads = 1

[memory]
peak_bytes = 1000000
"""


def _records(scene: Scene) -> Path:
    """A folder of records with a whole one in it, and scores beside it; a copy for this trial."""

    def make(folder: Path) -> None:
        run = Observed(scene, steps=150, hold_s=0.0, workers=2, runs=folder / "runs")
        ended = run.start().ended()
        if ended.code:
            raise BenchFailed(f"no record to harm: {ended.said}")
        (folder / "calibration.jsonl").write_text("".join(_score(number) for number in range(12)))

    return scene.services.copy_of("records", make, scene.folder / "kept")


def _score(number: int) -> str:
    told = {"change": "num_workers", "low": 90.0, "mid": 100.0 + number, "high": 120.0, "measured": 101.5}
    return json.dumps({"schema": 1, "t": 1.7e9 + number, **told, "values": {"num_workers": 2}}) + "\n"


def harm_record(scene: Scene) -> Seen:
    """A record's files; then it is diagnosed, exported, or scaled up."""
    kept = _records(scene)
    record = kept / "runs" / RUN
    files = [path for path in record.rglob("*") if path.is_file()]
    note = damage.harm(files, scene.random)
    verb = scene.random.choice(
        (
            ("doctor", "--json", "--no-report", str(record)),
            ("doctor", str(record)),
            ("doctor", "--scale", str(record)),
            ("export", "--to", "prometheus", str(record)),
            ("export", "--to", "tensorboard", str(record)),
        )
    )
    ended = scene.stoker(*verb).ended(names=r"run|rank|record|kept")
    return Seen(ended=(ended,), left=scene.left(), note=f"{' '.join(verb[:3])}: {note}")


def harm_scores(scene: Scene) -> Seen:
    """The scores of earlier predictions, which every diagnosis reads."""
    kept = _records(scene)
    scores = kept / "calibration.jsonl"
    note = damage.harm([scores], scene.random)
    record = kept / "runs" / RUN
    ways = (
        ("doctor", "--calibration", "--json", "--runs", str(kept / "runs")),
        ("doctor", "--json", "--no-report", str(record)),
    )
    ended = scene.stoker(*scene.random.choice(ways)).ended(names=r"calibration")
    return Seen(ended=(ended,), left=scene.left(), note=note)


def harm_settings(scene: Scene) -> Seen:
    """A settings file, put over a script, or read by a feed for what the model needs."""
    settings = scene.folder / "stoker.toml"
    settings.write_text(_SETTINGS)
    note = (
        _misspell(settings, scene) if scene.random.random() < 0.5 else damage.harm([settings], scene.random)
    )
    words = ("run", "--quiet", "--with", settings, LOOP, "--note", scene.folder / "steps", "--steps", "12")
    ended = [scene.stoker(*words).ended(names=r"stoker\.toml|change|value|memory|num_workers|threads")]
    if settings.exists():
        from stoker.bench.faults.reading import Reading

        job = Reading(scene)
        ended.append(job.ended(job.start(), names=r"stoker\.toml"))
    return Seen(ended=tuple(ended), left=scene.left(), note=note)


def _misspell(settings: Path, scene: Scene) -> str:
    """A line that a person gets wrong."""
    wrong = scene.random.choice(
        (
            ("num_workers = 2", "num_worker = 2"),
            ("num_workers = 2", "num_workers = -3"),
            ("num_workers = 2", 'num_workers = "two"'),
            ("num_workers = 2", "num_workers = 2.5"),
            ("num_workers = 2", "num_workers = nan"),
            ("[changes]", "changes = 3"),
            ("[changes]", "[[changes]]"),
            ("[changes]", ""),
            ("[memory]\npeak_bytes = 1000000", "memory = 5"),
            ("peak_bytes = 1000000", 'peak_bytes = "much"'),
            ("peak_bytes = 1000000", "peak_bytes = -1"),
            ("prefetch_factor = 4", "prefetch_factor = true"),
            ("threads = 1", "threads = 0"),
        )
    )
    settings.write_text(settings.read_text().replace(*wrong))
    return f"{wrong[1]!r}"


_row = partial(Row, counted="that it is read as far as it goes, or told what is wrong with which file")

ROWS = (
    _row(
        name="record-harmed", part="doctor",
        fault="a record's files, then doctor, --scale, export: bits flipped, cut, gone, noise, older",
        act=harm_record, times=50, seconds=6,
    ),
    _row(
        name="scores-harmed", part="doctor", fault="calibration.jsonl: bits flipped, cut, noise",
        act=harm_scores, times=16, seconds=5,
    ),
    _row(
        name="settings-harmed", part="watch",
        fault="stoker.toml: bits flipped, cut, noise, words and values that are none",
        act=harm_settings, times=26, seconds=10,
    ),
)  # fmt: skip
