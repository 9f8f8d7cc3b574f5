"""Reads that no counter of a disk sees: those of a mount in user space, and of sockets. Pure."""

from stoker.doctor.evidence import Evidence

# Of the bytes asked for, what comes from the disk beside reads from elsewhere: a library that was imported.
_ABOUT_NONE = 0.05
# Of making a batch: reading at the least, and the CPU at the most, for reads to be what is waited for.
LEAST_READING, MOST_BUSY = 0.4, 0.6


def waits_unseen(run: Evidence) -> bool:
    """Whether batches wait for reads, and no disk of this machine is what they wait for.

    A file that is in memory by now may have come from far away at first: a fast second reading says nothing
    of the first.
    """
    if run.busy is None or run.busy > MOST_BUSY or run.part_of_making("read") < LEAST_READING:
        return False
    if run.calls("recv"):
        return True
    asked, disk = run.making.get("bytes") or 0.0, run.making.get("disk") or 0.0
    return disk <= _ABOUT_NONE * asked and (run.making.get("faults") or 0.0) < 1
