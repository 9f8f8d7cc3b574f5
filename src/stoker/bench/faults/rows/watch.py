"""Observed runs: script, rank, worker or the record's writer killed; disks, clocks, memory, odd scripts."""

import re
import shutil
import signal
import sys
import time
from functools import partial

from stoker.bench.faults.clock import Clock
from stoker.bench.faults.disks import MIB, disk
from stoker.bench.faults.judge import Ended, Seen, last_line
from stoker.bench.faults.observing import LOOP, RUN, SLACK_S, Observed
from stoker.bench.faults.row import CLEAR_ERROR, GOES_ON, Row
from stoker.bench.faults.rows.data import strange_name
from stoker.bench.faults.scene import Scene
from stoker.ward import surroundings
from stoker.watch import Record

_DAY_S = 86_400.0
# As far as clocks jump: a time server's correction, a daylight saving, a battery that is gone.
JUMPS_S = (-40 * 365 * _DAY_S, -_DAY_S, -3600.0, -5.0, 5.0, 3600.0, _DAY_S, 5 * 365 * _DAY_S)


def kill_script(scene: Scene) -> Seen:
    """The process that trains."""
    run = Observed(scene, workers=scene.random.choice((0, 2)))
    child = run.start()
    reached = run.reaches(child, run.draw())
    now = time.monotonic()
    met = child.kill() and reached
    left = scene.left()
    return Seen(ended=(), counts=run.counts(until=now), left=left, met=met)


def kill_rank(scene: Scene) -> Seen:
    """One of two ranks under torchrun, which ends the other."""
    run = Observed(scene, ranks=2)
    child = run.start()
    reached = run.reaches(child, run.draw())
    now = time.monotonic()
    met = reached and scene.kill_one(child.below("loop.py"))
    ended = child.merely_ended()
    return Seen(ended=(ended,), counts=run.counts(until=now), left=scene.left(), met=met)


def kill_worker(scene: Scene) -> Seen:
    """A worker of the script's own DataLoader: it ends as it would without Stoker, and so is told."""
    run = Observed(scene, workers=2)
    child = run.start()
    reached = run.reaches(child, run.draw())
    now = time.monotonic()
    met = reached and scene.kill_one(child.below("loop.py"))
    ended = child.ended(speaks="script", own=r"DataLoader worker \(pid")
    counts = run.counts(until=now)
    counts["failures told in the record"] = (
        (1, int(run.about().get("outcome") == "failed")) if met else (0, 0)
    )
    return Seen(ended=(ended,), counts=counts, left=scene.left(), met=met)


def kill_scribe(scene: Scene) -> Seen:
    """The process that writes the record: the training goes on, and the record says why it stops."""
    run = Observed(scene)
    child = run.start()
    reached = run.reaches(child, run.draw())
    now = time.monotonic()
    met = reached and scene.kill_one(scene.marked("scribe_process"))
    ended = child.ended()
    counts = {**run.counts(until=now), **run.counts_made()}
    if met and len(run.made()) and run.made()[-1] > now + SLACK_S:
        counts["stops told in the record"] = (1, int(bool(run.about().get("failure"))))
    return Seen(ended=(ended,), counts=counts, left=scene.left(), met=met)


def fill_disk(scene: Scene) -> Seen:
    """The disk that the record is written to."""
    with disk(scene.folder / "disk", 64 * MIB) as small:
        run = Observed(scene, runs=small.folder / "runs", workers=scene.random.choice((0, 2)))
        child = run.start()
        met = run.reaches(child, run.draw())
        small.fill()
        now = time.monotonic()
        ended = child.ended()
        counts = {**run.counts(until=now), **run.counts_made()}
        return Seen(ended=(ended,), counts=counts, left=scene.left(), met=met)


def lock_disk(scene: Scene) -> Seen:
    """A folder for records, or a working folder, that is read-only: told before the script begins."""
    with disk(scene.folder / "disk", 16 * MIB) as small:
        small.lock()
        run = Observed(scene, runs=small.folder / "runs")
        ended = run.start().ended(names=r"disk")
        return Seen(ended=(ended,), counts={"steps made": (0, len(run.made()))}, left=scene.left())


def lock_home(scene: Scene) -> Seen:
    """A home that is read-only, for a verb of each kind."""
    with disk(scene.folder / "home", 4 * MIB) as small:
        small.lock()
        env = {"HOME": str(small.folder), "XDG_CACHE_HOME": "", "XDG_CONFIG_HOME": ""}
        run = Observed(scene, steps=40, hold_s=0.0, env=env)
        ended = [run.start().ended()]
        verb = scene.random.choice(("check", "doctor", "export"))
        if verb == "check":
            found = scene.stoker("check", "--json", env=env).ended()
            # It exits with 1 where it warns of the machine.
            ended.append(Ended(code=0, said=found.said) if found.code == 1 and not found.said else found)
        elif verb == "doctor":
            ended.append(scene.stoker("doctor", run.runs / RUN, env=env).ended())
        else:
            ended.append(scene.stoker("export", run.runs / RUN, "--to", "prometheus", env=env).ended())
        counts = {**run.counts(), **run.counts_made()}
        return Seen(ended=tuple(ended), counts=counts, left=scene.left(), note=verb)


def jump(scene: Scene) -> Seen:
    """The wall clock, ahead or back, several times; then the doctor reads the record."""
    clock = Clock(scene.folder / "clock", scene.environment())
    run = Observed(scene, env=clock.env)
    child = run.start()
    reached = run.reaches(child, run.draw())
    jumps = [scene.random.choice(JUMPS_S) for _ in range(3)]
    for seconds in jumps:
        clock.jump(seconds)
        scene.pause(1.0)
    ended = (child.ended(), scene.stoker("doctor", "--json", "--no-report", run.runs / RUN).ended())
    counts = {**run.counts(), **run.counts_made()}
    steps = list(Record.open(run.runs / RUN).ranks[0].steps())
    phases = [value for step in steps for value in (step.wait, step.forward, step.backward, step.update)]
    sound = sum(value is None or 0 <= value < 60 for value in phases)
    counts["phases of steps"] = (len(phases), sound)
    return Seen(ended=ended, counts=counts, left=scene.left(), met=reached, note=f"by {jumps} s")


def limit_memory(scene: Scene) -> Seen:
    """A script that takes memory until the kernel kills it: its record tells of the steps till then."""
    with surroundings.memory(900, scene.folder) as around:
        run = Observed(scene, steps=2000, hold_s=0.05, words=("--hungry",), prefix=around.prefix)
        child = run.start()
        code = child.wait()
        now = time.monotonic()
    ended = Ended(code=None if code is None else 0)
    met = code == -signal.SIGKILL
    return Seen(ended=(ended,), counts=run.counts(until=now), left=scene.left(), met=met, note=f"code {code}")


def strange_paths(scene: Scene) -> Seen:
    """Working folder, script and records under names that are odd, no UTF-8, or as long as can be."""
    home = scene.folder / strange_name(scene)
    home.mkdir(parents=True)
    script = home / "train.py"
    shutil.copy(LOOP, script)
    run = Observed(scene, steps=30, hold_s=0.0, runs=home / "runs", cwd=home, script=script)
    ended = [run.start().ended()]
    ended.append(scene.stoker("doctor", "--json", "--runs", home / "runs", run.runs / RUN, cwd=home).ended())
    counts = {**run.counts(), **run.counts_made()}
    return Seen(ended=tuple(ended), counts=counts, left=scene.left(), note=f"{home.name[:20]!a}")


# --- scripts that are none ------------------------------------------------------------------------

SCRIPTS: dict[str, bytes] = {
    "empty": b"",
    "no Python": b"this is no Python at all (\n",
    "noise": bytes(range(256)) * 8,
    "null bytes": b"print(1)\0\0\0",
    "UTF-16": "print('hello')\n".encode("utf-16"),
    "tabs and spaces": b"if True:\n\tx = 1\n        y = 2\n",
    "an error at once": b"raise ValueError('as it would without')\n",
    "an exit with words": b"import sys; sys.exit('these are the last words')\n",
    "an exit with a number": b"import sys; sys.exit(7)\n",
    "os._exit": b"import os; os._exit(5)\n",
    "recursion": b"def f(): f()\nf()\n",
    "its own death": b"import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n",
    "an abort": b"import os; os.abort()\n",
    "no working folder": b"import os, shutil\nos.mkdir('gone'); os.chdir('gone'); shutil.rmtree('../gone')\n",
    "closed streams": b"import sys, os\nsys.stdout.close(); sys.stderr.close(); os.close(1); os.close(2)\n",
    "a missing import": b"import there_is_no_such_module\n",
    "much to say": b"for _ in range(20000): print('x' * 1000)\n",
    "a fork that ends": b"import os\nif not os.fork():\n    raise SystemExit(3)\nos.wait()\n",
    "a thread that dies": b"import threading\nthreading.Thread(target=lambda: 1 / 0).start()\n",
    "a hook of its own": b"import sys\nsys.excepthook = lambda *_: print('mine', file=sys.stderr)\n1 / 0\n",
    "signals ignored": b"import signal\nfor n in (2, 15, 1):\n    signal.signal(n, signal.SIG_IGN)\n",
    "little memory": (
        b"from resource import *\nsetrlimit(RLIMIT_AS, (1 << 31, 1 << 31))\nx = bytearray(1 << 33)\n"
    ),
    "few files": (
        b"from resource import *\nsetrlimit(RLIMIT_NOFILE, (9, 9))\nx = [open(__file__) for _ in range(9)]\n"
    ),
}  # fmt: skip


def malformed_script(scene: Scene) -> Seen:
    """It ends under Stoker as it does without: with the same code, and its own last word."""
    name = scene.random.choice(sorted(SCRIPTS))
    script = scene.folder / "script.py"
    script.write_bytes(SCRIPTS[name])
    plain = scene.start(sys.executable, script)
    # What is wrong with its syntax, Python tells in other words of a file than of its text.
    expected, own = plain.wait(), last_line(plain.said).partition("SyntaxError: ")
    words = own[1] or own[0]
    child = scene.stoker("run", "--quiet", script)
    found = child.ended(speaks="script", own=re.escape(words))
    counts = {"exit codes as without Stoker": (1, int(found.code == expected))}
    # One that dies by a signal does so without a word, with Stoker or without.
    ended = Ended(code=0) if found.code == expected and (found.code or 0) < 0 else found
    return Seen(ended=(ended,), counts=counts, left=scene.left(), note=name)


_COUNTED = "steps that were made beside those in the record; records that can be read; processes"
_row = partial(Row, part="watch", counted=_COUNTED)

ROWS = (
    _row(
        name="run-kill", fault="kill -9 of a script that is observed", act=kill_script, times=8, seconds=12,
        good=GOES_ON,
    ),
    _row(
        name="run-kill-rank", fault="kill -9 of one of two ranks under torchrun", act=kill_rank, times=6,
        seconds=25, good=GOES_ON,
    ),
    _row(
        name="run-kill-worker", fault="kill -9 of a worker of the script's own DataLoader", act=kill_worker,
        times=6, seconds=15,
    ),
    _row(
        name="run-kill-scribe", fault="kill -9 of the process that writes the record", act=kill_scribe,
        times=6, seconds=20, good=GOES_ON,
    ),
    _row(
        name="run-disk-full", fault="the disk of the record fills up", act=fill_disk, times=6, seconds=20,
        good=GOES_ON, needs=("mounts",),
    ),
    _row(
        name="run-disk-read-only", fault="a read-only folder for the record", act=lock_disk, times=3,
        seconds=8, good=CLEAR_ERROR, needs=("mounts",),
    ),
    _row(
        name="home-read-only", fault="a read-only home: run, check, doctor, export", act=lock_home, times=6,
        seconds=15, good=GOES_ON, needs=("mounts",),
    ),
    _row(
        name="run-clock", fault="the wall clock jumps by 5 s to 40 years, ahead or back", act=jump, times=6,
        seconds=25, good=GOES_ON,
    ),
    _row(
        name="run-memory", fault="a script that takes memory until the kernel kills it, in 900 MiB",
        act=limit_memory, times=4, seconds=15, good=GOES_ON, needs=("cgroup-memory",),
    ),
    _row(
        name="paths-run", fault="names of no UTF-8, 255 bytes, 2,000 deep, quotes, line ends",
        act=strange_paths, times=10, seconds=15,
    ),
    _row(
        name="script-malformed", fault="23 scripts that are none, or end in odd ways, observed",
        act=malformed_script, times=30, seconds=6, counted="exit codes and last words as without Stoker",
    ),
)  # fmt: skip
