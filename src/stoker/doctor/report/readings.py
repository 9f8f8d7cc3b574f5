"""What the experiments gave, figure by figure: only those that were held and gave something. Pure."""

from collections.abc import Iterator

from stoker.doctor.evidence import Evidence
from stoker.doctor.report.story import Table
from stoker.facts.words import size
from stoker.watch.words import duration, percent


def readings(run: Evidence) -> Table:
    """Every figure that stands in no other table."""
    return Table(rows=(*_loop(run), *_device(run), *_again(run), *_sizes(run), *_together(run)))


def _loop(run: Evidence) -> Iterator[tuple[str, str]]:
    """The loop under other conditions."""
    if run.spread is not None:
        yield "the mean step may be off by", f"{percent(run.spread)}, nine times in ten"
    if run.step_with is not None:
        yield f"a step with {run.step_with[0]} workers", duration(run.step_with[1])
    if run.loader_with is not None:
        yield f"the loader alone with {run.loader_with[0]} workers", f"{duration(run.loader_with[1])} a step"
    if run.one_thread is not None:
        yield "a step with one thread in each process", duration(run.one_thread)
    for name, seconds in (run.variants or {}).items():
        yield f"a step, {name}", duration(seconds)
    if run.cores is not None:
        yield "cores used, workers included", f"{run.cores:.2g}"
    if run.foreign is not None:
        yield "cores that others used meanwhile", f"{run.foreign:.2g}"


def _device(run: Evidence) -> Iterator[tuple[str, str]]:
    """The driver's account of a step, tracing taken off, and its bytes moved again."""
    trace, moved = run.trace, run.copied
    if trace is not None:
        each = "" if trace.kernel is None else f", {trace.kernel * 1e6:.0f} us each in the mean"
        yield "the device is busy", f"{duration(trace.busy)} of a step of {duration(trace.wall)}"
        yield "kernels a step", f"{trace.kernels:.0f}{each}"
        yield "the host, by itself", f"{duration(trace.own)} a step, {duration(trace.launching)} in launching"
        yield "the host waits for the device", f"{trace.syncs:.3g} times, {duration(trace.waited)} a step"
        yield "tracing made a step longer by", f"{duration(trace.added)}, which is taken off"
    if moved is not None:
        yield (
            f"{size(moved.bytes)} moved to the device",
            f"{duration(moved.pageable)} from pageable memory, {duration(moved.pinned)} from pinned",
        )


def _again(run: Evidence) -> Iterator[tuple[str, str]]:
    """Samples read again, and parts of making a batch answered from memory."""
    if run.reread is not None:
        for name in ("again", "warm", "cold"):
            once = getattr(run.reread, name)
            if once is not None:
                disk = "" if once.disk is None else f", {size(once.disk)} of it from the disk"
                yield f"a batch read {name}", f"{duration(once.seconds)}, {size(once.asked)} asked for{disk}"
        if run.reread.held is not None:
            yield "the dataset's files hold", size(run.reread.held)
    if run.stub is not None:
        yield "a batch made once more", duration(run.stub.nothing)
        yield "with reads answered from memory", duration(run.stub.reads)
        yield "with samples answered from memory", duration(run.stub.samples)


def _sizes(run: Evidence) -> Iterator[tuple[str, str]]:
    """Other sizes of batches."""
    for samples, seconds, peak in run.resized:
        memory = "" if peak is None else f", {size(peak)} at the peak"
        yield f"a step with {samples} samples", f"{duration(seconds)}{memory}"


def _together(run: Evidence) -> Iterator[tuple[str, str]]:
    """Several ranks."""
    ranks = run.together
    if ranks is None:
        return
    met = ranks.met
    yield "ranks", f"{len(met.ranks)}, in {met.steps} steps"
    yield "the first is ahead of the last by", f"{duration(met.apart)} a step"
    yield "collectives take", f"{duration(met.link)} a step with all ranks there, {met.meetings:.3g} of them"
    yield "they move", f"{size(met.bytes)} a step"
    for one in ranks.transfers:
        yield (
            f"rank {one.sender} to rank {one.receiver}, alone",
            f"{size(one.rate)}/s, {duration(one.seconds)} there and back",
        )


def ranks_beside(run: Evidence) -> Table:
    """Each rank between collectives and in them; empty of one process."""
    ranks = run.together
    if ranks is None:
        return Table()
    rows = tuple(
        (
            f"{rank}{' (late)' if rank in ranks.met.late.ranks else ''}",
            duration(one.worked),
            duration(one.stood),
            _signed(one.behind),
            percent(one.last),
        )
        for rank, one in ranks.met.ranks.items()
    )
    return Table(columns=("rank", "works, a step", "in collectives", "behind the others", "last"), rows=rows)


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else ''}{duration(abs(seconds))}"
