"""Reread and stub, one after the other in one process: what the trial calls, and what it is told."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from stoker.doctor.experiments.making import Maker, Telling, end_workers, hold, why_not
from stoker.doctor.experiments.reread import reread, reread_cold
from stoker.doctor.experiments.sameness import why_unkept
from stoker.doctor.experiments.stub import stub

_PASSES = ("again", "warm", "cold")
_STUBS = ("nothing", "reads", "samples")
# Times what the passes are given: a batch that takes long is made to its end.
_PATIENCE = 2.5
# Of what the passes are given, what a part of a batch may take that would take longer than all of it.
_PART = 0.4


def probe_storage(
    iterator: Any,
    indices: Sequence[Any],
    start_method: str | None,
    seconds: float,
    *,
    made: float | None = None,
) -> dict[str, Any]:
    """Both experiments on indices that were handed out, so many seconds each; the loader is ended.

    A worker took `made` seconds for a batch: of one that takes too long a part is made, and counted as whole.
    """
    why = why_not(iterator, indices)
    if why is not None:
        return {"missing": {"reread": why, "stub": why}}
    end_workers(iterator)
    most = 2 * seconds * _PATIENCE
    times = 1.0
    if made is not None and made > seconds and all(isinstance(index, list | tuple) for index in indices):
        indices, times = _parts_of(indices, _PART * seconds / made)
    found = hold(Maker(iterator, indices, most), partial(_both, seconds=seconds), start_method, most)
    return {
        "passes": {name: _scaled(found[name], times) for name in _PASSES if name in found},
        "held": found.get("held"),
        "unkept": found.get("unkept"),
        "stub": {name: found[name] * times for name in _STUBS if name in found},
        "missing": _missing(found),
    }


def _parts_of(indices: Sequence[Any], share: float) -> tuple[list[Any], float]:
    """Of each batch the first samples, and how many times as many it has."""
    whole = max(map(len, indices))
    count = max(1, int(whole * share))
    return [index[:count] for index in indices], whole / count


def _scaled(told: dict[str, Any], times: float) -> dict[str, Any]:
    """A pass over parts of batches, as one over whole ones."""
    return {
        name: value if name == "batches" or value is None else value * times for name, value in told.items()
    }


def _both(maker: Maker, seconds: float) -> Iterator[Telling]:
    """The cold pass comes last: what it puts out of memory would be missing from the others."""
    again, paths = yield from reread(maker, seconds / 3)
    yield from stub(maker, seconds / 4)
    yield "unkept", why_unkept(maker, again, seconds / 4)
    yield from reread_cold(maker, again, paths, seconds / 3)


def _missing(found: dict[str, Any]) -> dict[str, str]:
    """Why a part was not measured, by its name."""
    failed = found.get("failed", "it did not come to its end")
    missing = {}
    for part, name in (("reread", "again"), ("warm", "warm"), ("cold", "cold"), ("stub", "nothing")):
        if name not in found:
            missing[part] = found.get(f"not {name}", failed)
    if "nothing" in found and "reads" not in found:
        missing["stubbed reads"] = found.get("not reads", failed)
    return missing
