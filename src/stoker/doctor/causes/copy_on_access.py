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
# Bytes in a worker: the interpreter's own pages alone are about 10 MB.
_LEAST = 24 << 20


def judge(run: Evidence) -> Judgement:
    """By pages that a worker had shared and that became its own while its size stayed as it was."""
    memory = run.memory
    if run.drawn is None or run.drawn.workers is None:
        return None
    if not run.workers:
        return RuledOut(by="no workers share the dataset")
    if memory is None or memory.copied is None or memory.shared is None:
        return None
    told = f"{size(memory.copied)} that a worker shared at first became its own"
    if memory.copied < _LEAST:
        return RuledOut(by=told)
    return Found(
        share=None,
        certainty=0.9,
        evidence=(
            f"{told}, in each of {run.workers} workers, while its size stayed as it was: no leak",
            f"it costs memory, not time: up to {size(memory.shared)} a worker",
        ),
    )
