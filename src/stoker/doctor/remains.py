"""What is left of making batches once parts of it are gone, and what that saves of a step. Pure.

Parts are `read`, `transform` and `collate`, each as a share of itself that is gone; `making` is a share of
all three, and `handoff` that no worker waits for the one that takes its batches.
"""

from collections.abc import Mapping

from stoker.doctor.evidence import Evidence


def part_left(run: Evidence, frees: Mapping[str, float]) -> float:
    """Of the time that making a batch takes, what is left once so much of its parts is gone."""
    parts = {name: float(run.making.get(name) or 0.0) for name in ("read", "transform", "collate")}
    whole = sum(parts.values())
    if not whole:
        return 1 - frees.get("making", 0.0)
    left = sum(seconds * (1 - frees.get(name, 0.0)) for name, seconds in parts.items())
    return left / whole * (1 - frees.get("making", 0.0))


def loader_left(run: Evidence, frees: Mapping[str, float], takes: float = 1.0) -> float:
    """What the loader takes for a step's batches then; it must have been drained."""
    assert run.loader is not None
    part = part_left(run, frees) * takes
    if not frees.get("handoff") or run.make is None:
        return run.loader * part
    at_work = run.make - (run.making.get("queued") or 0.0)
    return part * min(run.loader, at_work * run.batches / max(1, run.workers))


def saved_by(
    run: Evidence, frees: Mapping[str, float], takes: float = 1.0, *, beside: bool | None = None
) -> float:
    """The share of the step that is saved: no more than waiting. `beside`: batches are made so."""
    beside = bool(run.workers) if beside is None else beside
    if run.loader is None or (run.compute is None and not beside):
        return run.lost * (1 - part_left(run, frees) * takes)
    loader, compute = loader_left(run, frees, takes), run.compute or 0.0
    after = max(loader, compute) if beside else loader + compute
    return max(0.0, min(run.lost, 1 - after / run.step))
