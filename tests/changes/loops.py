"""Runs a small training loop with changes put over it, a forked process for each set of them.

    python loops.py < [{"changes": {...}, "epochs": 2, ...}, ...]   prints a list of what came of each

Its dataset tells which process read which sample, and what it drew. With `reads` it notes each read in that
file; with `killed_after` the process kills itself after so many steps.
"""

import json
import os
import signal
import sys
import tempfile
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    SubsetRandomSampler,
    default_collate,
)

from stoker import changes
from stoker.errors import UsageError


class Rows(Dataset[Any]):
    """A row is its number's, and a note of who read it; with `random`, noise is added."""

    def __init__(self, *, random: bool, reads: str = "", ragged: bool = False) -> None:
        self.random, self.reads, self.ragged = random, reads, ragged
        self.shift, self.hole = 0.0, False
        self.x = torch.linspace(-1, 1, 96 * 8).reshape(96, 8)

    def __len__(self) -> int:
        """Few."""
        return 96

    def __getitem__(self, at: int) -> tuple[int, torch.Tensor, int, int]:
        """Number, row, process, threads."""
        if self.reads:
            with Path(self.reads).open("a") as file:
                file.write(".")
        x = self.x[at] + torch.randn(8) if self.random else self.x[at] + self.shift
        if self.ragged and at == 37:
            x = x.double()
        if self.hole and at == 0:
            raise KeyError("no such row")
        return at, x, 0 if self.reads else os.getpid(), torch.get_num_threads()


class DrawnOneByOne(Sampler[int]):
    """Each number is drawn from torch's generator when it is asked for."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        """As many as there are rows."""
        return len(self.rows)

    def __iter__(self) -> Any:
        return (int(torch.randint(len(self.rows), (1,))) for _ in range(len(self.rows)))


def reversed_batch(samples: list[Any]) -> Any:
    """A collate of the script's own: samples come to it as the dataset gives them."""
    assert all(
        type(part) is kind for part, kind in zip(samples[0], (int, torch.Tensor, int, int), strict=True)
    )
    return default_collate(samples[::-1])


def noisy_batch(samples: list[Any]) -> Any:
    """One that draws."""
    at, x, pid, threads = default_collate(samples)
    return at, x + torch.randn_like(x), pid, threads


class Stream(IterableDataset[Any]):
    """The same rows, one after the other."""

    def __iter__(self) -> Any:
        rows = Rows(random=False)
        return (rows[at] for at in range(len(rows)))


class Images(nn.Module):
    """Convolutions over what is made of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.head = nn.Linear(4, 1)
        self.seen: list[str] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A number for each row."""
        image = x.reshape(-1, 2, 2, 2)
        out = self.conv(image)
        self.seen.append(f"{out.dtype} {out.is_contiguous(memory_format=torch.channels_last)}")
        scores: torch.Tensor = self.head(torch.relu(out).mean((2, 3)))
        return scores


def stateful_loader() -> Any:
    """Imported here: after changes are in place, as a script would."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader


def note_step(found: dict[str, Any], *_: Any) -> None:
    """A step was made."""
    found["hooked"] += 1


def train(job: dict[str, Any]) -> dict[str, Any]:
    """A few epochs; what was read, by whom, and the losses."""
    torch.manual_seed(0)
    plain = Rows(random=job.get("random", False), reads=job.get("reads", ""), ragged=job.get("ragged", False))
    rows: Any = Stream() if job.get("stream") else plain
    given: dict[str, Any] = {} if job.get("stream") else {"shuffle": True}
    if job.get("collate"):
        given["collate_fn"] = {"reversed": reversed_batch, "noisy": noisy_batch}[job["collate"]]
    if job.get("drawn_one_by_one"):
        given = {"sampler": DrawnOneByOne(rows)}
    if job.get("hole"):
        plain.hole, given = True, {"sampler": SubsetRandomSampler(range(1, 96))}
    kind: Any = stateful_loader() if job.get("stateful") else DataLoader
    loader = kind(rows, batch_size=job.get("batch", 8), **given, **job.get("loader", {}))
    if job.get("resumed"):
        loader.load_state_dict(loader.state_dict())
    if job.get("sets_backends"):
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = False
    held_out = DataLoader(Rows(random=False), batch_size=32)
    dense = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 1))
    model = Images() if job.get("images") else dense
    device = job.get("device", "cpu")
    model.to(device)
    parameters, make = list(model.parameters()), getattr(torch.optim, job.get("optimizer", "SGD"))
    second = [make([parameters.pop()], lr=0.05)] if job.get("second") else []
    optimizer = make(parameters, lr=0.05)
    found: dict[str, Any] = {"ids": [], "losses": [], "readers": [], "threads": [], "held_out": []}
    found["hooked"] = 0
    register_optimizer_step_post_hook(partial(note_step, found))  # the script's own, beside those of changes
    for epoch in range(job.get("epochs", 2)):
        readers = set()
        if job.get("shifted") and epoch == 1:
            plain.shift = 0.5
        if job.get("anew"):
            loader = DataLoader(rows, batch_size=job.get("batch", 8), **given, **job.get("loader", {}))
        for step, (at, x, pid, threads) in enumerate(loader):
            if step == job.get("break_at"):
                break
            x = x.float().to(device)
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean() * job.get("weight", 1.0)
            for one in (optimizer, *second):
                one.zero_grad()
            loss.backward()
            if job.get("clip"):
                found["norm"] = float(nn.utils.clip_grad_norm_(model.parameters(), job["clip"]))
            for one in second:
                one.step()
            optimizer.step(*([lambda value=loss: value] if job.get("closure") else []))
            found["ids"] += at.tolist()
            found["losses"].append(float(loss.detach()))
            if len(found["losses"]) == job.get("killed_after"):
                os.kill(os.getpid(), signal.SIGKILL)
            readers |= set(pid.tolist())
            found["threads"] = sorted({*found["threads"], *threads.tolist()})
        found["readers"].append(sorted(readers))
        with torch.no_grad():
            found["held_out"] = sorted({int(one) for batch in held_out for one in batch[2]})
    found["here"], found["length"] = os.getpid(), 0 if job.get("stream") else len(loader)
    found["drawn"] = torch.rand(1).item()
    found["weights"] = [float(p.detach().double().sum()) for p in model.parameters()]
    found["seen"] = getattr(model, "seen", [])[-1:]
    found["fused"] = optimizer.param_groups[0].get("fused")
    segments = torch.cuda.memory_snapshot() if device == "cuda" else []
    found["expandable"] = any(one.get("is_expandable") for one in segments)
    precision, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
    found["backends"] = [precision, cudnn.allow_tf32, cudnn.benchmark]
    found["compiled"] = getattr(model, "_compiled_call_impl", None) is not None
    return found


def in_a_fork(job: dict[str, Any], answer: Path) -> dict[str, Any]:
    """What came of it: changes are for a whole process."""
    pid = os.fork()
    if not pid:
        try:
            if "affinity" in job:
                os.sched_setaffinity(0, job["affinity"])
            changes.put(job["changes"])
            told: dict[str, Any] = train(job)
            told["told"] = changes.told(job["changes"])
        except UsageError as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        except BaseException:  # noqa: BLE001  (a copy of the parent must not go on as it)
            traceback.print_exc()
            os._exit(1)
        answer.write_text(json.dumps(told))
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    return json.loads(answer.read_text())  # type: ignore[no-any-return]


if __name__ == "__main__":
    torch.set_num_threads(1)  # a fork beside threads that compute would hang
    torch.optim.SGD([nn.Parameter(torch.zeros(1))])  # imports the compiler, once for all forks
    with tempfile.TemporaryDirectory() as folder:
        jobs = json.load(sys.stdin)
        json.dump([in_a_fork(job, Path(folder) / f"{at}") for at, job in enumerate(jobs)], sys.stdout)
