"""Collectives take long although all ranks are there: a slow link, or more of them than are needed."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.doctor.ranks import Together
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
_RANK_LINK = Cure(
    change="rank_link",
    text="see what that rank's link runs at and who shares it (ethtool, its switch's port), or move the rank",
)
CURES = (_NO_SYNC, _RANK_LINK, _LINK, _HALF, _BUCKETS)
# Passes a step that bring gradients together, for one of them to be one too many.
_OVER_ONE = 1.5


def judge(run: Evidence) -> Judgement:
    """By what collectives take from the last rank's arrival on, with nothing left to compute."""
    if run.together is None:
        return RuledOut(by="one process trains by itself") if run.process.get("world") == 1 else None
    ranks, met = run.together, run.together.met
    crowded = ranks.queued_in
    share = (met.link - crowded) / run.step
    told = (
        f"with all ranks there, collectives take {duration(met.link)} of a step of {duration(run.step)} "
        f"({percent(met.link / run.step)})"
    )
    waits = f"threads that send and add up stand in line for a core for {duration(crowded)} of that"
    if share < ALARM:
        return RuledOut(by=f"{told}; {waits}" if met.link / run.step >= ALARM else told)
    moved = (
        f"{'n/a' if met.bytes is None else size(round(met.bytes))} in {met.meetings:.3g} collectives a step"
    )
    evidence = [told, moved if met.rate is None else f"{moved}, at {size(round(met.rate))}/s or less"]
    if crowded >= ALARM * run.step:
        evidence.append(waits)
    evidence += _links(ranks)
    often = met.backwards >= _OVER_ONE
    if often:
        evidence.append(
            f"gradients are brought together {met.backwards:.2g} times a step, and used once: all but the "
            "last can do without"
        )
    evidence.append(f"ranks come {duration(met.apart)} a step apart: that is not counted here")
    left_out = {_NO_SYNC: not often, _RANK_LINK: not ranks.slow}
    return Found(
        share=min(1.0, share),
        certainty=0.9,
        evidence=tuple(evidence),
        computes=True,  # held batches do not make it less
        cures=tuple(cure for cure in CURES if not left_out.get(cure, False)),
    )


def _links(ranks: Together) -> list[str]:
    """What ranks gave each other when only two of them did, and which of them are slow."""
    if not ranks.transfers:
        return []
    slow = ranks.slow
    others = [one for one in ranks.transfers if one not in slow]
    if not slow:
        return [f"from one rank to the next, alone: {_range([one.rate for one in others])}"]
    if ranks.slow_rank is not None:
        which = f"the link of rank {ranks.slow_rank} is slow"
    else:
        which = f"slow from {', '.join(f'rank {one.sender} to {one.receiver}' for one in slow)}"
    there_and_back = max(one.seconds for one in slow)
    return [
        f"{which}: {_range([one.rate for one in slow])}, {duration(there_and_back)} there and back; between "
        f"others {_range([one.rate for one in others])}, {duration(max(one.seconds for one in others))}"
    ]


def _range(rates: list[float]) -> str:
    low, high = size(round(min(rates))), size(round(max(rates)))
    return f"{low}/s" if low == high else f"{low}/s to {high}/s"
