"""The plan: cures put together to three options, each with what it gains, needs, risks and how it is done."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, isfinite
from typing import Any, Literal

from stoker.doctor.advice import MIND, OF_STREAMS, consequences_of, lines_for
from stoker.doctor.ahead import long_enough
from stoker.doctor.budget import Budget
from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import Cure
from stoker.doctor.foreign import FEW
from stoker.doctor.model import Change, Interval, Prediction, predict, why_not_told, workers_worth_trying
from stoker.doctor.needs import ram_need, vram_need
from stoker.doctor.samples import set_bytes, why_left_alone
from stoker.doctor.verdict import Verdict

Kind = Literal["same", "redraw", "numerics", "optimization"]
# From what leaves the maths alone to what changes it most.
KINDS: tuple[Kind, ...] = ("same", "redraw", "numerics", "optimization")
# The options, and the last kind that each allows.
_OPTIONS: tuple[tuple[str, Kind], ...] = (
    ("conservative", "same"),
    ("moderate", "numerics"),
    ("aggressive", "optimization"),
)
# Causes that are cured by using less.
_OF_MEMORY = ("ram-pressure", "small-shm")
# The least gain that a change is worth.
_WORTH = 1.02


@dataclass(frozen=True, kw_only=True)
class Step:
    """One change of an option: what, why, and how it is applied.

    `predicted` is the rate with this change alone; None where its gain was not measured. `apply` are lines to
    write or commands to give. `mind` is how it can backfire. `consequences` are what a change of the
    optimization means for learning rate and schedule.
    """

    change: str
    value: Any
    kind: Kind
    cause: str
    text: str
    apply: tuple[str, ...]
    share: float | None = None
    predicted: Interval | None = None
    limit: str | None = None
    risk: str = ""
    mind: str = ""
    consequences: str = ""

    def to_json(self) -> dict[str, Any]:
        """All of it, by name."""
        told = None if self.predicted is None else self.predicted.to_json()
        return {**vars(self), "apply": list(self.apply), "predicted": told}


@dataclass(frozen=True, kw_only=True)
class Need:
    """Bytes that an option needs, beside those that are free; None where it was not measured."""

    need: int | None
    free: int | None

    @property
    def fits(self) -> bool | None:
        """Whether there is room."""
        return None if self.need is None or self.free is None else self.need <= self.free

    def to_json(self) -> dict[str, Any]:
        """Both, and whether there is room."""
        return {"need": self.need, "free": self.free, "fits": self.fits}


@dataclass(frozen=True, kw_only=True)
class Option:
    """One of three. `epoch` and `total` are seconds; `alike` names the option that it is no other than."""

    name: str
    changes: tuple[Step, ...]
    kind: Kind
    predicted: Interval | None
    limit: str | None
    epoch: Interval | None
    total: Interval | None
    vram: Need
    ram: Need
    risk: str
    alike: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The option as `stoker doctor --json` prints it."""
        return {
            "name": self.name,
            "changes": [step.to_json() for step in self.changes],
            "kind": self.kind,
            "predicted": None if self.predicted is None else self.predicted.to_json(),
            "limit": self.limit,
            "epoch": None if self.epoch is None else self.epoch.to_json(),
            "total": None if self.total is None else self.total.to_json(),
            "vram": self.vram.to_json(),
            "ram": self.ram.to_json(),
            "risk": self.risk,
            "alike": self.alike,
        }


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options, what the run takes as it is, and in a sentence what to make of them."""

    summary: str
    options: tuple[Option, ...]
    rate: float
    epoch: float | None
    total: float | None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The plan as `stoker doctor --json` prints it."""
        return {
            "summary": self.summary,
            "rate": self.rate or None,
            "epoch": self.epoch,
            "total": self.total,
            "options": [option.to_json() for option in self.options],
            "notes": list(self.notes),
        }


def draw_up(
    verdict: Verdict,
    run: Evidence,
    budget: Budget,
    *,
    errors: Mapping[str, float] | None = None,
    steps: int | None = None,
) -> Plan:
    """The plan for a verdict. `steps` are those of the whole run; `errors` how wrong the model was so far."""
    epoch_steps = run.drawn.length / run.batches if run.drawn is not None and run.drawn.length else None
    proposed, notes = _propose(verdict, run, budget, errors, epoch_steps)
    if (run.foreign or 0.0) > FEW:
        notes = (
            *notes,
            f"other processes took up to {run.foreign:.1f} cores from it: rates are of a busy machine",
        )
    trained = isfinite(run.step)
    options: list[Option] = []
    for name, widest in _OPTIONS:
        allowed = KINDS[: KINDS.index(widest) + 1]
        steps_allowed = [step for step in proposed if step.kind in allowed]
        if name == "conservative":  # a setting before a rewriting
            steps_allowed = [step for step in steps_allowed if _is_setting(step)] or steps_allowed
        chosen = _choose(steps_allowed, run)
        alike = next((one.name for one in options if one.changes == chosen), None)
        options.append(_option(name, chosen, alike, run, budget, errors, epoch_steps, steps))
    if not any(option.changes for option in options):
        options = []
    return Plan(
        summary=_summary(verdict, options),
        options=tuple(options),
        rate=verdict.rate,
        epoch=None if epoch_steps is None or not trained else epoch_steps * run.step,
        total=None if steps is None or not trained else steps * run.step,
        notes=notes,
    )


def _propose(
    verdict: Verdict,
    run: Evidence,
    budget: Budget,
    errors: Mapping[str, float] | None,
    epoch_steps: float | None,
) -> tuple[list[Step], tuple[str, ...]]:
    """Every cure with a value, how it is applied, and what it would gain by itself; and why some are not."""
    proposed, notes = [], []
    batch = None if run.drawn is None else run.drawn.batch_size
    for named in verdict.named:
        for cure in named.cures:
            value, note = _value_of(cure, named.cause, run, budget)
            if note is not None:
                notes.append(note)
                continue
            step = Step(
                change=cure.change,
                value=value,
                kind=cure.kind,
                cause=named.cause,
                text=cure.text,
                apply=lines_for(cure.change, value, cure.text),
                share=named.share,
                risk=cure.risk,
                mind=MIND.get(cure.change, ""),
                consequences=consequences_of(cure.change, value, batch=batch, epoch_steps=epoch_steps)
                if cure.kind == "optimization"
                else "",
            )
            told = predict(run, (_change(step),), errors)
            if told is not None and told.rate.mid < _WORTH * verdict.rate and named.cause not in _OF_MEMORY:
                notes.append(f"{_said(step)} would gain nothing: {told.limit} is the next limit")
                continue
            if told is not None:
                step = replace(step, predicted=told.rate, limit=told.limit)
            elif (why := why_not_told(run, _change(step))) is not None:
                notes.append(f"{_said(step)}: no rate is predicted, {why}")
            proposed.append(step)
    return proposed, tuple(dict.fromkeys(notes))


def _value_of(cure: Cure, cause: str, run: Evidence, budget: Budget) -> tuple[Any, str | None]:
    """The value of a setting, where it is one; or why it cannot be had."""
    if cure.change == "feed":
        left = why_left_alone(run, cure.value)
        return cure.value, None if left is None else f"feed={cure.value}: {left}"
    if cure.value is not None:
        return cure.value, None
    if cure.change == "num_workers" and run.streams:
        return (None, f"num_workers: {OF_STREAMS}") if run.workers else (1, None)
    if cure.change == "num_workers":
        return _fewer_workers(run, budget) if cause in _OF_MEMORY else _workers_for(run, budget)
    if cure.change == "prefetch_factor":
        return (1, None) if cause in _OF_MEMORY else _queue_for(run, budget)
    if cure.change in ("persistent_workers", "pin_memory"):
        return True, None
    if cure.change in ("threads", "worker_threads"):
        return 1, None  # as it was tried
    if cure.change == "batch_size":
        return _batch_for(run, budget)
    if cure.change == "accumulate":
        return _parts_for(run, budget), None
    return None, None


def _workers_for(run: Evidence, budget: Budget) -> tuple[int | None, str | None]:
    """As many as were tried, or make batches as fast as they are used; and no more than fit."""
    tried = run.step_with or run.loader_with
    wanted = workers_worth_trying(run) if tried is None and not run.workers else tried[0] if tried else None
    fit, ram = budget.ram.most_workers, budget.ram
    if wanted is None or fit is None or fit >= wanted:
        return wanted, None
    if fit <= run.workers:
        return None, f"num_workers: {ram.limited_by} has room for {fit}, and there are {run.workers}"
    return fit, None


def _queue_for(run: Evidence, budget: Budget) -> tuple[int | None, str | None]:
    """As many batches of each worker as even out their times; and no more than half of /dev/shm holds."""
    had = (run.drawn.prefetch if run.drawn is not None else None) or 2
    if run.compute is None:
        return None, None
    found = long_enough(run.made, run.compute / run.batches, workers=run.workers, prefetch=had)
    if found is None:
        return None, None
    room = budget.ram.shm_free
    if room is None or not run.batch_bytes:
        return found[0], None
    fit = room // 2 // (run.workers * run.batch_bytes)
    if fit <= had:
        return None, f"prefetch_factor: /dev/shm has room for {fit}, and it is {had}"
    return min(found[0], fit), None


def _fewer_workers(run: Evidence, budget: Budget) -> tuple[int | None, str | None]:
    """As many as memory has room for; half of them where that is not known."""
    fit = budget.ram.most_workers
    if fit is not None and fit < run.workers:
        return max(1, fit), None
    if run.workers < 2:
        return None, f"num_workers: there are {run.workers}, and no fewer to have"
    return run.workers // 2, None


def _batch_for(run: Evidence, budget: Budget) -> tuple[int | None, str | None]:
    """Of the sizes that ran and fit, the one with most samples a second: the largest need not be it."""
    own = None if run.drawn is None else run.drawn.batch_size
    room = budget.vram.free
    fitting = [
        (samples / seconds, samples)
        for samples, seconds, peak in run.resized
        if room is None or peak is None or peak + (budget.vram.context or 0) <= room
    ]
    if own is None or not fitting:
        return None, None
    best = max(fitting)[1]
    return (best, None) if best > own else (None, f"batch_size: of the sizes that ran, {best} is the fastest")


def _parts_for(run: Evidence, budget: Budget) -> int | None:
    """In how many parts the script's own batch fits the card; None where that is not known."""
    own, fits = None if run.drawn is None else run.drawn.batch_size, budget.vram.largest
    if not own or not fits or fits >= own:
        return None
    return ceil(own / fits)


def _choose(steps: list[Step], run: Evidence) -> tuple[Step, ...]:
    """For each cause the cure that gains most; left out where those before it leave it nothing to gain."""
    chosen: list[Step] = []
    for cause in dict.fromkeys(step.cause for step in steps):
        best = max((step for step in steps if step.cause == cause), key=_gain)
        if any(one.change == best.change for one in chosen):
            continue
        before, after = _rate_with(chosen, run), _rate_with([*chosen, best], run)
        if best.predicted is None or before is None or after is None or after >= _WORTH * before:
            chosen.append(best)
    needed = [step for step in chosen if step.predicted is None or not _is_spare(step, chosen, run)]
    return tuple(needed)


def _is_spare(step: Step, chosen: list[Step], run: Evidence) -> bool:
    """Whether the rate would be the same without it: more workers, say, for batches that come from memory."""
    others = [one for one in chosen if one is not step]
    whole, left = _rate_with(chosen, run), _rate_with(others, run)
    return whole is not None and left is not None and whole < _WORTH * left


def _is_setting(step: Step) -> bool:
    return step.value is not None and step.predicted is not None


def _rate_with(steps: list[Step], run: Evidence) -> float | None:
    told = predict(run, [_change(step) for step in steps if step.predicted is not None])
    return None if told is None else told.rate.mid


def _gain(step: Step) -> float:
    return 0.0 if step.predicted is None else step.predicted.mid


def _option(
    name: str,
    changes: tuple[Step, ...],
    alike: str | None,
    run: Evidence,
    budget: Budget,
    errors: Mapping[str, float] | None,
    epoch_steps: float | None,
    steps: int | None,
) -> Option:
    told: Prediction | None = predict(
        run, [_change(step) for step in changes if step.predicted is not None], errors
    )
    rate = None if told is None else told.rate
    values = {step.change: step.value for step in changes}
    return Option(
        name=name,
        changes=changes,
        kind=max((step.kind for step in changes), key=KINDS.index, default="same"),
        predicted=rate,
        limit=None if told is None else told.limit,
        epoch=None if rate is None or epoch_steps is None else rate.time_for(epoch_steps),
        total=None if rate is None or steps is None else rate.time_for(steps),
        vram=Need(need=vram_need(run, budget, values), free=budget.vram.free),
        ram=Need(need=_ram_need(run, budget, values), free=budget.ram.free),
        risk="; ".join(dict.fromkeys(step.risk for step in changes if step.risk)) or "none known",
        alike=alike,
    )


def _ram_need(run: Evidence, budget: Budget, values: Mapping[str, Any]) -> int | None:
    """Kept samples come on top: they are read by the workers that there are."""
    if values.get("feed") != "ram":
        return ram_need(run, budget, values)
    others = {change: value for change, value in values.items() if change != "feed"}
    loop, samples = ram_need(run, budget, others), set_bytes(run)
    return None if loop is None or samples is None else loop + samples


def _summary(verdict: Verdict, options: list[Option]) -> str:
    if not options:
        if verdict.named:
            return f"{verdict.cause}: no change of those known would gain anything by what was measured"
        return "nothing is worth changing" if verdict.cause != "unknown" else "no cause is known to cure"
    best = max(options, key=lambda one: 0.0 if one.predicted is None else one.predicted.mid)
    if best.predicted is None:
        return "what the changes gain was not measured"
    return f"up to {best.predicted.mid / verdict.rate:.2f} times the rate ({best.name})"


def _change(step: Step) -> Change:
    # In how many parts a batch is computed does not tell how fast: that goes by what its cause costs.
    value = None if step.change == "accumulate" else step.value
    return Change(change=step.change, value=value, share=step.share)


def _said(step: Step) -> str:
    return step.change if step.value is None else f"{step.change}={step.value}"
