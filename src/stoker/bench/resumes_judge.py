"""What became of the samples, losses and weights of a training that was broken off, beside one left alone.

Samples are counted by their numbers, from the ledger that the training kept of its own updates. What is
exact must be the same bits; what is plain must be so where ranks and micro-batch never changed, and else
within a limit.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from stoker.bench.resumes_task import STEPS_PER_EPOCH, LedgerModel
from stoker.train.checkpoint import Checkpoint, Checkpoints
from stoker.train.folder import CHECKPOINTS

Weights: TypeAlias = NDArray[np.float32]
# Of plain losses and weights, relative to the largest: float32 rounds by 6e-8, some 28 updates of it.
LIMIT = 1e-4
# What is compared of a line of the log; rates and times are each run's own.
_COMPARED = ("loss", "exact", "plain", "lr")
# Kept in a checkpoint, and another one's where a training was broken off: where samples came from, and how
# often a step was saved.
_OWN = ("plain.settings", "plain.best.checkpoint")
_EXACT = ("exact", "entered", "journal", "updates")
_TOLD = 5
_WEIGHTS = tuple(name for name, _ in LedgerModel().named_parameters())


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A training as its folder has it.

    `journal` has a row for each update and in it the weight of each sample; `lines` are those of the log, by
    kind and step, `again` those that came a second time; `state` is all that the last checkpoint keeps, by
    name.
    """

    step: int
    journal: Weights
    lines: Mapping[tuple[str, int], Mapping[str, float]]
    again: int
    state: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a chain came to, counted. `bits_off` is None where ranks or micro-batch changed on the way."""

    samples: int
    lost: int
    doubled: int
    misplaced: int
    uneven: int
    exact_compared: int
    exact_off: int
    bits_compared: int
    bits_off: int | None
    plain_off: float
    again: int
    told: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether nothing shows of what was done to it."""
        wrong = (self.lost, self.doubled, self.misplaced, self.uneven, self.exact_off, self.again)
        return not any(wrong) and not self.bits_off and self.plain_off <= LIMIT


def read_trained(folder: Path) -> Trained | None:
    """What a training has come to so far; None before its first checkpoint."""
    found = Checkpoints(folder / CHECKPOINTS).find_last_good()
    if found is None:
        return None
    kept = found.checkpoint
    step = int(kept.plain["step"])
    lines, again = _read_lines(folder / "metrics.jsonl")
    return Trained(
        step=step,
        journal=kept.model["journal"].numpy()[:step],
        lines=lines,
        again=again,
        state=dict(_flat(_parts(kept))),
    )


def count_samples(found: Weights, expected: Weights) -> dict[str, int]:
    """Samples lost and doubled in some epoch, updates made of other samples than those expected there, and
    weights that are no whole number of samples."""
    rows = np.zeros_like(expected)
    rows[: len(found)] = found[: len(expected)]
    # What one sample weighs in an update follows from how many it is made of.
    times = rows * (expected > 0).sum(1, keepdims=True)
    whole = np.rint(times)
    epochs = whole.reshape(-1, STEPS_PER_EPOCH, whole.shape[1]).sum(1)
    beyond = found[len(expected) :]
    return {
        "lost": int(np.maximum(1 - epochs, 0).sum()),
        "doubled": int(np.maximum(epochs - 1, 0).sum()) + int((beyond > 0).sum()),
        "misplaced": int(((whole > 0) != (expected > 0)).any(1).sum()) + len(beyond),
        "uneven": int((np.abs(times - whole) > 1e-6).sum()),
    }


def count_steps_off(found: Weights, expected: Weights) -> int:
    """Of the updates kept so far, those that are not, to the bit, the ones expected."""
    return int((found != expected[: len(found)]).any(1).sum())


def judge(found: Trained, alone: Trained, same: Trained | None) -> Verdict:
    """Beside a training on one rank that was left alone; and beside one with the `same` ranks and micro-batch
    where these never changed."""
    counts = count_samples(found.journal, alone.journal)
    exact = _differing(_exact_of(found), _exact_of(alone))
    bits = None if same is None else _differing(_all_of(found), _all_of(same))
    told = [f"{count} {name}" for name, count in counts.items() if count]
    told += [f"exact: {name}" for name in exact[:_TOLD]] + [f"bits: {name}" for name in (bits or [])[:_TOLD]]
    return Verdict(
        samples=int((alone.journal > 0).sum()),
        **counts,
        exact_compared=len(_exact_of(alone)),
        exact_off=len(exact),
        bits_compared=0 if same is None else len(_all_of(same)),
        bits_off=None if bits is None else len(bits),
        plain_off=_furthest(_plain_of(found), _plain_of(same or alone)),
        again=found.again,
        told=tuple(told),
    )


def _differing(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """The names of what is not the same to the bit, or is there only once."""
    names = sorted({*found, *expected})
    return [
        name
        for name in names
        if name not in found or name not in expected or not _is_same(found[name], expected[name])
    ]


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def _furthest(found: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """The largest difference, each relative to the largest number there; what is missing is infinite."""
    if found.keys() != expected.keys():
        return math.inf
    return max((_distance(found[name], expected[name]) for name in expected), default=0.0)


def _distance(one: Any, other: Any) -> float:
    found, expected = (torch.as_tensor(value, dtype=torch.float64) for value in (one, other))
    if found.shape != expected.shape or not bool(found.isfinite().all()):
        return math.inf
    off = float((found - expected).abs().max())
    return off / float(expected.abs().max()) if off else 0.0


def _exact_of(trained: Trained) -> dict[str, Any]:
    return _kept(trained, _EXACT) | _logged(trained, "exact")


def _plain_of(trained: Trained) -> dict[str, Any]:
    return _kept(trained, ("plain",), ("model", "mean")) | _logged(trained, "plain")


def _all_of(trained: Trained) -> dict[str, Any]:
    logged = {name: value for part in _COMPARED for name, value in _logged(trained, part).items()}
    return {name: value for name, value in trained.state.items() if not name.startswith(_OWN)} | logged


def _kept(
    trained: Trained, parts: Sequence[str], among: Sequence[str] = ("model", "mean", "momentum")
) -> dict[str, Any]:
    """What a checkpoint has of these parts of the model: `model.exact`, `mean.plain.0.weight`."""
    return {
        name: value
        for name, value in trained.state.items()
        if (words := name.split("."))[0] in among and words[1] in parts
    }


def _logged(trained: Trained, part: str) -> dict[str, Any]:
    return {
        f"{kind} {step} {part}": line[part] for (kind, step), line in trained.lines.items() if part in line
    }


def _read_lines(path: Path) -> tuple[dict[tuple[str, int], dict[str, float]], int]:
    """The lines of a log by kind and step, and how many came again."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    again = 0
    for text in path.read_text().splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue  # cut off by a kill; the next start removes it
        key = line["kind"], int(line["step"])
        again += key in found
        found[key] = {name: line[name] for name in _COMPARED if name in line}
    return found, again


def _parts(kept: Checkpoint) -> dict[str, Any]:
    optimizer = kept.tensors["optimizer"]
    momentum = {
        _WEIGHTS[at]: state["momentum_buffer"]
        for at, state in optimizer["state"].items()
        if state.get("momentum_buffer") is not None
    }
    return {
        "model": kept.model,
        "mean": kept.mean or {},
        "momentum": momentum,
        "groups": optimizer["param_groups"],
        "drawn": kept.tensors["drawn"],
        "plain": kept.plain,
    }


def _flat(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """All that is in it, by names with dots between their parts."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{at}.{name}" if at else str(name))
    elif isinstance(value, (list, tuple)):
        for name, inner in enumerate(value):
            yield from _flat(inner, f"{at}.{name}")
    else:
        yield at, value
