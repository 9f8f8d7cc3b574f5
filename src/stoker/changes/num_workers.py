"""Worker processes that make batches."""

from stoker.changes.change import Change, Whole
from stoker.changes.loaders import alter

CHANGE = Change(
    id="num_workers",
    of="loader",
    text="worker processes of the loader that trains",
    kind="same",
    values=Whole(0, 1024),
    apply=lambda value: alter("num_workers", value),
    backfires="each needs memory and room in /dev/shm (pytorch#5040); past what cores and storage give, more "
    "are slower; random draws within samples differ with their number; a dataset that draws from torch's "
    "generator in the main process moves the shuffles of later epochs, in workers it does not",
)
