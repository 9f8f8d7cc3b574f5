"""A rank's share of a batch, without the samples that a feed repeats to make short shares equal."""

from stoker.feed import Feed
from stoker.train.meeting import Meeting


def count_share(feed: Feed, handed: int, meeting: Meeting) -> tuple[int, int]:
    """Of the `handed` samples, how many are this rank's own, and how many all ranks have together.

    Only an epoch's last batch can be short; its repeats are the last samples of the last ranks.
    """
    short = feed.remainder
    if meeting.size == 1 or not feed.end_of_dataloader or short <= 0:
        return handed, handed * meeting.size
    return share_of_short(short, handed, meeting.rank), short


def share_of_short(short: int, handed: int, rank: int) -> int:
    """A rank's own samples of a short batch that was padded to `handed` on every rank.

    >>> [share_of_short(5, 2, rank) for rank in range(4)]
    [2, 2, 1, 0]
    """
    return min(max(short - rank * handed, 0), handed)
