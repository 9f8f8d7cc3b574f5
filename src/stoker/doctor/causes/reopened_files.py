"""The same files are opened again for every sample."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.watch.words import percent

ID = "reopened-files"
CURES = (
    Cure(
        change="feed",
        text="open each file once for a process and map it (np.load(..., mmap_mode='r') kept in the "
        "dataset); stoker.NpySource does",
    ),
)


def judge(run: Evidence) -> Judgement:
    """By how many opens for each sample are of a file opened a moment before."""
    if run.make is None:
        return None
    again = run.calls("reopen")
    if again < 0.5:
        return RuledOut(by=f"{again:.2g} files a sample are opened that were open a moment before")
    if run.lost < ALARM:
        return RuledOut(by=f"the loop waits for data {percent(run.shares.get('wait'))} of the time")
    return Found(
        share=run.lost,
        certainty=0.9,
        evidence=(
            f"{run.calls('open'):.3g} opens a sample, {again:.3g} of them of a file opened a moment before",
            f"{percent(run.part_of_making('read'))} of making a batch is in opens and reads",
        ),
    )
