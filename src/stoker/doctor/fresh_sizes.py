"""The loop's first steps at other sizes, each in a process of its own: what a user would see who ran them.

Sizes that follow each other in one process inherit what its allocator keeps, and reserve other amounts: on an
H200, with batches of 48 and 8, a ResNet 11% less and a transformer 7% more than a process of its own. So
where the card's memory was asked for, or one process told what the loop itself had not had, sizes are run
anew.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from stoker.doctor.allocations import Allocations
from stoker.doctor.budget import sizes_around
from stoker.doctor.device_evidence import UNPROBED, missing_of, read_fresh
from stoker.doctor.evidence import Evidence
from stoker.doctor.forecast import foresee
from stoker.doctor.method import Stretch
from stoker.doctor.other_workers import Hold
from stoker.doctor.parts import Parts

# As many steps as the loop's own warm-up, of which the allocations are compared with theirs.
_FIRST_STEPS = Parts(peak_alone=True)
# A size is run where it would take no more of what is free than this, as if all of its memory grew with it.
_SURELY = 0.5
# So many times its own size, the most telling first: what is told between two sizes is surer than beyond.
_TIMES = (2.0, 0.5, 4.0, 0.25)
# A process that does the same again takes about as long.
_MARGIN = 1.3


@dataclass(frozen=True, kw_only=True)
class Wish:
    """Whether the card's memory was asked about, and about which batch; None: how large one may be."""

    is_asked: bool = False
    batch: int | None = None


def sizes_worth_running(found: Evidence, wish: Wish) -> tuple[int, ...]:
    """Sizes for which a process of their own is started, in order; none where all is known. Pure."""
    own = next(iter(found.fresh), None)
    points = [(samples, peak) for samples, _, peak in found.resized if peak]
    if own is None or (not wish.is_asked and foresee(points, found.fresh).holds):
        return ()
    room = _room(found)
    most = _samples(found)
    wanted = [round(own.samples * times) for times in _TIMES]
    if wish.batch is not None and room is not None:
        wanted.insert(0, wish.batch)
    elif wish.batch is not None and wish.batch <= max(wanted):
        wanted.append(wish.batch)  # how much is free is not known: after sizes that are as large
    return tuple(
        size
        for size in dict.fromkeys(wanted)
        if size > 1
        and size != own.samples
        and (most is None or size <= most)
        and (room is None or size / own.samples * own.peak < _SURELY * room)
    )


def run_fresh_sizes(
    hold: Hold,
    name: str,
    found: Evidence,
    left: Callable[[], float],
    tell: Callable[[str], None],
    *,
    wish: Wish,
    each: float,
) -> tuple[Evidence, tuple[Stretch, ...]]:
    """The evidence with more sizes, until predictions by them hold; each takes about so many seconds."""
    runs = list(found.fresh)
    stretches: list[Stretch] = []
    failed: list[str] = []
    missing: dict[str, str] = {}
    for size in _in_turn(found, runs, wish):
        if left() < _MARGIN * each:
            failed.append(f"the budget was used up before a batch of {size} was run in a process of its own")
            break
        tell(f"the card's memory with batches of {size}")
        workers = (None if found.drawn is None else found.drawn.workers) or 0
        probe = () if any(run.probed for run in runs) else _to_probe(runs, size, wish)
        parts = replace(_FIRST_STEPS, batch=(size, workers), probe=probe)
        result = hold(f"{name}-fresh{size}", parts, left())
        stretch = Stretch(
            name=f"first steps with batches of {size}",
            seconds=result.seconds,
            note="a scratch run of its own",
        )
        stretches.append(stretch)
        ran = read_fresh(result.messages)
        missing |= {name: why for name, why in missing_of(result.messages).items() if name == UNPROBED}
        if [run.samples for run in ran] != [size]:
            words = f"it made batches of {ran[0].samples}" if ran else f"{result.outcome}, {result.reason}"
            failed.append(f"with batches of {size}: {words}")
            if ran and ran[0].samples == found.fresh[0].samples:
                break  # it makes batches of its own, whatever is put over its loaders
            continue
        runs += ran
    if failed:
        missing["sizes in processes of their own"] = "; ".join(failed)
    return replace(found, fresh=tuple(runs), missing={**found.missing, **missing}), tuple(stretches)


def _to_probe(runs: Sequence[Allocations], size: int, wish: Wish) -> tuple[int, ...]:
    """Samples with which convolutions are run alone: those of runs first, which show whether that tells."""
    asked = () if wish.batch is None or wish.batch < 2 else (wish.batch,)
    ran = (*(run.samples for run in runs), size)
    return tuple(dict.fromkeys((*ran, *sorted((*asked, *sizes_around(runs[0].samples))))))


def _in_turn(found: Evidence, runs: Sequence[Allocations], wish: Wish) -> Iterator[int]:
    """Sizes until predictions hold; a batch that was asked about also where it is only foretold to fit."""
    sizes = sizes_worth_running(found, wish)
    for size in sizes:
        if size == wish.batch or not foresee((), runs).holds:
            yield size
    room, batch = _room(found), wish.batch
    if not sizes or batch is None or batch < 2 or batch in [run.samples for run in runs] or room is None:
        return
    need = foresee((), runs).at(batch)
    context = found.process.get("context_bytes") or 0
    if need is not None and need.high + context <= room and batch <= (_samples(found) or batch):
        yield batch


def _samples(found: Evidence) -> int | None:
    """In the whole set, about."""
    drawn = found.drawn
    return None if drawn is None or drawn.length is None else drawn.length * found.fresh[0].samples


def _room(found: Evidence) -> int | None:
    others = found.others
    if others is None or others.total is None:
        return None
    allowed = None if found.overflow is None else found.overflow.allowed
    return min(others.total - (others.bytes or 0), allowed or others.total)
