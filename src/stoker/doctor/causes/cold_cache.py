"""The data comes from the disk because it is not in memory yet, or no longer: read again, it is fast."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.doctor.holding import BLOCK_ORDER, IN_MEMORY
from stoker.doctor.remains import saved_by
from stoker.doctor.unseen import waits_unseen
from stoker.facts.words import size
from stoker.watch.words import duration, percent

ID = "cold-cache"
CURES = (
    Cure(change="stage", text="stoker stage SRC DST: a local copy, on a disk that is fast to read from"),
    IN_MEMORY,
    BLOCK_ORDER,
)
# Of the bytes read: what came from a disk, for the first reading to be a cold one.
_COLD = 0.3
# Of the time that a batch took at first: less when read again, and memory is what was lacking.
_FASTER = 0.5


def judge(run: Evidence) -> Judgement:
    """By what came from a disk at first, by the same samples read again, and by the epochs after it."""
    asked, disk, faults = run.making.get("bytes"), run.making.get("disk"), run.making.get("faults")
    if run.make is None or asked is None or disk is None:
        return None
    mapped = bool(faults and faults >= 1)
    first, again = run.make - (run.making.get("queued") or 0.0), run.again
    if disk <= _COLD * asked and not mapped:
        fast = again is None or again.seconds <= _FASTER * first
        if fast and run.lost >= ALARM and waits_unseen(run):
            return None  # a mount in user space has a cache of its own, and no counter tells of it
        return RuledOut(by=f"{percent(disk / asked if asked else 0.0)} of the bytes read came from the disk")
    if run.lost < ALARM:
        return RuledOut(by=f"{percent(run.lost)} of the step is lost to waiting for batches")
    came = f"{faults:.3g} pages a batch"
    if not mapped:
        came = f"{percent(disk / asked)} of the bytes read" if asked else f"{size(round(disk))} a batch"
    if again is None:
        return _by_epochs(run, f"{came} came from the disk")
    told = (
        f"a batch took {duration(first)} when it was first read, and {duration(again.seconds)} when the same "
        "samples were read again"
    )
    from_disk = bool(again.faults and again.faults >= 1) if mapped else (again.disk or 0.0) > 0.1 * disk
    if from_disk:
        return RuledOut(by=f"{told}, from the disk once more")
    if again.seconds > _FASTER * first:
        return RuledOut(by=f"{told}, from memory")
    frees = {"making": max(0.0, 1 - again.seconds / first)}
    return Found(
        share=saved_by(run, frees),
        frees=frees,
        certainty=0.95,
        evidence=(f"{came} came from the disk at first; none did when read again", told),
    )


def _by_epochs(run: Evidence, came: str) -> Judgement:
    """Of a run in which nothing was read again: a later epoch that needs the disk no more."""
    if run.epochs is None:
        return None
    first, later = run.epochs
    if not first.get("disk") or later.get("disk") is None or not first["read"]:
        return None
    told = (
        f"from the disk came {size(first['disk'])} a batch in the first epoch, {size(later['disk'])} later; "
        f"reading took {duration(first['read'])} and {duration(later['read'])}"
    )
    if later["disk"] > 0.5 * first["disk"]:
        return RuledOut(by=told)
    if later["disk"] > 0.1 * first["disk"] or later["read"] > _FASTER * first["read"]:
        return None
    frees = {"read": max(0.0, 1 - later["read"] / first["read"])}
    return Found(share=saved_by(run, frees), frees=frees, certainty=0.9, evidence=(came, told))
