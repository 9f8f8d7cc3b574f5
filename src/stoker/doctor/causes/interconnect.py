"""Collectives take long although all ranks are there: a slow link, or more of them than are needed."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.facts.words import size
from stoker.watch.words import duration, percent

ID = "interconnect"
_NO_SYNC = Cure(
    change="no_sync",
    text="model.no_sync() around all but the last backward pass of a step",
    risk="around the last one too, and the ranks go apart",
)
_LINK = Cure(
    change="link",
    text="see which interface is used (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME), and at what rate",
)
_HALF = Cure(
    change="fp16_gradients",
    text="register_comm_hook with fp16_compress_hook: half the bytes",
    kind="numerics",
    risk="gradients are rounded",
)
_BUCKETS = Cure(
    change="static_graph", text="static_graph=True and other bucket sizes (bucket_cap_mb): more overlaps"
)
CURES = (_NO_SYNC, _LINK, _HALF, _BUCKETS)
# Passes a step that bring gradients together, for one of them to be one too many.
_OVER_ONE = 1.5


def judge(run: Evidence) -> Judgement:
    """By what collectives take from the last rank's arrival on, with nothing left to compute."""
    if run.together is None:
        return RuledOut(by="one process trains by itself") if run.process.get("world") == 1 else None
    met = run.together
    share = met.link / run.step
    told = (
        f"with all ranks there, collectives take {duration(met.link)} of a step of {duration(run.step)} "
        f"({percent(share)})"
    )
    if share < ALARM:
        return RuledOut(by=told)
    moved = f"{size(round(met.bytes))} in {met.meetings:.3g} collectives a step"
    evidence = [told, moved if met.rate is None else f"{moved}, at {size(round(met.rate))}/s"]
    often = met.backwards >= _OVER_ONE
    if often:
        evidence.append(
            f"gradients are brought together {met.backwards:.2g} times a step, and used once: all but the "
            "last can do without"
        )
    evidence.append(f"ranks come {duration(met.apart)} a step apart: that is not counted here")
    return Found(
        share=min(1.0, share),
        certainty=0.9,
        evidence=tuple(evidence),
        computes=True,  # held batches do not make it less
        cures=CURES if often else CURES[1:],
    )
