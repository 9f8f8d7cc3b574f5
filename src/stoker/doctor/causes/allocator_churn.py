"""Memory is taken from the driver and given back in every step, in place of torch's cache."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.experiments.variants import AS_IT_IS, KEPT_CACHE
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.watch.words import percent

ID = "allocator-churn"
CURES = (
    Cure(change="keep_cache", text="remove torch.cuda.empty_cache() from the loop"),
    Cure(
        change="allocator",
        text="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, where shapes change from step to step",
    ),
)
# Allocations by the driver in a step; a loop whose shapes repeat makes none after its first steps.
_FEW = 0.3


def judge(run: Evidence) -> Judgement:
    """By the driver's allocations in steady state, and by steps with the cache kept, or the time in them."""
    if run.on_gpu is False:
        return RuledOut(by="nothing is computed on a GPU")
    allocator, trace = run.allocator, run.trace
    calls = None if allocator is None else allocator.device_allocs
    if calls is None and trace is not None:
        calls = trace.allocations
    if calls is None:
        return None
    told = f"{calls:.3g} allocations by the driver a step"
    emptied = allocator is not None and bool(allocator.empty_cache)
    if allocator is not None and emptied:
        told += (
            f", torch.cuda.empty_cache() called {allocator.empty_cache:.2g} times"
            f" ({allocator.empty_cache_line})"
        )
    if calls < _FEW:
        return RuledOut(by=told)
    variants = run.variants or {}
    if KEPT_CACHE in variants:
        share = max(0.0, 1 - variants[KEPT_CACHE] / variants[AS_IT_IS])
        how = f"with the cache kept a step takes {percent(1 - share)} of its time"
    elif trace is not None:
        share = trace.allocating / trace.wall
        how = f"the host stands in them for {percent(share)} of a step"
    else:
        return None
    if share < ALARM:
        return RuledOut(by=f"{told}; {how}")
    cures = CURES[:1] if emptied else CURES[1:]
    return Found(share=share, certainty=0.95, computes=True, evidence=(told, how), cures=cures)
