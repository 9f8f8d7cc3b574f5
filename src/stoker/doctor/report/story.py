"""What a diagnosis says, in words and tables: the same for the page and for Markdown. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from stoker.doctor.causes import ALL
from stoker.doctor.examination import Diagnosis
from stoker.doctor.foreign import FEW
from stoker.doctor.verdict import COMPUTE_BOUND, HEALTHY, NOT_MEASURED, UNKNOWN
from stoker.facts.secrets import hide_secrets
from stoker.facts.words import size
from stoker.watch.phases import PHASES
from stoker.watch.words import NA, duration, figure, percent, rate

PHASE_MEANINGS = {
    "wait": "the loop stands still until its next batch is there",
    "copy": "the batch is moved to the device",
    "forward": "the model computes its answer",
    "backward": "the gradients are computed",
    "update": "the optimizer changes the weights",
    "other": "everything else in the loop: the loss, logging, validation, checkpoints",
}
CEILING_MEANINGS = {
    "compute": "if batches cost nothing: the loop with held batches",
    "loader": "if the model cost nothing: the loader with nobody computing",
    "copy": "if all but the copy to the device cost nothing",
    "storage": "if all but the reads cost nothing",
}
# How sure a verdict is to be told without a doubt in it.
_LIKELY = 0.6
# The experiment that a ceiling comes from, where it has another name.
_BY = {"compute": "replay", "loader": "drain"}
KIND_MEANINGS = {
    "same": "same samples, same maths",
    "redraw": "same samples; random draws inside them differ",
    "numerics": "rounding differs",
    "optimization": "the training itself changes",
}
PART_MEANINGS = {
    "start and warm-up": "the script up to its first steps; not measured",
    "observe": "the loop as it is",
    "replay": "the loop with a few held batches, again and again",
    "drain": "the loader alone: batches are drawn and not trained on",
    "from memory": "the loop with samples of those batches held in memory, as a feed would",
    "look": "the loop as it is, its stack looked at now and then",
    "storage": "samples it had are read again, warm and cold; reads answered from memory",
    "trace": "the loop as it is, under torch's profiler",
    "syncs": "the loop as it is, waits for the device counted by line",
    "copy": "a step's bytes moved to the device again",
    "variant": "the loop with a switch turned",
    "resized": "held batches of another size",
    "links": "nothing more: ranks send each other some bytes, one pair after the other",
}
_DOCS = {str(cause.ID): (cause.__doc__ or "").strip() for cause in ALL}
_TOLD = {str(cause.ID): (cause.judge.__doc__ or "").strip() for cause in ALL}


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of words; `columns` is empty for a table of names and values."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def title(diagnosis: Diagnosis) -> str:
    """What was diagnosed."""
    return (
        " ".join(hide_secrets(diagnosis.command))
        if diagnosis.command
        else f"the record {diagnosis.record.name}"
    )


def sentence(diagnosis: Diagnosis) -> str:
    """The verdict for someone who knows none of the words."""
    verdict = diagnosis.verdict
    if verdict.cause == HEALTHY:
        found = "Nothing that was looked for holds this training up"
        return f"{found}." if diagnosis.evidence.waits_known else f"{found}; {NOT_MEASURED}."
    if verdict.cause == COMPUTE_BOUND and not diagnosis.evidence.waits_known:
        return f"What computes is busy nearly all the time, with the model or with its data: {NOT_MEASURED}."
    if verdict.cause == COMPUTE_BOUND:
        return "The data keeps up: this training is as fast as its model computes on these cores."
    if verdict.cause == UNKNOWN and verdict.share is None:
        return (
            "The script died before a training step could be observed, "
            "and nothing that was measured says why."
        )
    if verdict.cause == UNKNOWN:
        return _unknown(diagnosis)
    doc = meaning(verdict.cause)
    if verdict.share is None:
        return f"{doc} What that costs was not measured."
    lost = f"{percent(verdict.share)} of every training step is lost: {doc[:1].lower()}{doc[1:]}"
    return lost if verdict.certainty >= _LIKELY else f"It is possible that {lost}"


def _unknown(diagnosis: Diagnosis) -> str:
    """Of a run whose cause is not known: what is lost, to what, and that nothing says why."""
    verdict, rare = diagnosis.verdict, diagnosis.evidence.rare_stalls
    if verdict.share is None:
        return f"{verdict.why[0][:1].upper()}{verdict.why[0][1:]}."
    if rare is not None and verdict.share == rare:
        return f"{percent(rare)} of the time went into one or two steps that the loop itself held up."
    return (
        f"{percent(verdict.share)} of every training step is lost waiting for data, "
        "and nothing that was measured says why."
    )


def meaning(cause: str) -> str:
    """A cause in a sentence: what its file says that it is."""
    return " ".join(_DOCS.get(cause, "").split("\n\n")[0].replace("`", "").split())


def certainty(value: float) -> str:
    """How sure a rule is of what it says; its own estimate, not a frequency."""
    word = (
        "sure" if value >= 0.8 else "likely" if value >= _LIKELY else "possible" if value > 0 else "not told"
    )
    return f"{word} ({value:.2g})" if value > 0 else word


def step_seconds(diagnosis: Diagnosis) -> float | None:
    """The mean step; None of a run that died before one was made."""
    return diagnosis.evidence.step if isfinite(diagnosis.evidence.step) else None


def now(diagnosis: Diagnosis) -> float | None:
    """Steps a second as the script is; None of a run that died before one was made."""
    return diagnosis.verdict.rate or None


def gain(diagnosis: Diagnosis) -> tuple[str | None, str]:
    """How fast it may become, and what that figure is: the best prediction, else what the share says."""
    named, plan = diagnosis.verdict.named, diagnosis.plan
    tried = [(one.predicted, one.name) for one in (plan.options if plan else ()) if one.predicted is not None]
    if named and tried:
        best, name = max(tried, key=lambda one: one[0].mid)
        interval = f"90%: {figure(best.low)} to {figure(best.high)}"
        told = f"predicted for the {name} plan{times(best.mid, diagnosis)} ({interval})"
        return rate(best.mid, "step"), told
    after = diagnosis.verdict.ceiling_after
    if after is None:
        return None, ""
    return rate(after, "step"), f"with that share gone{times(after, diagnosis)}: worked out, not tried"


def after_cures(diagnosis: Diagnosis) -> tuple[str | None, ...]:
    """For each cause that was named, the rate with it and those before it cured; None: it is not known."""
    told, cured = [], "it"
    for one in diagnosis.verdict.named:
        after = one.ceiling_after
        gained = "" if after is None else f"{rate(after, 'step')}{times(after, diagnosis)}"
        told.append(f"with {cured} cured {gained}: worked out, not tried" if gained else None)
        cured = "it and those before it"
    return tuple(told)


def caveat(diagnosis: Diagnosis) -> str | None:
    """What makes every figure doubtful; None where nothing does."""
    foreign = diagnosis.evidence.foreign
    if foreign is None or foreign <= FEW:
        return None
    return f"Other processes used {foreign:.1f} cores meanwhile: the figures are of a busy machine."


def times(rate_after: float, diagnosis: Diagnosis) -> str:
    """How many times the actual rate one is; nothing where there is none."""
    actual = now(diagnosis)
    return "" if actual is None else f", {rate_after / actual:.1f}x"


def phases(diagnosis: Diagnosis) -> Table:
    """Where the step goes, in total."""
    run, step = diagnosis.evidence, step_seconds(diagnosis)
    rows = []
    for name in PHASES:
        share = run.shares.get(name)
        spent = None if share is None or step is None else share * step
        rows.append((name, duration(spent), percent(share), PHASE_MEANINGS[name]))
    return Table(columns=("phase", "a step", "share", "what happens"), rows=tuple(rows))


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A rate in steps a second beside others; `why` says what it is, or why it was not measured."""

    name: str
    rate: float | None
    why: str


def bars(diagnosis: Diagnosis) -> tuple[Bar, ...]:
    """The actual rate, then the ceilings."""
    verdict, missing = diagnosis.verdict, diagnosis.evidence.missing
    found = [Bar(name="now", rate=now(diagnosis), why="as the script is")]
    for name, ceiling in verdict.ceilings.items():
        why = CEILING_MEANINGS.get(name, "if nothing else cost anything")
        if ceiling is None:
            why = missing.get(_BY.get(name, name)) or "not measured in this diagnosis"
            if name == "copy" and diagnosis.evidence.on_gpu is False:
                why = "nothing is computed on a GPU"
        found.append(Bar(name=f"{name} alone", rate=ceiling, why=why))
    return tuple(found)


def ceilings(diagnosis: Diagnosis) -> Table:
    """The same as words."""
    samples = diagnosis.evidence.samples
    rows = [
        (
            bar.name,
            rate(bar.rate, "step"),
            duration(None if bar.rate is None else 1 / bar.rate),
            rate(None if bar.rate is None or samples is None else bar.rate * samples, "sample"),
            bar.why,
        )
        for bar in bars(diagnosis)
    ]
    return Table(columns=("", "rate", "a step", "samples", ""), rows=tuple(rows))


def making(diagnosis: Diagnosis) -> Table:
    """What making a batch costs whoever makes it."""
    run = diagnosis.evidence
    if run.make is None:
        return Table()
    who = f"{run.workers} worker{'s' if run.workers > 1 else ''}" if run.workers else "the loop itself"
    rows = [("made by", who), ("in all", duration(run.make))]
    for name in ("read", "transform", "collate", "queued", "handoff", "pin"):
        spent = run.making.get(name)
        told = duration(spent)
        if spent is not None and name in ("read", "transform", "collate", "queued"):
            told += f" ({percent(run.part_of_making(name))})"
        rows.append((name, told))
    rows.append(("CPU busy", percent(run.busy)))
    asked = run.making.get("bytes")
    rows.append(("asked of the kernel", NA if asked is None else size(int(asked))))
    calls = run.making.get("calls") or {}
    rows.append(("calls", ", ".join(f"{times:.3g} {name}" for name, times in calls.items()) or NA))
    return Table(rows=tuple(rows))


def eliminated(diagnosis: Diagnosis) -> Table:
    """What it is not, and by which measurement. Several that fall by the same one come last, in one row."""
    by_reason: dict[str, list[str]] = {}
    for cause, by in diagnosis.verdict.eliminated.items():
        by_reason.setdefault(by, []).append(cause)
    rows = sorted(
        (", ".join(causes), by, meaning(causes[0]) if len(causes) == 1 else "")
        for by, causes in by_reason.items()
    )
    rows.sort(key=lambda row: not row[2])
    return Table(columns=("not the cause", "because", "what that would be"), rows=tuple(rows))


def untold(diagnosis: Diagnosis) -> Table:
    """What could not be told, and what would tell it."""
    rows = tuple((cause, f"It is told {_lower(_TOLD.get(cause, ''))}") for cause in diagnosis.verdict.untold)
    return Table(columns=("could not be told", "what would tell it"), rows=rows)


def missing(diagnosis: Diagnosis) -> Table:
    """Experiments that were not held, or gave nothing, and why."""
    rows = tuple(sorted(diagnosis.evidence.missing.items()))
    return Table(columns=("not measured", "why"), rows=rows)


def facts(diagnosis: Diagnosis, about: Mapping[str, Any]) -> Table:
    """The machine and the versions. `about` is the record's `run.json`."""
    host: Mapping[str, Any] = diagnosis.evidence.host
    told = about.get("facts") or {}
    versions = about.get("versions") or {}
    cores = f"{_number(host.get('usable_cores'))} usable of {_number(host.get('cpus'))}"
    if host.get("quota_cores") is not None:
        cores += f", quota {_number(host['quota_cores'])}"
    rows = [
        ("system", str(host.get("system") or NA)),
        ("cores", cores),
        ("memory", _of(host.get("ram_available_bytes"), host.get("ram_total_bytes"))),
        ("/dev/shm", _of(host.get("shm_free_bytes"), host.get("shm_total_bytes"))),
    ]
    gpus = told.get("gpus") or []
    for gpu in gpus:
        memory = f"{size(gpu.get('used_bytes'))} used of {size(gpu.get('total_bytes'))}"
        rows.append((f"GPU {gpu.get('index')}", f"{gpu.get('name') or NA}, {memory}"))
    if not gpus:
        rows.append(("GPU", f"none: {told.get('gpu_reason') or NA}"))
    rows += [(name, str(versions.get(name) or NA)) for name in ("python", "torch", "stoker")]
    rows += [(f"warning: {one['cause']}", str(one["text"])) for one in told.get("warnings") or []]
    return Table(rows=tuple(rows))


def loader(diagnosis: Diagnosis) -> Table:
    """The script's own settings, as far as they were seen."""
    drawn = diagnosis.evidence.drawn
    if drawn is None:
        return Table()
    rows = [
        ("loader", drawn.name),
        ("workers", _number(drawn.workers)),
        ("batch size", _number(drawn.batch_size)),
        ("batches an epoch", _number(drawn.length)),
        ("persistent workers", _yes(drawn.persistent)),
        ("pinned", _yes(drawn.pinned)),
        ("samples a step", _number(diagnosis.evidence.samples)),
    ]
    return Table(rows=tuple(rows))


def method(diagnosis: Diagnosis) -> Table:
    """The parts of the diagnosis, and how long each took."""
    rows = tuple(
        (part.name, duration(part.seconds), part.note or PART_MEANINGS.get(part.name, ""))
        for part in diagnosis.method
    )
    return Table(columns=("part", "took", "what the script got"), rows=rows)


def overhead(diagnosis: Diagnosis) -> str:
    """What observing cost, as measured in this run."""
    told = diagnosis.evidence.overhead
    hooks, share = told.get("hooks_us_per_step"), told.get("recorder_cpu_share")
    of_step = NA if hooks is None else f"{hooks:.0f} us a step"
    step = step_seconds(diagnosis)
    if hooks is not None and step is not None:
        of_step += f" ({percent(hooks / 1e6 / step)} of it)"
    return (
        f"Observing cost {of_step} on the training thread and {percent(share)} of a core beside it, "
        "as measured in this run."
    )


def how_held(diagnosis: Diagnosis) -> str:
    """What kind of diagnosis it was."""
    steps = diagnosis.evidence.steps
    if not diagnosis.method:
        return (
            f"From a record alone, over {steps} steps: nothing was tried, so that less can be told. "
            f"Reading it took {duration(diagnosis.seconds)}."
        )
    return (
        f"The script was run aside, unchanged, and what its loader hands out was changed; "
        f"shares and rate are from {steps} steps of the loop as it is. {shield(diagnosis)} "
        f"The whole diagnosis took {duration(diagnosis.seconds)}."
    )


def shield(diagnosis: Diagnosis) -> str:
    """What of a script that was run aside has not lasted, and what has."""
    files = {
        "full": "No file that it wrote has lasted.",
        "partial": "Its files were shielded in part only; see the notes.",
    }.get(diagnosis.shield or "", "How its files were shielded is not known.")
    return files if diagnosis.offline is None else f"{files} {network(diagnosis.offline)}"


def network(offline: bool) -> str:
    """What of the network the script had, and so what of it may have lasted."""
    if offline:
        return "It was cut off the network: nothing that it sent has left this machine."
    return (
        "Its network was not shielded: anything that it sent (rows of a database, uploads, pushes to a hub) "
        "has lasted, hosted loggers apart; --offline cuts it off."
    )


def _of(free: int | None, total: int | None) -> str:
    return f"{size(free)} free of {size(total)}"


def _number(value: float | None) -> str:
    return NA if value is None else f"{value:g}"


def _yes(value: bool | None) -> str:
    return NA if value is None else "yes" if value else "no"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
