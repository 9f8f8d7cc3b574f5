"""The script's own model and batch need more memory than the card has."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import Cure, Found, Judgement, RuledOut
from stoker.facts.words import size
from stoker.watch.words import percent

ID = "vram-overflow"
CURES = (
    Cure(
        change="accumulate",
        text="a smaller batch with gradient accumulation: the same samples an update",
        kind="optimization",
        risk="batch norm sees smaller batches",
    ),
    Cure(change="checkpointing", text="torch.utils.checkpoint around the largest blocks: memory for time"),
    Cure(change="autocast", text="torch.autocast to bfloat16: half the activations", kind="numerics"),
)
# Of what it may hold, from which on a retry is for want of room and not for fragments.
_NEARLY_ALL = 0.85


def judge(run: Evidence) -> Judgement:
    """By the failed allocation beside what the script and others held; else by allocations tried twice."""
    if run.overflow is not None:
        return _of_death(run)
    if run.on_gpu is False:
        return RuledOut(by="nothing is computed on a GPU")
    allocator = run.allocator
    if allocator is None:
        return None
    if not allocator.retries:
        return RuledOut(by="no allocation on the card failed, and none was tried twice")
    total = None if run.others is None else run.others.total
    if allocator.reserved_peak is None or not total:
        return None
    reserved = allocator.reserved_peak / total
    told = f"{allocator.retries} allocations were tried twice, with {percent(reserved)} of the card reserved"
    if reserved < _NEARLY_ALL:
        return RuledOut(by=told)
    share = None if run.trace is None else run.trace.allocating / run.trace.wall
    return Found(share=share, certainty=0.8, evidence=(told,))


def _of_death(run: Evidence) -> Judgement:
    overflow = run.overflow
    assert overflow is not None
    by_others = overflow.by_others(run.others)
    foreign = None if run.others is None else run.others.bytes
    alone = run.others is not None and run.others.nobody
    if by_others:
        return RuledOut(by=f"it failed with {size(overflow.own)} of its own; others held {size(foreign)}")
    told = [overflow.text]
    if overflow.own is not None and overflow.allowed is not None:
        told.append(
            f"the script needed more than {size(overflow.own)} and may hold {size(overflow.allowed)}; "
            + ("nobody else was on the card" if alone else f"others held {size(foreign)}")
        )
    if run.resized:
        told.append(_sizes(run))
    return Found(share=None, certainty=0.97 if by_others is False else 0.5, evidence=tuple(told))


def _sizes(run: Evidence) -> str:
    return "sizes that ran: " + ", ".join(
        f"{samples} samples with {size(peak)}" for samples, _, peak in sorted(run.resized)
    )
