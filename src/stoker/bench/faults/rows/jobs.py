"""The jobs service: server, runner, database killed; no room, a harmed store, clocks, odd scripts."""

import shutil
import time
from functools import partial

import psutil

from stoker.bench.faults import damage
from stoker.bench.faults.clock import Clock
from stoker.bench.faults.disks import MIB, disk
from stoker.bench.faults.judge import Ended, Seen
from stoker.bench.faults.row import GOES_ON, Row
from stoker.bench.faults.rows.data import strange_name
from stoker.bench.faults.rows.watch import JUMPS_S
from stoker.bench.faults.scene import Child, Scene
from stoker.bench.faults.serving import JOB_SCRIPTS, STEPS, Server
from stoker.jobs import Job
from stoker.jobs.states import State
from stoker.ward import surroundings

_JOBS = 3


def kill_server(scene: Scene) -> Seen:
    """Server and dispatcher at once, several times over; runners go on meanwhile."""
    server = Server(scene)
    child = server.start()
    jobs = [server.submit(number) for number in range(_JOBS)]
    met = False
    for _ in range(3):
        scene.pause(2.0)
        met = child.kill_all() or met
        scene.pause(1.0)
        child = server.start()
    return _ended(scene, server, child, jobs, met=met)


def kill_runner(scene: Scene) -> Seen:
    """The process that has a job, with its training, or the training alone."""
    server = Server(scene)
    child = server.start()
    jobs = [server.submit(number) for number in range(_JOBS)]
    word = scene.random.choice(("stoker.jobs.runner", "stoker.jobs.work"))
    _await(scene, server, jobs[0], child)
    victims = scene.marked(word)
    met = scene.kill_one(victims)
    return _ended(scene, server, child, jobs, met=met, note=word)


def kill_machine(scene: Scene) -> Seen:
    """Everything at once, as a crash of the machine."""
    server = Server(scene)
    child = server.start()
    jobs = [server.submit(number) for number in range(_JOBS)]
    _await(scene, server, jobs[0], child)
    for process in scene.marked("stoker"):
        _end(process)
    met = child.kill_all()
    return _ended(scene, server, server.start(), jobs, met=met)


def kill_database(scene: Scene) -> Seen:
    """PostgreSQL, all of it; back at once or after a while."""
    url = scene.services.new_database(f"jobs{scene.random.randrange(1 << 30)}")
    server = Server(scene, store=url)
    child = server.start()
    jobs = [server.submit(number) for number in range(_JOBS)]
    _await(scene, server, jobs[0], child)
    scene.services.postgres.kill()
    scene.pause(4.0)
    scene.services.postgres.start()
    return _ended(scene, server, child, jobs)


def fill_disk(scene: Scene) -> Seen:
    """The disk of the service, for some seconds; what failed meanwhile is resumed by a person."""
    with disk(scene.folder / "disk", 96 * MIB) as small:
        server = Server(scene, root=small.folder / "jobs")
        child = server.start()
        jobs = [server.submit(number) for number in range(_JOBS)]
        scene.pause(5.0)
        small.fill(spare=scene.random.choice((0, 8192)))
        time.sleep(scene.random.uniform(1.0, 4.0))
        small.empty_again()
        return _ended(scene, server, child, jobs)


def harm_store(scene: Scene) -> Seen:
    """The file that all jobs are in, between two lives of a server."""
    server = Server(scene)
    child = server.start()
    job = server.submit(0, steps=3)
    server.finish([job])
    first = server.stop(child)
    files = [path for path in server.root.glob("jobs.db*") if path.stat().st_size]
    note = damage.harm(files, scene.random)
    child = server.begin()
    listens = scene.until(lambda: bool(child.told.strip()), child)
    if not listens:
        return Seen(ended=(first, child.ended(names=r"jobs\.db|store")), left=scene.left(), note=note)
    # What it can still tell it tells, and what it cannot is an error with words.
    told = scene.stoker("jobs", "list", "--json", "--url", server.client.url)
    ended = told.ended()
    is_known = job.id in told.told or "does not know the 1 jobs" in child.said
    server.stop(child)
    counts = {"jobs known, or told to be missing": (1, int(bool(ended.code) or is_known))}
    return Seen(ended=(first, ended), counts=counts, left=scene.left(), note=note)


def jump(scene: Scene) -> Seen:
    """The wall clock of server, dispatcher and runners, ahead or back."""
    clock = Clock(scene.folder / "clock", scene.environment())
    server = Server(scene, env=clock.env)
    child = server.start()
    jobs = [server.submit(number) for number in range(_JOBS)]
    jumps = [scene.random.choice(JUMPS_S) for _ in range(3)]
    for seconds in jumps:
        scene.pause(1.5)
        clock.jump(seconds)
    return _ended(scene, server, child, jobs, note=f"by {jumps} s")


_ODD = {
    "no journal": "print('nothing')",
    "a journal of noise": "import os; open(F + '/metrics.jsonl', 'wb').write(os.urandom(5000))",
    "a journal of no objects": "open(F + '/metrics.jsonl', 'w').write('[1]\\n3\\nnull\\n\"x\"\\n')",
    "a journal of wrong types": (
        "open(F + '/metrics.jsonl', 'w').write("
        "'{\"kind\": \"train\", \"step\": \"x\", \"t\": [], \"loss\": {}}\\n"
        "{\"kind\": \"train\", \"step\": 1, \"t\": 1, \"loss\": 1e999}\\n"
        "{\"kind\": \"train\", \"step\": 99999999999999999999, \"t\": 1e300, \"loss\": 1}\\n')"
    ),
    "a beginning that is none": "open(F + '/begun.json', 'w').write('{\"pid\": 1')",
    "a beginning of wrong types": "open(F + '/begun.json', 'w').write('[3]')",
    "noise to say": "import os; os.write(1, os.urandom(1 << 20))",
    "a line of 20 MB": "print('x' * 20_000_000)",
    "NUL and escapes": "print('\\0\\x1b[31m\\r50%\\r100%\\ud800'.encode('utf-8', 'replace'))",
    "an error": "raise RuntimeError('of its own')",
    "its own death": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "no folder": "import shutil; shutil.rmtree(F)",
    "an exit of 300": "import os; os._exit(300 % 256)",
    "a child that stays": "import subprocess; subprocess.Popen(['sleep', '600'])",
}  # fmt: skip


def odd_script(scene: Scene) -> Seen:
    """A script that writes and prints what nobody expects: its job ends, and the next one is done."""
    name = scene.random.choice(sorted(_ODD))
    scripts = scene.folder / "scripts"
    scripts.mkdir()
    (scripts / "odd.py").write_text(f"import os\nF = os.environ['STOKER_JOB_FOLDER']\n{_ODD[name]}\n")
    shutil.copy(JOB_SCRIPTS / "count.py", scripts)
    server = Server(scene, scripts=scripts)
    child = server.start()
    odd = server.client.submit(script="odd.py", name="odd")
    after = server.submit(1, steps=3)
    is_over = scene.until(odd.done, child, every_s=0.1)
    counts = {"odd jobs that ended": (1, int(is_over and odd.state in (State.DONE, State.FAILED)))}
    done = server.finish([after])
    counts |= server.counts([after], steps=3)
    ended = (Ended(code=0 if done else None), server.stop(child))
    note = f"{name}: {odd.state} {odd.told['error']}"
    return Seen(ended=ended, counts=counts, left=scene.left(), note=note)


def limit_memory(scene: Scene) -> Seen:
    """A job that takes memory until the kernel kills it: told so, and the server lives."""
    scripts = scene.folder / "scripts"
    scripts.mkdir()
    (scripts / "hungry.py").write_text("held = []\nwhile True:\n    held.append(b'x' * (16 << 20))\n")
    shutil.copy(JOB_SCRIPTS / "count.py", scripts)
    with surroundings.memory(1500, scene.folder) as around:
        server = Server(scene, scripts=scripts, prefix=around.prefix)
        child = server.start()
        hungry = server.client.submit(script="hungry.py", name="hungry")
        scene.until(hungry.done, child, every_s=0.1)
        after = server.submit(1, steps=3)
        done = server.finish([after])
        told = hungry.refresh()
        says = told.state is State.FAILED and "memory" in str(told.told["error"])
        counts = {"kills told as what they are": (1, int(says)), **server.counts([after], steps=3)}
        ended = (Ended(code=0 if done else None), server.stop(child))
    return Seen(ended=ended, counts=counts, left=scene.left(), note=str(told.told["error"]))


def strange_paths(scene: Scene) -> Seen:
    """A root of an odd name."""
    server = Server(scene, root=scene.folder / strange_name(scene) / "jobs")
    child = server.start()
    return _ended(scene, server, child, [server.submit(0)], note=f"{server.root.parent.name[:20]!a}")


def _await(scene: Scene, server: Server, job: Job, child: Child) -> None:
    """Until a job has come to some step."""
    step = scene.random.randrange(1, STEPS - 5)
    scene.until(lambda: server.points(job) >= step, child, every_s=0.1)


def _ended(
    scene: Scene, server: Server, child: Child, jobs: list[Job], *, met: bool = True, note: str = ""
) -> Seen:
    """All jobs come to their end, and the server goes when it is told to."""
    done = server.finish(jobs)
    counts = server.counts(jobs)
    ended = (Ended(code=0 if done else None, said=str([job.told for job in jobs])), server.stop(child))
    return Seen(ended=ended, counts=counts, left=scene.left(), met=met, note=note)


def _end(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        pass  # its parent's end was its own


_COUNTED = "jobs done once, their curves with each step once, their logs with each line once; processes"
_row = partial(Row, part="jobs", counted=_COUNTED)

ROWS = (
    _row(
        name="jobs-kill-server", fault="kill -9 of server and dispatcher, three times", act=kill_server,
        times=6, seconds=50, good=GOES_ON,
    ),
    _row(
        name="jobs-kill-runner", fault="kill -9 of a runner, or of the training it has", act=kill_runner,
        times=6, seconds=40, good=GOES_ON,
    ),
    _row(
        name="jobs-kill-machine", fault="kill -9 of every process of the service at once", act=kill_machine,
        times=4, seconds=45, good=GOES_ON,
    ),
    _row(
        name="jobs-kill-postgres", fault="kill -9 of PostgreSQL under the service", act=kill_database,
        times=4, seconds=45, good=GOES_ON, needs=("postgres",),
    ),
    _row(
        name="jobs-disk-full", fault="the disk of the service is full for 1 to 4 s", act=fill_disk, times=5,
        seconds=45, good=GOES_ON, needs=("mounts",),
    ),
    _row(
        name="jobs-store-harmed", fault="jobs.db between two servers: bits flipped, cut, gone, noise",
        act=harm_store, times=10, seconds=25, counted="that it is told, or serves what is there",
    ),
    _row(
        name="jobs-clock", fault="the wall clock jumps by 5 s to 40 years, ahead or back", act=jump, times=4,
        seconds=40, good=GOES_ON,
    ),
    _row(
        name="jobs-malformed", fault="14 scripts that write, print and do what nobody expects",
        act=odd_script, times=18, seconds=25, good=GOES_ON,
    ),
    _row(
        name="jobs-memory", fault="a job that takes memory until the kernel kills it, in 1.5 GiB",
        act=limit_memory, times=3, seconds=40, good=GOES_ON, needs=("cgroup-memory",),
    ),
    _row(
        name="paths-jobs", fault="names of no UTF-8, 255 bytes, 2,000 deep, quotes, line ends",
        act=strange_paths, times=6, seconds=30,
    ),
)  # fmt: skip
