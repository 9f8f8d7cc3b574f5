"""The host waits for the device in every step, and then the device for the host: `.item()`, masks, prints."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.watch.words import duration, percent

ID = "host-sync"
CURES = (
    Cure(
        change="read_later",
        text="read losses and metrics every N steps, or one step late; sum them on the device until then",
    ),
    Cure(
        change="no_masks",
        text="torch.where or weights in place of boolean masks, whose size the host must know",
        kind="numerics",
    ),
)
# Of a step, from which on the device has no gaps worth closing: the host waits only where it asks.
_ALL_ALONG = 0.9
_FEW = 0.2


def judge(run: Evidence) -> Judgement:
    """By the host's waits, and by what a step takes without: the longer of device and host by themselves."""
    if run.on_gpu is False:
        return RuledOut(by="nothing is computed on a GPU")
    trace = run.trace
    if trace is None:
        return None
    told = (
        f"the host waits for the device {trace.syncs:.3g} times a step, {percent(trace.waited / trace.wall)} "
        f"of it; the device is busy {percent(trace.busy_share)} of it"
    )
    if trace.syncs < _FEW or trace.busy_share >= _ALL_ALONG:
        return RuledOut(by=told)
    share = max(0.0, 1 - max(trace.busy, trace.own) / trace.wall)
    if share < ALARM:
        return RuledOut(by=f"{told}; without waiting a step would still take {percent(1 - share)}")
    evidence = [told, f"after them the device has nothing to do for {duration(trace.gap)} a step"]
    if run.syncs:
        evidence.append("at " + ", ".join(f"{one.line} ({one.each:.3g} a step)" for one in run.syncs))
    return Found(share=share, certainty=0.9, computes=True, evidence=tuple(evidence))
