"""One lease a job: who holds its token may run it and write of it. Who is lost is decided here. Pure.

A claim raises the job's token by one; every write names the token it was claimed with, and one that is no
longer the job's is refused (`LeaseLost`). The holder counts `beat` up as it goes. Whoever watches judges by
its own clock since it last saw the count change, which nobody sets, so that clocks of two machines are never
compared, and a time of day that is set loses nobody; `identity` knows a process without it too.
"""

from collections.abc import Iterable
from dataclasses import dataclass

# A holder that renews three times in a lease may miss two.
RENEWALS = 3
# So often a job may be lost without a step between, before it is left lost for a person to look at.
MOST_LOSSES = 3


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A lease as the store has it."""

    job: str
    token: int
    beat: int


class Heartbeats:
    """When each lease was last seen to change."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: dict[str, tuple[Lease, float]] = {}
        self._looked: float | None = None

    def watch(self, leases: Iterable[Lease], now: float) -> list[Lease]:
        """Look at all leases that are held now; those that are lost.

        A watcher that was away itself (a store that did not answer, a process that was stopped) holds that
        time against nobody: all begin anew.
        """
        was_away = self._looked is not None and now - self._looked > self._lease_s / RENEWALS
        before, self._seen = {} if was_away else self._seen, {}
        self._looked = now
        lost = []
        for lease in leases:
            known, since = before.get(lease.job, (None, now))
            if known != lease:
                since = now
            self._seen[lease.job] = (lease, since)
            if now - since > self._lease_s:
                lost.append(lease)
        return lost


def goes_on(losses: int) -> bool:
    """Whether a job that was lost so often without a step between is queued again by itself."""
    return losses < MOST_LOSSES
