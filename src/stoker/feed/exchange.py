"""Which samples go from which rank to which, so that each has what it reads next. Pure.

Samples are spread over the ranks: each is on one card, and together the cards hold all of them. Before an
epoch every rank works out the same plan from the same facts: who reads what, and who has what. Nothing but
samples is sent then.

They change places where they are, in rounds, with room for one round's samples beside them. Each rank sends
each other an even part of its samples in each round, so that nobody ever holds more than its share and a few
samples more, whatever it gives and gets in all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.feed.order import Order
from stoker.feed.place import Place
from stoker.feed.sources.base import Indices

Counts: TypeAlias = NDArray[np.int32]

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class Round:
    """What one rank does at one go: `sent` to each rank, `received` from each; of those sent, `gone`."""

    sent: list[Indices]
    received: list[Indices]
    gone: Indices


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one rank does so that all have what they read.

    First it lets go of `dropped`, which nobody needs from it; then come the rounds, as many on every rank;
    then it lets go of `lent`, which several others read and this one does not.
    """

    dropped: Indices
    sent: list[Indices]
    received: list[Indices]
    shared: Indices
    lent: Indices
    count: int

    def rounds(self) -> Iterator[Round]:
        """Each with an even part of what goes from any rank to any other."""
        for number in range(self.count):
            sent = [self._part(samples, number) for samples in self.sent]
            together = np.concatenate(sent)
            yield Round(
                sent=sent,
                received=[self._part(samples, number) for samples in self.received],
                gone=together[~np.isin(together, self.shared)],
            )

    @property
    def largest(self) -> tuple[int, int]:
        """The most samples that go out, and that come in, in one round."""
        sent, received = (
            sum(-(-len(part) // max(1, self.count)) for part in parts) for parts in (self.sent, self.received)
        )
        return sent, received

    def _part(self, samples: Indices, number: int) -> Indices:
        return samples[len(samples) * number // self.count : len(samples) * (number + 1) // self.count]


def share_of(samples: int, ranks: int) -> int:
    """The most that a rank reads in an epoch, and so the most that it holds between exchanges."""
    return -(-samples // ranks)


def rows_of(samples: int, ranks: int) -> int:
    """The most that a rank holds at any moment.

    Beside its share, from each rank a sample that comes a round before one goes there in its place; and from
    an epoch's padded last batch as many that another rank has too.
    """
    return share_of(samples, ranks) + 2 * ranks


def read_by(order: Order, place: Place, ranks: int) -> list[Indices]:
    """What each rank reads from this place to the epoch's end, ascending, each once."""
    found = []
    for rank in range(ranks):
        shards = order.shards(place.epoch, place.step, rank=rank, world_size=ranks, offset=place.offset)
        found.append(_ascending(np.concatenate([_NONE, *(shard.samples for shard in shards)])))
    return found


def plan_exchange(
    needs: Sequence[Indices], held: Sequence[Indices], *, samples: int, rank: int, at_once: int
) -> Plan:
    """One rank's part in giving all ranks what they need, of what they hold; both ascending, each once.

    At most `at_once` samples, and one a rank, go out or come in in a round. What nobody needs now stays held,
    by another rank where its own has no room; what nobody holds is nobody's to send.
    """
    ranks = len(needs)
    owner, lacks = _owners(needs, held, samples)
    readers = np.zeros(samples, np.int32)
    for some in needs:
        readers[some] += 1
    moved, lost = _make_room(needs, held, owner, readers)
    counts = np.zeros((ranks, ranks), np.int64)
    sent, received = [_NONE] * ranks, [_NONE] * ranks
    for to in range(ranks):
        wanted = np.concatenate([lacks[to], moved[to]])
        giver = owner[wanted]
        wanted, giver = wanted[giver >= 0], giver[giver >= 0]
        # What is not gone when it was sent comes last: it makes no room for what comes in its place.
        order = np.lexsort((wanted, readers[wanted] > 1, giver))
        wanted, giver = wanted[order], giver[order]
        counts[:, to] = np.bincount(giver, minlength=ranks)
        sent[to] = wanted[giver == rank]
        if to == rank:
            received = np.split(wanted, np.cumsum(counts[:, to])[:-1])
    most = int(max(counts.sum(axis=0).max(), counts.sum(axis=1).max()))
    unread = held[rank][~_among(needs[rank], samples)[held[rank]]]
    given = _ascending(np.concatenate(sent))
    shared = given[readers[given] > 1]
    return Plan(
        dropped=unread[(owner[unread] != rank) | _among(lost, samples)[unread]],
        sent=sent,
        received=received,
        shared=shared,
        lent=shared[_among(unread, samples)[shared]],
        count=-(-most // max(1, at_once)),
    )


def _owners(needs: Sequence[Indices], held: Sequence[Indices], samples: int) -> tuple[Counts, list[Indices]]:
    """Of each sample the rank that counts as having it, -1 for none; and what each rank needs and has not."""
    owner = np.full(samples, -1, np.int32)
    for rank in reversed(range(len(held))):
        owner[held[rank]] = rank
    lacks = []
    for rank, (wanted, here) in enumerate(zip(needs, held, strict=True)):
        has = _among(here, samples)[wanted]
        owner[wanted[has]] = rank  # before one that has it and does not need it
        lacks.append(wanted[~has])
    return owner, lacks


def _make_room(
    needs: Sequence[Indices],
    held: Sequence[Indices],
    owner: Counts,
    readers: Counts,
) -> tuple[list[Indices], Indices]:
    """What nobody needs, and its own rank has no room for: what each rank takes of it, and what none does."""
    share = share_of(len(owner), len(needs))
    room, over = [], [_NONE]
    for rank, (wanted, here) in enumerate(zip(needs, held, strict=True)):
        idle = here[(owner[here] == rank) & (readers[here] == 0)]
        left = max(0, share - len(wanted))
        over.append(idle[left:])
        room.append(max(0, left - len(idle)))
    together = np.concatenate(over)
    homes = np.repeat(np.arange(len(room)), room)[: len(together)]
    placed = together[: len(homes)]
    return [placed[homes == rank] for rank in range(len(room))], together[len(homes) :]


def _among(some: Indices, samples: int) -> NDArray[np.bool_]:
    """Of each sample whether it is one of these: by a table, since `np.isin` hashes, at 0.4 us a sample."""
    found = np.zeros(samples, np.bool_)
    found[some] = True
    return found


def _ascending(numbers: Indices) -> Indices:
    """Each once. By sorting, since `np.unique` hashes too, at 2 us a number of 4 million."""
    numbers = np.sort(numbers)
    return numbers[np.diff(numbers, prepend=-1) > 0]
