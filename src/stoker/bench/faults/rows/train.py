"""The trainer: killed, a rank lost, no room, checkpoints and journals harmed. Steps count by their loss."""

import json
import shutil
import sqlite3
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from stoker.bench.faults import damage
from stoker.bench.faults.clock import Clock
from stoker.bench.faults.disks import MIB, disk
from stoker.bench.faults.judge import Ended, Seen
from stoker.bench.faults.row import CLEAR_ERROR, GOES_ON, Row
from stoker.bench.faults.rows.data import strange_name
from stoker.bench.faults.rows.watch import JUMPS_S
from stoker.bench.faults.scene import Scene
from stoker.bench.faults.training import SETTINGS, Training, undisturbed


def kill(scene: Scene) -> Seen:
    """The process, two times over."""
    job = Training(scene)
    met = False
    for step in sorted(job.draw() for _ in range(2)):
        child = job.start()
        reached = job.reaches(child, step)
        scene.pause(0.05)
        met = (child.kill() and reached) or met
    ended = job.start().ended()
    return Seen(ended=(ended,), counts=job.counts(), left=(*scene.left(), *job.parts()), met=met)


def kill_rank(scene: Scene) -> Seen:
    """One of two ranks, torchrun's or the trainer's own: the other ends, and started again both go on."""
    job = Training(scene, ranks=2)
    by_torchrun = scene.random.random() < 0.5
    child = job.start(by_torchrun=by_torchrun)
    reached = job.reaches(child, job.draw())
    ranks = child.below("heimdall")
    if not by_torchrun and not child.is_over:
        ranks.append(psutil.Process(child.pid))
    scene.pause(0.05)
    met = reached and scene.kill_one(ranks)
    first = child.merely_ended()
    # A rank that the trainer started is on its own when the first one is killed: it must see that, and end.
    alone = scene.until(lambda: not scene.marked("heimdall"), every_s=0.2)
    ended = (first, Ended(code=0 if alone else None), job.start(by_torchrun=by_torchrun).ended())
    note = "torchrun's" if by_torchrun else "the trainer's own"
    return Seen(ended=ended, counts=job.counts(), left=(*scene.left(), *job.parts()), met=met, note=note)


def fill_disk(scene: Scene) -> Seen:
    """The disk that is trained into; with room again, the same command goes on."""
    with disk(scene.folder / "disk", 64 * MIB) as small:
        job = Training(scene, out=small.folder / "training")
        child = job.start()
        job.reaches(child, job.draw())
        small.fill(spare=scene.random.choice((0, 4096, 40_000)))
        first = child.ended(names=r"disk")
        small.empty_again()
        ended = (first, job.start().ended()) if first.code else (first,)
        left = (*scene.left(), *job.parts())
        return Seen(ended=ended, counts=job.counts(), left=left, met=bool(first.code))


def lock_disk(scene: Scene) -> Seen:
    """A read-only folder to train into, or to start in; new, or with a training that was killed."""
    with disk(scene.folder / "disk", 64 * MIB) as small:
        is_out = scene.random.random() < 0.6
        job = Training(scene, out=small.folder / "training") if is_out else Training(scene, cwd=small.folder)
        if is_out and scene.random.random() < 0.5:
            child = job.start()
            job.reaches(child, job.draw())
            child.kill()
        small.lock()
        first = job.start().ended(names=r"disk")
        small.unlock()
        ended = (first, job.start().ended())
        left = (*scene.left(), *job.parts())
        return Seen(ended=ended, counts=job.counts(), left=left, note="--out" if is_out else "working folder")


def harm_checkpoint(scene: Scene) -> Seen:
    """The newest checkpoint, or every one; a training goes on from the last good one."""
    job = _killed(scene)
    kept = sorted(path for path in (job.out / "checkpoints").iterdir() if path.is_dir())
    harmed = kept if scene.random.random() < 0.2 else kept[-1:]
    notes = []
    for folder in harmed:
        if scene.random.random() < 0.1:
            shutil.rmtree(folder)
            notes.append(f"{folder.name} removed")
        else:
            files = [path for path in folder.iterdir() if path.is_file()]
            notes.append(f"{folder.name}: {damage.harm(files, scene.random)}")
    first = job.start().ended(names=r"checkpoint|step-")
    ended = (first, job.start("--fresh").ended()) if first.code else (first,)
    left = (*scene.left(), *job.parts())
    return Seen(ended=ended, counts=job.counts(), left=left, note="; ".join(notes))


def harm_journal(scene: Scene) -> Seen:
    """What a training writes beside its checkpoints; it goes on, or begins anew with --fresh."""
    job = _killed(scene)
    if scene.random.random() < 0.3:
        job.start().ended()  # to its end: then there is a result too
    files = [path for path in job.out.iterdir() if path.is_file()]
    files += [path for path in (job.out / "checkpoints").iterdir() if path.is_file()]
    note = damage.harm([path for path in files if path.stat().st_size], scene.random)
    how = scene.random.choice(((), ("--fresh",)))
    first = job.start(*how).ended(names=r"training|heimdall")
    ended = (first, job.start("--fresh").ended()) if first.code else (first,)
    result = job.out / "result.json"
    is_done = result.exists() and json.loads(result.read_text())["ended"] == "done"
    counts = {"trainings done": (1, int(is_done)), **job.loadable()}
    left = (*scene.left(), *job.parts())
    return Seen(ended=ended, counts=counts, left=left, note=f"{note} {' '.join(how)}")


_WRONG = (
    "train.batch_size=-1", "train.batch_size=0", "train.batch_size=many", "train.batch_size=null",
    "train.batch_size=1e400", "train.batch_size=99999999999999999999", "train.epochs=1.5",
    "train.epochs=[]", "train.epochs=true", "train.optimizer=3", "train.optimizer.lr=nan",
    "train.optimizer.lr=inf", "train.optimizer.lr=-1", "train.optimizer.name=adamm", "trian.epochs=3",
    "train.precision=fp7", "train..epochs=3", "=3", "train", "width=0", "width=-8", "width=seven",
    "heads=3", "layers=0", "made.samples=0", "made.samples=-5", "made.samples=1", "made={}", "train=[]",
    "database=nowhere", "database=sqlite:///nowhere.db", "database=postgresql://127.0.0.1:1/none",
    "train.device=tpu", "train.device=cuda", "train.devices=0", "train.loggers=[nosuch]",
    "train.save.keep=0", "train.seed=-1", "dataset_ids=[none]", "train.schedule.name=sawtooth",
)  # fmt: skip


def malformed_config(scene: Scene) -> Seen:
    """A setting that is none, or a file of settings that is none."""
    out = ("--out", str(scene.folder / "training"))
    words = ["train", "heimdall", *SETTINGS, "train.max_steps=2", *out]
    if scene.random.random() < 0.6:
        wrong = scene.random.choice(_WRONG)
        words.append(wrong)
        note = wrong
    else:
        path = scene.folder / scene.random.choice(("config.yaml", "config.toml", "config.json", "config"))
        is_toml = path.suffix == ".toml"
        path.write_text("width = 8\n[train]\nseed = 7\n" if is_toml else "width: 8\ntrain:\n  seed: 7\n")
        note = damage.harm([path], scene.random, damage.ALL[:-1])
        words += ["--config", str(path)]
    child = scene.stoker(*words, cwd=scene.services.folder)
    return Seen(ended=(child.ended(),), left=scene.left(), note=note)


def not_finite(scene: Scene) -> Seen:
    """A loss that is no number: from a rate beyond sense, or from data."""
    how = scene.random.choice(("rate", "data"))
    settings = ["train.optimizer.lr=1e30", "train.clip=0"]
    if how == "data":
        undisturbed(scene, 1)
        [made] = (scene.services.folder / "trainings" / ".stoker" / "data").rglob("*.db")
        path = scene.folder / "nan.db"
        shutil.copy(made, path)
        _put_nan(path)
        settings = [f"database=sqlite:///{path}"]
    job = Training(scene, settings=settings)
    first = job.start().ended(names=r"nan|inf|finite|NaN")
    found = [line for line in job.journal() if line.get("kind") == "train" and line["loss"] is None]
    counts = {"losses of no number kept": (0, len(found))}
    return Seen(ended=(first,), counts=counts, left=scene.left(), note=how)


def jump(scene: Scene) -> Seen:
    """The wall clock, ahead or back."""
    clock = Clock(scene.folder / "clock", scene.environment())
    job = Training(scene, env=clock.env)
    child = job.start()
    reached = job.reaches(child, job.draw())
    clock.jump(scene.random.choice(JUMPS_S))
    ended = child.ended()
    told = [line for line in job.journal() if line.get("kind") == "train"]
    sound = sum((line["eta_seconds"] or 0) >= 0 and (line["samples_per_second"] or 1) > 0 for line in told)
    counts = {**job.counts(), "rates and times left": (len(told), sound)}
    return Seen(ended=(ended,), counts=counts, left=(*scene.left(), *job.parts()), met=reached)


def strange_paths(scene: Scene) -> Seen:
    """A folder to train into of an odd name."""
    job = Training(scene, out=scene.folder / strange_name(scene) / "training")
    child = job.start()
    job.reaches(child, job.draw())
    child.kill()
    ended = job.start().ended()
    note = f"{job.out.parent.name[:20]!a}"
    return Seen(ended=(ended,), counts=job.counts(), left=(*scene.left(), *job.parts()), note=note)


def _killed(scene: Scene) -> Training:
    """A training that was killed when it had checkpoints."""
    job = Training(scene)
    child = job.start()
    job.reaches(child, max(12, job.draw()))
    child.kill()
    return job


def _put_nan(path: Path) -> None:
    table = sqlite3.connect(path)
    with table:
        [(value,)] = table.execute("SELECT features FROM samples LIMIT 1")
        broken = np.full(len(value) // 4, np.nan, np.float32).tobytes()
        table.execute("UPDATE samples SET features = ?", (broken,))
    table.close()


_COUNTED = "steps whose loss is that of a training left in peace, to the bit; checkpoints that load; parts"
_row = partial(Row, part="train", counted=_COUNTED)

ROWS = (
    _row(
        name="train-kill", fault="kill -9 of a training, twice", act=kill, times=6, seconds=40, good=GOES_ON,
    ),
    _row(
        name="train-kill-rank", fault="kill -9 of one of two ranks, torchrun's or the trainer's own",
        act=kill_rank, times=6, seconds=60, good=GOES_ON,
    ),
    _row(
        name="train-disk-full", fault="the disk that is trained into fills up", act=fill_disk, times=6,
        seconds=30, good=CLEAR_ERROR, needs=("mounts",),
    ),
    _row(
        name="train-disk-read-only", fault="a read-only folder to train into, or to start in",
        act=lock_disk, times=5, seconds=30, needs=("mounts",),
    ),
    _row(
        name="checkpoint-harmed", fault="the newest checkpoint or all: bits flipped, cut, gone, noise, older",
        act=harm_checkpoint, times=14, seconds=30,
    ),
    _row(
        name="journal-harmed", fault="metrics, config, result, best and lock files of a training",
        act=harm_journal, times=12, seconds=35,
        counted="trainings that come to their end; checkpoints that load; parts",
    ),
    _row(
        name="config-malformed", fault="40 settings that are none; files of settings cut, flipped, noise",
        act=malformed_config, times=40, seconds=8, counted="that it is told, or trains",
    ),
    _row(
        name="train-nan", fault="a loss that is no number, from a rate of 1e30 or from data",
        act=not_finite, times=4, seconds=12, good=CLEAR_ERROR, counted="that none of it is kept",
    ),
    _row(
        name="train-clock", fault="the wall clock jumps by 5 s to 40 years, ahead or back", act=jump, times=4,
        seconds=20, good=GOES_ON,
    ),
    _row(
        name="paths-train", fault="names of no UTF-8, 255 bytes, 2,000 deep, quotes, line ends",
        act=strange_paths, times=6, seconds=30,
    ),
)  # fmt: skip
