"""Workers are started, and the dataset is sent to them, at the beginning of every epoch."""

from math import isfinite

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import Cure, Found, Judgement, RuledOut
from stoker.watch.words import percent

ID = "worker-startup"
CURES = (
    Cure(
        change="persistent_workers",
        text="DataLoader(..., persistent_workers=True): workers live on from epoch to epoch",
        risk="a dataset that counts epochs in its workers goes on counting",
    ),
)
_LEAST = 0.08


def judge(run: Evidence) -> Judgement:
    """By the time between `iter()` and the first batch, beyond what making a batch takes."""
    if run.drawn is None or run.drawn.workers is None:
        return None
    if not run.workers:
        return RuledOut(by="no worker processes are started")
    if not isfinite(run.step):
        return None  # it died before a step
    if run.drawn.persistent:
        return RuledOut(by="workers live on from epoch to epoch")
    if run.starting < _LEAST:
        return RuledOut(by=f"workers starting up are {percent(run.starting)} of the time")
    if run.drawn.epochs < 2:
        return None
    return Found(
        share=run.starting,
        certainty=0.95,
        evidence=(
            f"{percent(run.startup)} of the time goes from `iter()` to an epoch's first batch, of which "
            f"{percent(run.startup - run.starting)} are making that batch",
            f"{run.workers} workers, persistent_workers={run.drawn.persistent}",
        ),
    )
