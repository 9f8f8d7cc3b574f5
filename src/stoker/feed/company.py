"""All ranks of one feed, when an epoch begins: they agree on a tier, and exchange what is spread over them.

They meet in process groups of their own, so that nothing here is taken for one of the loop's collectives.
What they agree on goes over gloo on the host, with a time limit, and a word on who is missing. Samples go
from card to card by NCCL where the loop's own group has it; else by gloo, through the host. (Two ranks on one
card are such a case: NCCL refuses them.)

Nothing is sent unless all begin the same epoch of the same order: else all of them are told what differs.
"""

import json
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from stoker.errors import RankLost, RanksDisagree
from stoker.feed.exchange import plan_exchange
from stoker.feed.place import State
from stoker.feed.ranks import Ranks, has_group
from stoker.feed.sources.base import Indices
from stoker.feed.tiers.spread import SpreadRows, per_round

# As long as torch itself waits over gloo: rank 0 may evaluate or save between two epochs. A rank that died is
# known at once, by its closed connection.
PATIENCE = timedelta(minutes=30)


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """What the ranks have told each other.

    `every` is the least that any card has left for samples; None while some rank does not know. `parted` says
    why they hold nothing together from now on, if so it is, and `below` which tier each must stay below then.
    """

    every: int | None
    parted: str = ""
    below: str | None = None


class Company:
    """The ranks of the process group, this one among them. All of them call the same methods in turn."""

    def __init__(self, ranks: Ranks, device: torch.device) -> None:
        self.rank, self.size = ranks.rank, ranks.world_size
        self._device = device
        self._groups = _Groups()
        # Torch itself keeps a group until it is told to end it, and does so where a process ends.
        self._end = weakref.finalize(self, _Groups.end, self._groups)
        self._end.atexit = False

    def agree(self, state: State, *, same: Mapping[str, Any], left: int | None, spread: bool) -> Agreed:
        """Tell the others where this rank stands in its order, what its card has left, and if it has a part.

        `same` is what else must be the same on all ranks: RanksDisagree on all of them where something is
        not. Other data, which may be a copy of the same with another date, are only not held together.
        """
        own = {**state.to_json(), **same}
        fingerprint = own.pop("fingerprint")
        with self._together("agree on a tier"):
            if self._groups.host is None:
                self._groups.host = dist.new_group(backend="gloo", timeout=PATIENCE)
            dist.monitored_barrier(self._groups.host, timeout=PATIENCE, wait_all_ranks=True)
            told = self._tell({"same": own, "data": fingerprint, "left": left, "spread": spread})
        for rank, other in enumerate(told):
            _compare(told[0]["same"], other["same"], rank)
        lefts, parts = ([other[name] for other in told] for name in ("left", "spread"))
        every = None if None in lefts else min(lefts)
        if len({other["data"] for other in told}) > 1:
            return Agreed(every=every, parted="not spread: the ranks' data have different fingerprints")
        if any(parts) and not all(parts):
            parted = f"left spread: rank {parts.index(False)} gave its part back"
            return Agreed(every=every, parted=parted, below="window")
        return Agreed(every=every)

    def all(self, flag: bool) -> bool:
        """Whether all ranks say so."""
        with self._together("hear whether all have the memory"):
            return all(self._tell(flag))

    def exchange(self, rows: SpreadRows, needs: Sequence[Indices]) -> str:
        """Have each rank hold what it needs, of what any holds. Where it fails, these rows are no good.

        Nothing is sent, and the rows are as they were, where some rank has no memory for what is on its way:
        all of them say so then.
        """
        with self._together("exchange samples"), self._all_streams():
            held = self._gather(torch.from_numpy(np.packbits(rows.held(np.arange(len(rows))))))
            plan = plan_exchange(
                needs,
                [np.flatnonzero(np.unpackbits(bits.numpy(), count=len(rows))) for bits in held],
                samples=len(rows),
                rank=self.rank,
                at_once=per_round(rows.layout),
            )
            lacking = _lacking(rows, *plan.largest)
            if not all(self._tell(not lacking)):
                return lacking or "another rank has no memory for samples on their way"
            rows.drop(plan.dropped)
            if plan.count and self._groups.cards is None:
                by_nccl = self._device.type == "cuda" and "cuda:nccl" in dist.get_backend_config()
                self._groups.cards = dist.new_group(backend="nccl") if by_nccl else self._groups.host
            for part in plan.rounds():
                send = partial(self._send, list(map(len, part.sent)), list(map(len, part.received)))
                rows.trade(np.concatenate(part.sent), part.gone, np.concatenate(part.received), send)
            rows.drop(plan.lent)
            rows.want(needs[self.rank])
        return ""

    def close(self) -> None:
        """Part from the others, for good."""
        self._groups.end()

    def _send(self, sizes: list[int], coming: list[int], words: torch.Tensor) -> torch.Tensor:
        """So many of these rows to each rank, in their order; and what the ranks have sent, in theirs."""
        rows = words.view(torch.uint8)  # which every backend can send
        came = rows.new_empty((sum(coming), rows.shape[1]))
        dist.all_to_all_single(came, rows, coming, sizes, group=self._groups.cards)
        return came.view(words.dtype)

    def _tell(self, value: Any) -> list[Any]:
        """What every rank says."""
        text = json.dumps(value).encode()
        sizes = [int(size) for size in self._gather(torch.tensor([len(text)]))]
        padded = torch.frombuffer(bytearray(text.ljust(max(sizes))), dtype=torch.uint8)
        return [json.loads(told.numpy().tobytes()) for told in self._gather(padded)]

    def _gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's tensor, all of one size."""
        found = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(found, own, group=self._groups.host)
        return found

    @contextmanager
    def _all_streams(self) -> Iterator[None]:
        """Batches may be gathered on any stream: none is behind when rows change, nor ahead of that."""
        if self._device.type != "cuda":
            yield
            return
        torch.cuda.synchronize(self._device)
        with torch.cuda.device(self._device):
            yield
        torch.cuda.synchronize(self._device)

    @contextmanager
    def _together(self, what: str) -> Iterator[None]:
        """Whoever fails here closes its connections, by which the others learn it."""
        try:
            yield
        except torch.OutOfMemoryError:
            self.close()
            raise
        except RuntimeError as error:
            self.close()
            raise RankLost(
                f"rank {self.rank} could not {what} with the {self.size - 1} others: {error}. A rank ended, "
                f"cannot be reached, or did not begin an epoch of this feed within {PATIENCE}: see what it "
                "said last, and start all ranks again from the last checkpoint"
            ) from error


class _Groups:
    """The process groups of one company: on the host, and for what goes from card to card."""

    def __init__(self) -> None:
        self.host: Any = None
        self.cards: Any = None

    def end(self) -> None:
        """End them, here; the others' ends do not wait for it."""
        for group in {self.host, self.cards} - {None}:
            try:
                dist.destroy_process_group(group)
            except ValueError:
                pass  # whoever ended the loop's own group has ended this one along with it
        self.host = self.cards = None


def find_company(ranks: Ranks, device: torch.device) -> Company | None:
    """The other ranks, if there are any, and they are those of the process group."""
    if ranks.world_size == 1 or not has_group():
        return None
    if (dist.get_rank(), dist.get_world_size()) != (ranks.rank, ranks.world_size):
        return None
    return Company(ranks, device) if dist.is_gloo_available() else None


def _lacking(rows: SpreadRows, sent: int, received: int) -> str:
    """Why there is no memory for so many samples on their way; "" where there is."""
    try:
        rows.try_room(sent, received)
    except torch.OutOfMemoryError as error:
        return str(error).partition("\n")[0] or "no memory for samples on their way"
    return ""


def _compare(first: Mapping[str, Any], other: Mapping[str, Any], rank: int) -> None:
    for name, value in first.items():
        if other[name] != value:
            raise RanksDisagree(
                f"the ranks do not agree: {name} is {value!r} on rank 0 and {other[name]!r} on rank {rank}. "
                "Give all of them the same samples, seed, batch size and tier, and have all begin each epoch "
                "at the same step"
            )
