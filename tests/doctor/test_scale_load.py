"""What `--scale` takes from a record whose loader starts new workers each epoch, and from its machine."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.doctor.evidence import cores_used
from stoker.doctor.scale_links import links_of
from stoker.doctor.scale_load import load_of, machine_of
from stoker.watch import Record, Step
from stoker.watch.record import LineWriter, Writer

EPOCH, EPOCHS = 20, 4


def cluster(folder: Path, hosts: list[str], gpus: int) -> Record:
    """Of ranks on these hosts, the first of which has so many GPUs, 4 cores and 8 GB."""
    host = {"usable_cores": 4, "memory_free_bytes": 8 * 10**9}
    for rank, name in enumerate(hosts):
        writer = Writer(folder, rank=rank)
        writer.describe_run({"world_size": len(hosts), "facts": {"host": host, "gpus": [{}] * gpus}})
        writer.describe_rank({"rank": rank, "host": name})
    return Record.open(folder)


@pytest.mark.parametrize(
    ("hosts", "gpus", "known"),
    [
        (["a"], 0, None),
        (["a"], 1, None),
        (["a"], 4, 4),
        (["a", "a"], 0, 2),
        (["a", "a"], 1, 2),
        (["a", "a"], 4, 4),
        (["a", "b"], 1, 1),
        (["a", "a", "b", "b"], 0, 2),
    ],
)
def test_one_gpu_says_nothing_of_how_many_a_node_has(
    tmp_path: Path, hosts: list[str], gpus: int, known: int | None
) -> None:
    """Several do, on one node or on several; else it is assumed, with as much of the rest for each."""
    machine = machine_of(cluster(tmp_path / "it", hosts, gpus))
    assert machine["per_node"] == known
    links = links_of({}, machine)
    many = 8 if known is None else 1
    assert (links.per_node, links.cores, links.ram_room) == (known or 8, many * 4, many * 8e9)
    origins = {links.origin[name] for name in ("per_node", "cores", "ram_room")}
    assert origins == {"assumed" if known is None else "measured"}


def test_a_node_that_is_told_has_the_cores_of_the_record(tmp_path: Path) -> None:
    """Who tells how many ranks a node has is believed of the machine that was recorded."""
    links = links_of({"per_node": 4}, machine_of(cluster(tmp_path / "it", ["a"], 1)))
    assert (links.per_node, links.cores, links.origin["cores"]) == (4, 4, "measured")


def record(folder: Path) -> Record:
    """A default DataLoader of 2 workers over 4 epochs: steps of 100 ms, 25 ms of CPU time and 10 a worker."""
    writer = Writer(folder, rank=0)
    loader = {
        "id": 0,
        "name": "L",
        "fed": 80,
        "num_workers": 2,
        "batch_size": 8,
        "epochs": EPOCHS,
        "length": EPOCH,
    }
    writer.describe_run({"id": "it", "world_size": 1, "facts": {"host": {}, "gpus": []}})
    writer.describe_rank({"rank": 0, "host": "here", "loaders": [loader]})
    lines = LineWriter(writer.rank_folder)
    for number in range(EPOCH * EPOCHS):
        epoch, at = divmod(number, EPOCH)
        step = Step(
            step=number, t=100 + number / 10, samples=8, loader=0, wait=0.06, copy=0.0, forward=0.01,
            backward=0.02, update=0.005, other=0.005, startup=0.0 if at else 0.05,
        )  # fmt: skip
        lines.add("steps", step.to_line())
        workers = [{"pid": 10 * epoch + one, "cpu_s": at / 100} for one in (1, 2)]
        reading = {
            "t": 100 + number / 10,
            "cpu_s": number / 40,
            "children_cpu_s": 2 * epoch * EPOCH / 100,
            "processes": workers,
        }
        lines.add("resources", json.dumps(reading))
    lines.close()
    return Record.open(folder)


def test_workers_that_ended_and_steps_that_are_left_out_are_counted(tmp_path: Path) -> None:
    """CPU time is that of all steps between the first and the last, by all workers that there were."""
    assert load_of(record(tmp_path / "it"), {}).cpu == pytest.approx(0.025 + 2 * 0.01)


@given(ends=st.lists(st.integers(1, 9), max_size=8), children=st.floats(0, 1))
def test_cores_used_do_not_depend_on_when_workers_end(ends: list[int], children: float) -> None:
    """A core of each worker while it lives, whoever has waited for it since; its own children are its own."""

    def reading(t: int) -> dict[str, Any]:
        dead = sum(end for end in ends if end <= t) * (1 + children)
        living = [
            {"pid": at, "cpu_s": t, "children_cpu_s": children * t} for at, end in enumerate(ends) if end > t
        ]
        return {"t": float(t), "cpu_s": 0.5 * t, "children_cpu_s": dead, "processes": living}

    worked = sum(ends) * (1 + children)
    assert cores_used([reading(t) for t in range(11)]) == pytest.approx(0.5 + worked / 10)
