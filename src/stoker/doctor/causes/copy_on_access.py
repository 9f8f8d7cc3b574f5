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
# Bytes in a worker after its first seconds, the greatest of some rises apart: 37 MiB where samples
# are lists of words (the ward's copy-on-access-words-2), 1 MiB at most in seven cases that only read.
_LEAST = 10 << 20


def judge(run: Evidence) -> Judgement:
    """By pages that a worker goes on to make its own after its first seconds, beside what it grows by."""
    memory = run.memory
    if run.drawn is None or run.drawn.workers is None:
        return None
    if not run.workers:
        return RuledOut(by="no workers share the dataset")
    if memory is None or memory.copied is None or memory.born is None:
        return None
    told = (
        f"of {size(memory.born)} that a worker was born with, {size(memory.copied)} came to be its own after "
        "its first seconds, a sudden rise apart"
    )
    if memory.copied < _LEAST:
        return RuledOut(by=told)
    return Found(
        share=None,
        certainty=0.9,
        evidence=(
            f"{told}, in each of {run.workers} workers: copied, beside what it has grown by (no leak)",
            "it goes on as more samples are read, up to all that they are kept in",
            "it costs memory, not time",
        ),
        slows=False,
    )
