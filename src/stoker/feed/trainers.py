"""What trainers ask of a loader: is it split among the ranks, which samples come, does the epoch end here.

Lightning and Fabric put a sampler of their own into a loader whose `sampler` is no DistributedSampler.
Accelerate, and transformers with it, build a loader anew from `dataset` and `batch_sampler` to skip the first
batches of an epoch, and ask the loader in use whether this batch is its last. Nothing of theirs is imported.
"""

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.utils.data import DistributedSampler, Sampler

from stoker.errors import UsageError
from stoker.feed.order import Shard
from stoker.feed.place import Place, Progress

if TYPE_CHECKING:
    from stoker.feed.feed import Feed


class SplitSampler(DistributedSampler[Any]):
    """Says that a feed is split among the ranks already, and which samples are this one's."""

    def __init__(self, feed: "Feed") -> None:
        self._refer = weakref.ref(feed)

    @property
    def _feed(self) -> "Feed":
        return _alive(self._refer)

    def __iter__(self) -> Iterator[int]:
        return (sample for shard in _shards(self._feed) for sample in shard.samples.tolist())

    def __len__(self) -> int:
        feed = self._feed
        return -(-feed._order(feed._ranks).size // feed._ranks.world_size)

    def set_epoch(self, epoch: int) -> None:
        """Nothing: Fabric counts from 0 again after a resume, and a feed knows its epoch."""


class BatchSampler(Sampler[list[int]]):
    """The sample numbers of this rank's batches, over the whole of the epoch that the feed has next.

    A loader built from it and the dataset gives what the feed would give, but for what happens after reading:
    samples held are not used, batches are not moved to the device, and a transform could not be run.
    """

    def __init__(self, feed: "Feed", **replaced: Any) -> None:
        if replaced:  # Lightning makes another of the same class, over a sampler of its own
            raise UsageError(
                "the order of a feed cannot be replaced. To Trainer.predict give the batches, "
                "(batch for batch in feed), unshuffled; instead of overfit_batches give the feed a limit="
            )
        self._refer = weakref.ref(feed)

    @property
    def _feed(self) -> "Feed":
        return _alive(self._refer)

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch of this rank."""
        return self._feed.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether a short last batch is left out."""
        return self._feed.drop_last

    def __iter__(self) -> Iterator[list[int]]:
        feed = self._feed
        if feed._transform is not None:
            raise UsageError(
                "a loader built from the parts of a feed (skip_first_batches does that) would leave out its "
                "transform: keep feed.state_dict() with the checkpoint, give it to feed.load_state_dict(), "
                "and let nobody skip (in transformers: ignore_data_skip=True)"
            )
        epoch = feed._next_place(feed._order(feed._ranks)).epoch
        for step, shard in enumerate(_shards(feed)):
            feed._progress = Progress(Place(epoch=epoch, step=step + 1))
            feed._resumed, feed._asked_epoch = False, None
            yield shard.samples.tolist()

    def __len__(self) -> int:
        return len(self._feed)

    def set_epoch(self, epoch: int) -> None:
        """transformers says here which epoch it skips in."""
        self._feed.set_epoch(epoch)


@contextmanager
def told_to_accelerate(feed: "Feed") -> Iterator[None]:
    """While an epoch is under way an Accelerator, where there is one, can ask the feed for its last batch.

    Of that it makes the update at the end of an epoch that gradients were accumulated for, and leaves out the
    padding of the last batch in `gather_for_metrics`.
    """
    module = sys.modules.get("accelerate.state")
    state = getattr(module, "GradientState", None)
    if state is None or not state._shared_state:  # no Accelerator has been made
        yield
        return
    gradients = state()
    gradients._add_dataloader(feed)
    try:
        yield
    finally:
        gradients._remove_dataloader(feed)


def _alive(refer: "weakref.ref[Feed]") -> "Feed":
    """The feed. Its samplers do not keep it: its workers would not end before the next collection."""
    feed = refer()
    if feed is None:
        raise UsageError("the feed of this sampler is gone: keep the feed while its sampler is in use")
    return feed


def _shards(feed: "Feed") -> Iterator[Shard]:
    """This rank's shards of the epoch that comes next, from its first step."""
    ranks = feed._ranks
    order = feed._order(ranks)
    epoch = feed._next_place(order).epoch
    return order.shards(epoch, rank=ranks.rank, world_size=ranks.world_size)
