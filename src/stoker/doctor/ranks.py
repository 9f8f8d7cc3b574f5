"""What several ranks do together, as causes are judged by it: who is late, by what, and their links. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.watch.ranks import Joined

# Of the time that the fastest takes for a message, what a slow one takes.
_SLOW = 4.0


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """One rank sends to another, with nobody else sending: seconds there and back, and bytes a second."""

    sender: int
    receiver: int
    seconds: float
    rate: float

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
    def slow(self) -> tuple[Transfer, ...]:
        """Transfers that take far longer than others, for a message as large as those of a sum."""
        size = (self.met.bytes or 0.0) / len(self.met.ranks)
        least = min((one.takes(size) for one in self.transfers), default=0.0)
        return tuple(one for one in self.transfers if one.takes(size) >= _SLOW * least)

    @property
    def slow_rank(self) -> int | None:
        """The rank that has a part in every slow transfer; None where that is no single one."""
        return _in_all([{one.sender, one.receiver} for one in self.slow])

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


def _in_all(ends: Sequence[set[int]]) -> int | None:
    common = set.intersection(*ends) if ends else set()
    return next(iter(common)) if len(common) == 1 else None
