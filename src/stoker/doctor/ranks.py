"""What several ranks do together, as causes are judged by it: who is late, by what, and their links. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from stoker.watch import Record
from stoker.watch.ranks import Joined

# Of the time that the fastest takes for a message, what a slow one takes.
_SLOW = 4.0


def ranks_beside(record: Record, number: int) -> int:
    """Ranks of a record that ran on the machine of this one, itself too."""
    hosts = [rank.about.get("host") for rank in record.ranks.values()]
    return hosts.count(record.ranks[number].about.get("host"))


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """One rank sends to another, with nobody else sending: seconds there and back, and bytes a second."""

    sender: int
    receiver: int
    seconds: float
    rate: float

    @property
    def ends(self) -> tuple[int, int]:
        """Both ranks."""
        return self.sender, self.receiver

    def takes(self, size: float) -> float:
        """Seconds for a message of so many bytes."""
        return self.seconds / 2 + size / self.rate


@dataclass(frozen=True, kw_only=True)
class Together:
    """The ranks of a run as they met, and what was found out about those that come late.

    `doubt` is by how many seconds a step their lateness may be off, nine times in ten; `replayed` the same
    lateness with held batches, None where that was not measured. `more` is what they spend beyond the other
    ranks in the mean, seconds a step: `wait` for data, `gc`, `queued` for a core, and `work`, all else; each
    is without the others. `phases` is the same by phase, collectives apart. `causes` are those of the latest
    of them by itself. `crowded` is how long threads beside the loop stood in line for a core, by rank: a
    collective waits for them.
    """

    met: Joined
    doubt: float = 0.0
    replayed: float | None = None
    more: Mapping[str, float] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)
    causes: tuple[str, ...] = ()
    crowded: Mapping[int, float] = field(default_factory=dict)
    transfers: tuple[Transfer, ...] = ()

    @property
    def queued_in(self) -> float:
        """Seconds a step of collectives in which threads stood in line for a core: no link is slow for that.

        One rank's beyond the others'. With more ranks than cores all ranks' do, and how much of that is the
        links' all the same only transfers tell.
        """
        if len(self.crowded) < 2:
            return 0.0
        one_rank = max(
            waited - fmean(other for at, other in self.crowded.items() if at != rank)
            for rank, waited in self.crowded.items()
        )
        all_ranks = min(self.crowded.values()) if self.transfers else 0.0
        return max(min(self.met.link, one_rank), min(self.met.link - self._carried, all_ranks))

    @property
    def _carried(self) -> float:
        """Seconds a step that the sums take over the links at the most: all of them may be one wire."""
        slow = [one for one in self.transfers if self.slow_rank in one.ends]
        ranks = len(self.met.ranks)
        rounds = 2 * (ranks - 1) * ranks
        takes = [self._takes(one) for one in slow or self.transfers]
        return min(self.met.link, rounds * median(takes)) if takes else self.met.link

    @property
    def slow(self) -> tuple[Transfer, ...]:
        """Those of the rank whose link is slow; else transfers that take far longer than the fastest."""
        if self.slow_rank is not None:
            return tuple(one for one in self.transfers if self.slow_rank in one.ends)
        least = min((self._takes(one) for one in self.transfers), default=0.0)
        return tuple(one for one in self.transfers if self._takes(one) >= _SLOW * least)

    @property
    def slow_rank(self) -> int | None:
        """The rank whose every transfer takes far longer than those between others; None where there is none.

        By the median of those: with fewer cores than ranks, now and then one has to wait for a core.
        """
        for rank in self.met.ranks:
            own = [self._takes(one) for one in self.transfers if rank in one.ends]
            others = [self._takes(one) for one in self.transfers if rank not in one.ends]
            if own and others and min(own) >= _SLOW * median(others):
                return rank
        return None

    def _takes(self, transfer: Transfer) -> float:
        """Seconds for a step's messages, each as large as those of a sum over all ranks."""
        count = self.met.meetings
        return count * transfer.takes((self.met.bytes or 0.0) / len(self.met.ranks) / count)

    def to_json(self) -> dict[str, Any]:
        """The ranks as `stoker doctor --json` prints them."""
        met = self.met
        return {
            "steps": met.steps,
            "late": {
                "ranks": list(met.late.ranks),
                "seconds": met.late.seconds,
                "often": met.late.often,
                "doubt": self.doubt,
                "replayed": self.replayed,
                "more": dict(self.more),
                "phases": dict(self.phases),
                "causes": list(self.causes),
            },
            "link": {
                "seconds": met.link,
                "meetings": met.meetings,
                "bytes": met.bytes,
                "rate_at_most": met.rate,
                "slow_rank": self.slow_rank,
                "transfers": [vars(one) for one in self.transfers],
            },
            "ranks": {
                str(rank): {
                    "worked": one.worked,
                    "stood": one.stood,
                    "behind": one.behind,
                    "last": one.last,
                    "crowded": self.crowded.get(rank),
                }
                for rank, one in met.ranks.items()
            },
        }
