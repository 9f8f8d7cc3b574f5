"""The same files are opened again for every sample."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.doctor.holding import IN_MEMORY
from stoker.doctor.remains import saved_by
from stoker.watch.words import percent

ID = "reopened-files"
CURES = (
    Cure(
        change="open_once",
        text="open each file once for a process and map it (np.load(..., mmap_mode='r') kept in the "
        "dataset), as stoker.NpySource does",
    ),
    IN_MEMORY,
)
# Of making a batch: with less in reads, it is other work that each opening makes.
_MOSTLY_READS = 0.4


def judge(run: Evidence) -> Judgement:
    """By how many opens for each sample are of a file opened a moment before."""
    opened, again = run.calls("open"), run.calls("reopen")
    if run.make is None or opened is None or again is None:
        return None
    if again < 0.5:
        return RuledOut(by=f"{again:.2g} files a sample are opened that were open a moment before")
    if run.lost < ALARM:
        return RuledOut(by=f"{percent(run.lost)} of the step is lost to waiting for batches")
    evidence = [
        f"{opened:.3g} opens a sample, {again:.3g} of them of a file opened a moment before",
        f"{percent(run.part_of_making('read'))} of making a batch is in opens and reads",
    ]
    if run.stub is not None and run.stub.reading:
        saved = percent(run.stub.reading / run.stub.nothing)
        evidence.append(f"with opens and reads answered from memory a batch takes {saved} less")
    # More than of tiny samples: what each of them costs is the opening.
    # What an opening takes besides reads, as a directory to go through, is booked as the dataset's own code.
    frees = {"read": 1.0} if run.part_of_making("read") >= _MOSTLY_READS else {"read": 1.0, "transform": 1.0}
    return Found(
        share=saved_by(run, frees), frees=frees, weighs=run.lost, certainty=0.93, evidence=tuple(evidence)
    )
