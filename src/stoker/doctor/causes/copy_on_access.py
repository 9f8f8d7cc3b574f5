"""Forked workers come to hold a copy each of what they shared: reading Python objects writes to them."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import Cure, Found, Judgement, RuledOut
from stoker.facts.words import size

ID = "copy-on-access"
CURES = (
    Cure(
        change="pack",
        text="keep samples in arrays, not in lists or dicts of objects: one NumPy array of all values, and "
        "one of where each sample begins",
    ),
)
# Bytes in a worker, and of what it was born with: the interpreter's own objects alone come to 20 MB of 225 in
# 10 s (healthy-pet-folder in the ward).
_LEAST = 32 << 20
_SHARE = 1 / 8


def judge(run: Evidence) -> Judgement:
    """By pages that a worker was born with and that became its own, beside what it grew by."""
    memory = run.memory
    if run.drawn is None or run.drawn.workers is None:
        return None
    if not run.workers:
        return RuledOut(by="no workers share the dataset")
    if memory is None or memory.copied is None or memory.born is None:
        return None
    told = f"of {size(memory.born)} that a worker was born with, {size(memory.copied)} are no longer shared"
    if memory.copied < max(_LEAST, _SHARE * memory.born):
        return RuledOut(by=told)
    return Found(
        share=None,
        certainty=0.9,
        evidence=(
            f"{told}, in each of {run.workers} workers: copied, beside what it has grown by (no leak)",
            "it costs memory, not time",
        ),
    )
