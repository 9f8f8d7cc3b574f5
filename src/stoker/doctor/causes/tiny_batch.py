"""A step is too little work for the device: launching it takes longer than doing it."""

from math import isfinite

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.watch.words import duration, percent

ID = "tiny-batch"
CURES = (
    Cure(
        change="batch_size",
        text="a larger batch, as far as memory and the learning rate allow",
        kind="optimization",
        risk="fewer updates an epoch: the learning rate and its schedule want another look",
    ),
    Cure(
        change="compile",
        text="torch.compile(model, mode='reduce-overhead'), or CUDA graphs: fewer launches a step",
        kind="numerics",
        risk="shapes must stay the same",
    ),
)
# The device's share of a step, above which there is little left to launch faster for.
_IDLE = 0.6
# Of a step, that the host must need for itself: else it waits for something.
_LAUNCHING = 0.6
_MANY_KERNELS = 20
# Seconds; launching one from Python took 23 to 57 us a kernel beside an H200.
_SHORT_KERNEL = 40e-6
# More for each, and the host does something else than launching.
_LONG_LAUNCH = 150e-6
# What a step's time grows by as its batch does: 0 is flat, 1 in proportion.
_FLAT, _GROWS = 0.35, 0.7


def judge(run: Evidence) -> Judgement:
    """By steps with larger batches, and by the driver's account of how much a step gives the device to do."""
    if not isfinite(run.step):
        return None  # the sizes that ran are parts of a batch that the card has no room for
    growth = _growth(run)
    if growth is not None and growth[0] >= _GROWS:
        return RuledOut(by=growth[1])
    if run.on_gpu is False and growth is None:
        return RuledOut(by="nothing is computed on a GPU")
    trace = run.trace
    if trace is None:
        if growth is None or growth[0] > _FLAT or run.lost >= ALARM:
            return None
        # What larger batches save says nothing of what compiling would.
        return Found(share=growth[2], certainty=0.7, computes=True, evidence=(growth[1],), cures=CURES[:1])
    waiting = (run.shares.get("wait") or 0.0) * trace.wall
    launching = min(trace.launching, max(0.0, trace.own - trace.allocating - trace.pinning - waiting))
    told = (
        f"the device is busy {percent(trace.busy_share)} of a step with {trace.kernels:.0f} kernels"
        + ("" if trace.kernel is None else f" of {trace.kernel * 1e6:.0f} us")
        + f"; the host takes {percent(launching / trace.wall)} to launch them"
    )
    small = (
        trace.kernel is not None
        and trace.kernel < _SHORT_KERNEL
        and trace.kernels >= _MANY_KERNELS
        and launching < _LONG_LAUNCH * trace.kernels
    )
    if trace.busy_share > _IDLE or launching < _LAUNCHING * trace.wall or not small:
        return RuledOut(by=told)
    share = max(0.0, launching - trace.busy) / trace.wall
    if share < ALARM:
        return RuledOut(by=told)
    # After every wait the device begins with nothing to do: whether launches would keep up is not seen then.
    certainty = 0.9 if trace.syncs < 1 else 0.5
    evidence = (told,) if growth is None else (told, growth[1])
    return Found(share=share, certainty=certainty, computes=True, evidence=evidence)


def _growth(run: Evidence) -> tuple[float, str, float] | None:
    """How a step grows with its batch, in words, and what a sample saves; None where no larger one ran."""
    if len(run.resized) < 2:
        return None
    samples, seconds, _ = run.resized[0]  # the loop's own size
    most, longest, _ = max(run.resized)
    if most <= samples:
        return None
    growth = (longest / seconds - 1) / (most / samples - 1)
    told = f"a step of {samples} samples takes {duration(seconds)}, one of {most} takes {duration(longest)}"
    return growth, told, max(0.0, 1 - (longest / most) / (seconds / samples))
