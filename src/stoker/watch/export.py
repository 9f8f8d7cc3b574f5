"""A record in the words of other tools: TensorBoard's events and Prometheus' text format.

Reads records only; a run that is still going can be exported as far as it has come, and again later:
the same file is written over, whole.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from stoker.errors import MissingExtra, NotPermitted, UsageError
from stoker.watch import prometheus
from stoker.watch.phases import PHASES, Step
from stoker.watch.record import RankRecord, Record
from stoker.watch.tally import Tally

FORMATS = ("tensorboard", "prometheus")


def export(record: Record, to: str, out: Path | None = None) -> Path | None:
    """Write a record for another tool; return where it lies, None where it went to standard output."""
    if to not in FORMATS:
        raise UsageError(f"cannot export to {to!r}; the formats are {' and '.join(FORMATS)}")
    record.require_ranks()
    if to == "tensorboard":
        return to_tensorboard(record, record.folder / "tensorboard" if out is None else out)
    text = prometheus.text_of(record)
    if out is None:
        sys.stdout.write(text)
        return None
    _write(out, lambda draft: draft.write_text(text, encoding="utf-8", errors="backslashreplace"))
    return out


def to_tensorboard(record: Record, folder: Path) -> Path:
    """Scalars by absolute step and wall time, a folder a rank: `tensorboard --logdir FOLDER`."""
    try:
        from torch.utils.tensorboard import FileWriter
    except ImportError as error:
        raise MissingExtra("tensorboard", "tensorboard", "export to TensorBoard") from error
    for rank in record.ranks.values():
        # One name a run, so that another export of it takes the earlier one's place.
        place = folder / f"rank{rank.rank}" / f"events.out.tfevents.stoker.{record.folder.name}"
        _write(place, lambda draft, rank=rank: _write_events(FileWriter, record, rank, draft))  # type: ignore[misc]
    return folder


def _write_events(make: Any, record: Record, rank: RankRecord, draft: Path) -> None:
    from tensorboard.compat.proto.summary_pb2 import Summary

    with tempfile.TemporaryDirectory(dir=draft.parent) as scratch:
        writer = make(scratch)
        try:
            for step, t, scalars in _scalars(record, rank):
                values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
                writer.add_summary(Summary(value=values), global_step=step, walltime=t)
        finally:
            writer.close()  # also where a line is broken: its thread writes into the folder until then
        (written,) = Path(scratch).iterdir()
        shutil.move(written, draft)


def _scalars(record: Record, rank: RankRecord) -> Iterator[tuple[int, float, dict[str, float]]]:
    """(absolute step, wall time, values by tag), steps and resources merged by time."""
    before = record.about.get("steps_before") or 0
    resources = iter(rank.resources())
    pending = next(resources, None)
    stood = _stood(rank)
    tally = Tally()
    at = before
    for step in _with_progress(rank.steps(), f"rank {rank.rank}"):
        while pending is not None and pending["t"] <= step.t:
            yield at, pending["t"], _resource_scalars(pending)
            pending = next(resources, None)
        at = before + step.step
        tally.add(step)
        yield at, step.t, {**_step_scalars(step, tally), **stood(step.step)}
    while pending is not None:
        yield at, pending["t"], _resource_scalars(pending)
        pending = next(resources, None)


def _stood(rank: RankRecord) -> Callable[[int], dict[str, float]]:
    """Of each step in turn, seconds in collectives: a rank that stands in them less than others is late."""
    groups = groupby(rank.meetings(), key=lambda one: one.step)
    head = next(groups, None)

    def of(step: int) -> dict[str, float]:
        nonlocal head
        while head is not None and head[0] < step:
            head = next(groups, None)
        if head is None or head[0] > step:
            return {}
        return {"collectives/stood_seconds": sum(one.stood for one in head[1])}

    return of


def _step_scalars(step: Step, tally: Tally) -> dict[str, float]:
    seconds = step.seconds
    found: dict[str, float | None] = {f"phase_seconds/{name}": getattr(step, name) for name in PHASES}
    found["step_seconds"], found["gc_seconds"] = seconds, step.gc
    if seconds > 0:
        for name in PHASES:
            spent = getattr(step, name)
            found[f"phase_share/{name}"] = None if spent is None else spent / seconds
        found["rate/steps_per_s"] = 1 / seconds
        found["rate/samples_per_s"] = None if step.samples is None else step.samples / seconds
    found["rate/sustained_steps_per_s"] = tally.sustained
    return {tag: float(value) for tag, value in found.items() if value is not None}


def _resource_scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """Every number in the line, under its path; GPUs by index, processes by pid."""
    return {f"resource/{path}": value for path, value in _numbers(line, "") if path not in ("t", "pid")}


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(inner, f"{path}/{key}" if path else str(key))
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, Mapping):
                name = item.get("index", item.get("pid"))
                rest = {key: inner for key, inner in item.items() if key not in ("index", "pid")}
                yield from _numbers(rest, f"{path}/{name}")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, float(value)


def _with_progress(steps: Iterable[Step], what: str) -> Iterable[Step]:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(steps, what, console=console, transient=True, disable=not console.is_terminal)


def _write(path: Path, write: Callable[[Path], object]) -> None:
    """Put a file there whole or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(draft)
        draft.replace(path)
    except OSError as error:
        raise NotPermitted(f"cannot write {path}: {error.strerror}; say where with --out PATH") from error
    finally:
        with suppress(OSError):  # the error above tells what is wrong with that folder
            draft.unlink(missing_ok=True)
