"""Reads wait for the disk, the network or a mount."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.watch.words import percent

ID = "storage-latency"
CURES = (
    Cure(change="stage", text="stoker stage SRC DST: a local copy of a remote set"),
    Cure(change="feed", text="stoker.Feed(..., cache=DIR): what was read once comes from a local file"),
)


def judge(run: Evidence) -> Judgement:
    """By what came from a disk or a socket, and by time off the CPU."""
    if run.make is None or run.busy is None:
        return None
    read = run.part_of_making("read")
    if read < 0.4 or run.busy > 0.6:
        return RuledOut(
            by=f"of making a batch {percent(read)} is reading, and the CPU is busy {percent(run.busy)} of it"
        )
    if run.lost < ALARM:
        return RuledOut(by=f"{percent(run.lost)} of the step is lost to waiting for batches")
    asked, disk, faults = run.making.get("bytes"), run.making.get("disk"), run.making.get("faults")
    evidence = [f"{percent(read)} of making a batch is reading, with the CPU busy {percent(run.busy)} of it"]
    certainty = 0.4
    if asked and disk is not None and disk > 0.5 * asked:
        evidence.append(f"{percent(disk / asked)} of the bytes read came from the disk")
        certainty = 0.85
    elif faults and faults >= 1:
        evidence.append(f"{faults:.3g} pages a batch had to come from the disk under a memory map")
        certainty = 0.85
    elif run.calls("recv"):
        evidence.append(f"{run.calls('recv'):.3g} answers from a socket for each sample")
        certainty = 0.8
    return Found(share=run.lost, certainty=certainty, evidence=tuple(evidence))
