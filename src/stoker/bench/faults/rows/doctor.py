"""Diagnoses and searches: killed amid scratch runs, given scripts that are none, or too little memory."""

import hashlib
import json
from functools import partial
from pathlib import Path

from stoker.bench.faults import damage
from stoker.bench.faults.disks import MIB, disk
from stoker.bench.faults.judge import Seen
from stoker.bench.faults.observing import LOOP
from stoker.bench.faults.row import GOES_ON, Row
from stoker.bench.faults.rows.watch import SCRIPTS as MALFORMED
from stoker.bench.faults.scene import Scene
from stoker.errors import BenchFailed
from stoker.ward import surroundings

# On a machine that others use, a script's first step may take half of that.
_BUDGET_S, _TUNE_BUDGET_S = 45, 60


def kill_doctor(scene: Scene) -> Seen:
    """The doctor's process: all that it started goes with it, and the script's folder is as it was."""
    home = _home(scene)
    before = _digest(home)
    child = scene.stoker("doctor", "--no-report", "--budget", str(_BUDGET_S), *_words(), cwd=home)
    reached = scene.until(lambda: bool(scene.marked("bootstrap.py")), child, every_s=0.2)
    scene.pause(_BUDGET_S * 0.8)
    met = child.kill() and reached
    left = scene.left()
    after = scene.stoker("doctor", "--no-report", "--budget", str(_BUDGET_S), *_words(), cwd=home).ended()
    counts = {"files of the script as they were": (1, int(_digest(home) == before))}
    return Seen(ended=(after,), counts=counts, left=(*left, *scene.left()), met=met)


def limit_doctor(scene: Scene) -> Seen:
    """A script that takes memory without end, in a memory group: told of, and the doctor lives."""
    home = _home(scene)
    megabytes = scene.random.randint(1000, 1400)
    with surroundings.memory(megabytes, scene.folder) as around:
        words = (
            "doctor",
            "--json",
            "--no-report",
            "--budget",
            str(_BUDGET_S),
            *_words(),
            "--hungry",
            "--hold",
            "0.01",
        )
        ended = scene.stoker(*words, cwd=home, prefix=around.prefix).ended(names=r"memory|killed")
    return Seen(ended=(ended,), left=scene.left(), note=f"{megabytes} MiB")


def malformed_script(scene: Scene) -> Seen:
    """Scripts that are none, for the doctor and for a search."""
    name = scene.random.choice(sorted(MALFORMED))
    script = scene.folder / "script.py"
    script.write_bytes(MALFORMED[name])
    verb: tuple[str, ...] = ("doctor", "--no-report", "--budget", str(_BUDGET_S))
    if scene.random.random() < 0.25:
        verb = ("tune", "--budget", str(_TUNE_BUDGET_S))
    ended = scene.stoker(*verb, script).ended(names=r"script\.py")
    return Seen(ended=(ended,), left=scene.left(), note=f"{verb[0]}: {name}")


def lock_folder(scene: Scene) -> Seen:
    """A working folder that is read-only, or has no room, for the doctor and for a search."""
    with disk(scene.folder / "disk", 4 * MIB) as small:
        (small.folder / "train.py").write_bytes(LOOP.read_bytes())
        is_full = scene.random.random() < 0.5
        if is_full:
            small.fill()
        else:
            small.lock()
        words = ("train.py", "--note", "steps", "--steps", "100000")
        verb: tuple[str, ...] = ("doctor", "--budget", str(_BUDGET_S))
        if scene.random.random() < 0.3:
            verb = ("tune", "--budget", str(_TUNE_BUDGET_S), "--out", str(scene.folder / "found.toml"))
        ended = scene.stoker(*verb, *words, cwd=small.folder).ended(names=r"disk")
        return Seen(
            ended=(ended,), left=scene.left(), note=f"{verb[0]}, {'full' if is_full else 'read-only'}"
        )


def kill_tune(scene: Scene) -> Seen:
    """A search: what was tried is kept, and --resume goes on with it."""
    home = _home(scene)
    before = _digest(home)
    words = ("tune", "--json", "--budget", str(_TUNE_BUDGET_S))
    child = scene.stoker(*words, *_words(), cwd=home)
    reached = scene.until(lambda: bool(scene.marked("bootstrap.py")), child, every_s=0.2)
    scene.pause(_TUNE_BUDGET_S)
    met = child.kill() and reached
    left = scene.left()
    searches = sorted((home / ".stoker" / "tune").glob("*"))
    more = ("--resume", str(searches[-1])) if searches else ()
    after = scene.stoker(*words, *more, *_words(), cwd=home).ended()
    counts = {"files of the script as they were": (1, int(_digest(home) == before))}
    return Seen(ended=(after,), counts=counts, left=(*left, *scene.left()), met=met, note=f"{len(more)}")


def harm_ledger(scene: Scene) -> Seen:
    """A search's files, which --resume reads."""

    def make(folder: Path) -> None:
        (folder / "train.py").write_bytes(LOOP.read_bytes())
        ended = scene.stoker("tune", "--json", "--budget", str(_TUNE_BUDGET_S), *_words(), cwd=folder).ended()
        if ended.code:
            raise BenchFailed(f"no search to harm: {ended.said}")

    home = scene.services.copy_of("search", make, scene.folder / "home")
    [search] = (home / ".stoker" / "tune").glob("*")
    files = [search / "search.json", *search.glob("trials/*/trial.json")]
    note = damage.harm(files, scene.random)
    words = ("tune", "--json", "--budget", str(_TUNE_BUDGET_S), "--resume", str(search), *_words())
    ended = scene.stoker(*words, cwd=home).ended(names=r"search|trial")
    return Seen(ended=(ended,), left=scene.left(), note=note)


def _home(scene: Scene) -> Path:
    home = scene.folder / "home"
    home.mkdir()
    (home / "train.py").write_bytes(LOOP.read_bytes())
    (home / "results.json").write_text(json.dumps({"kept": "from before"}))
    return home


def _words() -> tuple[str, ...]:
    return ("train.py", "--note", "steps", "--steps", "100000", "--hold", "0.002", "--slow", "0.0005")


def _digest(folder: Path) -> str:
    """Of the files that are the script's, not Stoker's own."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and ".stoker" not in path.parts and path.name != "stoker.toml":
            found.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return found.hexdigest()


_COUNTED = "the script's own files; processes, temporary files and mounts that are left"
_row = partial(Row, counted=_COUNTED)

ROWS = (
    _row(
        name="doctor-kill", part="doctor", fault="kill -9 of the doctor amid an experiment",
        act=kill_doctor, times=4, seconds=45, good=GOES_ON,
    ),
    _row(
        name="doctor-memory", part="doctor", fault="a script that takes memory without end, in 1 to 1.4 GiB",
        act=limit_doctor, times=3, seconds=40, needs=("cgroup-memory",),
    ),
    _row(
        name="doctor-malformed", part="doctor", fault="23 scripts that are none, for doctor and tune",
        act=malformed_script, times=20, seconds=15,
    ),
    _row(
        name="doctor-disk", part="doctor", fault="a working folder that is read-only or full: doctor, tune",
        act=lock_folder, times=6, seconds=25, needs=("mounts",),
    ),
    _row(
        name="tune-kill", part="tune", fault="kill -9 of a search, which is resumed", act=kill_tune, times=3,
        seconds=120, good=GOES_ON,
    ),
    _row(
        name="tune-harmed", part="tune", fault="a search's files, then --resume", act=harm_ledger, times=4,
        seconds=70, counted="that it goes on, or is told what is wrong with which file",
    ),
)  # fmt: skip
