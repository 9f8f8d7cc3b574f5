"""Diagnoses made up of numbers, with a record on disk behind them, for tests of what is shown of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.doctor.budget import Budget, Ram, Vram
from stoker.doctor.evidence import Evidence, LoaderFacts
from stoker.doctor.examination import Diagnosis
from stoker.doctor.method import Stretch
from stoker.doctor.model import Interval
from stoker.doctor.plan import Need, Option, Plan
from stoker.doctor.plan import Step as PlanStep
from stoker.doctor.verdict import reach
from stoker.watch import Step
from stoker.watch.record import LineWriter, Writer

BEGAN = 1_790_000_000.0
FACTS = {
    "gpus": [],
    "gpu_reason": "no driver",
    "warnings": [{"cause": "small-shm", "text": "64.0 MiB of /dev/shm", "fix": "--shm-size"}],
}


def record(folder: Path, *, steps: int = 400, every: float = 0.04) -> Path:
    """A record of so many steps, three quarters of each waiting."""
    writer = Writer(folder, rank=0)
    writer.describe_run(
        {"id": folder.name, "started": BEGAN, "facts": FACTS,
         "versions": {"stoker": "0.1.0", "torch": "2.13.0", "python": "3.11.7"}}
    )  # fmt: skip
    writer.describe_rank({"outcome": "done", "steps": steps})
    lines = LineWriter(writer.rank_folder)
    for number in range(steps):
        wait, rest = 0.75 * every, 0.05 * every
        made = Step(number, BEGAN + (number + 1) * every, 32, 0, wait, 0.0, rest, 2 * rest, rest, rest)
        lines.add("steps", made.to_line())
    lines.close()
    return folder


def evidence(**more: Any) -> Evidence:
    """A loop that waits for 2 workers whose batches are read and transformed in equal parts."""
    plain = Evidence(
        step=0.04,
        shares={"wait": 0.75, "copy": 0.0, "forward": 0.05, "backward": 0.1, "update": 0.05, "other": 0.05},
        steps=300,
        samples=32.0,
        compute=0.01,
        loader=0.02,
        loader_with=(4, 0.0105),
        drawn=LoaderFacts(name="DataLoader(Items)", workers=2, batch_size=32, epochs=1, length=500),
        making={
            "batches": 50, "read": 0.02, "transform": 0.02, "collate": 0.0, "queued": 0.0, "handoff": 0.0005,
            "pin": None, "cpu": 0.02, "bytes": 1e6, "disk": 0.0, "faults": 0.0, "calls": {"item": 32.0},
        },
        host={"system": "linux", "cpus": 8, "usable_cores": 8.0, "ram_total_bytes": 1 << 34},
        growth=1.0,
        stalls=0.0,
        process={"affinity": 8, "parameters": {"float32": 100}},
        overhead={"hooks_us_per_step": 12.0, "recorder_cpu_share": 0.03},
        missing={"copy": "there is no device to copy to"},
    )  # fmt: skip
    return replace(plain, **more)


def diagnosis(folder: Path, run: Evidence | None = None, **more: Any) -> Diagnosis:
    """A whole one, with plan and budget."""
    run = evidence() if run is None else run
    parts = {
        "verdict": reach(run),
        "evidence": run,
        "record": folder,
        "seconds": 21.5,
        "shield": "full",
        "command": ("train.py", "--lr", "0.1"),
        "method": (
            Stretch(name="start and warm-up", seconds=1.0, began=BEGAN, ended=BEGAN + 1),
            Stretch(name="observe", seconds=9.0, began=BEGAN + 1, ended=BEGAN + 10),
            Stretch(name="replay", seconds=6.0, began=BEGAN + 10, ended=BEGAN + 16),
            Stretch(name="drain", seconds=2.0, began=BEGAN + 16, ended=BEGAN + 18),
        ),
        "plan": plan(),
        "budget": Budget(
            vram=Vram(why="there is no GPU"),
            ram=Ram(main=1 << 30, each_worker=1 << 28, need=3 << 30, free=1 << 33, most_workers=6),
        ),
        **more,
    }
    return Diagnosis(**parts)


def plan() -> Plan:
    """One option with its interval, and one that could not be predicted."""
    change = PlanStep(
        change="num_workers", value=4, kind="same", cause="too-few-workers", text="make batches in 4 workers",
        apply=("DataLoader(..., num_workers=4)",), mind="memory for each",
    )  # fmt: skip
    option = Option(
        name="conservative",
        changes=(change,),
        kind="same",
        predicted=Interval(low=80.0, mid=92.5, high=105.0),
        limit="loader",
        epoch=Interval(low=4.8, mid=5.4, high=6.3),
        total=None,
        vram=Need(need=None, free=None),
        ram=Need(need=3 << 30, free=1 << 33),
        risk="memory for each worker",
    )
    other = replace(option, name="aggressive", predicted=None, epoch=None, kind="optimization")
    return Plan(
        summary="Make batches in 4 workers.", options=(option, other), rate=25.0, epoch=20.0, total=None
    )
