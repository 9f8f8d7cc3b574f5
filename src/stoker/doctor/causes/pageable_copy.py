"""Batches go to the device from memory that is not pinned; or memory is pinned anew in every step."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.facts.words import size
from stoker.watch.words import duration, percent

ID = "pageable-copy"
CURES = (
    Cure(
        change="pin_memory",
        text="DataLoader(..., pin_memory=True) and .to(device, non_blocking=True)",
        risk="pinned memory cannot be swapped out",
    ),
    Cure(
        change="pin_once",
        text="where a step pins memory itself: pin buffers once and fill them, or leave it to the loader",
    ),
    Cure(
        change="keep_pinned",
        text="the loader pins, and what is copied was made after it: make it in the dataset or collate_fn, "
        "or on the device, and .to(device, non_blocking=True) what the loader hands out",
    ),
)
_LEAST_BYTES = 1 << 16


def judge(run: Evidence) -> Judgement:
    """By the bytes of a step and where they come from, moved again both ways; and by time spent pinning."""
    if run.on_gpu is False:
        return RuledOut(by="nothing is computed on a GPU")
    trace = run.trace
    if trace is None:
        return None
    pinning = trace.pinning / trace.wall
    if pinning >= ALARM:
        return Found(
            share=pinning,
            certainty=0.9,
            computes=True,
            evidence=(
                f"the loop pins memory in every step, {percent(pinning)} of it: that hurts",
                *_ways(run),
            ),
            cures=CURES[1:2],
        )
    total = trace.pageable_bytes + trace.pinned_bytes
    if total < _LEAST_BYTES:
        return RuledOut(by=f"a step moves {size(round(total))} to the device")
    if trace.pageable_bytes < 0.5 * total:
        return RuledOut(
            by=f"{percent(trace.pinned_bytes / total)} of a step's {size(round(total))} are pinned"
        )
    moved = run.copied
    if moved is None:
        return None
    # Fresh memory of a worker is moved at half the rate of a block that was just written (38 MB in 6.4 ms and
    # in 3.1 on an H200): what the loop's own copies took counts, where that is more.
    part = trace.pageable_bytes / moved.bytes
    saved = max(moved.pageable * part, trace.copying) - moved.pinned * part
    share = max(0.0, min(saved / run.step, trace.copy_waited / trace.wall))
    told = f"a step moves {size(round(trace.pageable_bytes))} to the device from memory that is not pinned"
    if share < ALARM:
        return RuledOut(by=f"{told}, and pinning would save {percent(share)} of it")
    pins = run.drawn is not None and run.drawn.pinned
    cures = CURES[2:] if pins else CURES[:1]
    return Found(share=share, certainty=0.9, computes=True, evidence=(told, *_ways(run)), cures=cures)


def _ways(run: Evidence) -> tuple[str, ...]:
    moved = run.copied
    if moved is None:
        return ()
    return (
        f"{size(moved.bytes)} take {duration(moved.pageable)} from pageable memory, {duration(moved.pinned)} "
        f"from pinned, {duration(moved.pinning)} pinned on the way",
    )
