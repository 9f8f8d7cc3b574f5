"""Which sample comes when: a pure function of (seed, epoch, step, global batch).

An epoch is a row of positions, each with a sample; a global batch is the next `batch_size` of them, and a
rank's shard its even part of that. Any of them is computed by itself: there is no state but the place, and
nothing to replay after a resume. Nothing here knows where samples are read or wait, so that the batches
are the same on every tier; and a world size only says how each is cut.
"""

import operator
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache, partial
from hashlib import blake2b
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stoker.errors import OrderChanged, SourceChanged, StateBroken, UsageError
from stoker.feed.blocks import BlockShuffle
from stoker.feed.draws import VERSION, key, uniform
from stoker.feed.permutation import LONGEST, permute
from stoker.feed.place import Place, Shuffle, State
from stoker.feed.subset import checked_subset, checked_weights, choose

# Samples computed at one go. A batch of 256 out of 10 million costs 75 us by itself, most of it NumPy's
# overhead a call, and 7 us as a part of these; 65,536 at one go leave the cache and cost 20 us a batch.
_AT_ONCE = 16_384
# Of an epoch, first: it waits for them. Then twice as many, and so on.
_FIRST_AT_ONCE = 512


class Run:
    """Shards of consecutive steps, worked out together when the first of them is asked for its samples.

    Sample j of shard i stands at position `first + i * apart + j` of the epoch. Where the numbers there are
    all that makes the samples, `shuffle` has the length and the key of the permutation: then a device may
    work them out by itself.
    """

    def __init__(
        self,
        work_out: Callable[[NDArray[np.int64]], NDArray[np.int64]],
        *,
        first: int,
        shape: tuple[int, int],
        apart: int,
        shuffle: tuple[int, int] | None,
    ) -> None:
        self.first, self.shape, self.apart, self.shuffle = first, shape, apart, shuffle
        self._work_out = work_out

    @cached_property
    def samples(self) -> NDArray[np.int64]:
        """A row for each shard."""
        count, each = self.shape
        begin = self.first + np.arange(count, dtype=np.int64) * self.apart
        positions = begin[:, None] + np.arange(each, dtype=np.int64)
        return self._work_out(positions.ravel()).reshape(self.shape)


class Shard:
    """One rank's part of a global batch. The last `repeats` samples are another's, or its own, again.

    As one `row` of a `run` it is not worked out before its samples are asked for.
    """

    __slots__ = ("_samples", "repeats", "row", "run")

    def __init__(
        self,
        samples: NDArray[np.int64] | None = None,
        repeats: int = 0,
        *,
        run: Run | None = None,
        row: int = 0,
    ) -> None:
        self._samples, self.repeats, self.run, self.row = samples, repeats, run, row

    def __len__(self) -> int:
        return len(self.samples) if self.run is None else self.run.shape[1]

    @property
    def samples(self) -> NDArray[np.int64]:
        """Their numbers."""
        if self._samples is None:
            assert self.run is not None
            self._samples = self.run.samples[self.row]
        return self._samples

    @property
    def own(self) -> NDArray[np.int64]:
        """The samples without the repeats: over all ranks, each of the global batch once."""
        return self.samples[: len(self.samples) - self.repeats]


class Order:
    """The order of `length` samples, in global batches of `batch_size`.

    `shuffle`: False (ascending, or as `subset` has them), True or "full" (any sample anywhere), or "blocks"
    (of `block_size` consecutive samples, mixed `group_size` blocks at a time: see the module `blocks`).
    `subset`: an array of sample numbers, each taken as often as it stands there.
    `limit`: take that many of them by the seed, the same in every epoch; fewer are a part of more.
    `per_epoch`: an epoch takes the next that many of the source's samples, and behind the last come the first
    again: for a source that has new samples for each epoch. Its length must be a multiple of it.
    `weights`: one for each sample of the source; an epoch is then as many draws as there are samples taken,
    with replacement, in random order whatever `shuffle` says.
    `drop_last`: leave out the short batch at the end of an epoch.

    Memory does not grow with `length`, except by 8 bytes for each sample of a `subset`, each of the
    `weights`, and each that a `limit` takes where the shuffle is not full.

    >>> order = Order(length=10, batch_size=4, shuffle=True, seed=1)
    >>> [len(order.batch(epoch=0, step=step)) for step in range(order.steps)]
    [4, 4, 2]
    """

    def __init__(
        self,
        *,
        length: int,
        batch_size: int,
        seed: int = 0,
        shuffle: bool | str = False,
        block_size: int = 1024,
        group_size: int = 16,
        drop_last: bool = False,
        subset: ArrayLike | None = None,
        limit: int | None = None,
        weights: ArrayLike | None = None,
        per_epoch: int | None = None,
    ) -> None:
        self.length = _whole("length", length, most=LONGEST)
        self.batch_size = _whole("batch_size", batch_size)
        self.seed = _whole("seed", seed, least=None)
        self.shuffle = _shuffle(shuffle)
        self.block_size = _whole("block_size", block_size, most=1 << 32)
        self.group_size = _whole("group_size", group_size, most=1 << 32)
        self.drop_last = bool(drop_last)
        self._subset = None if subset is None else checked_subset(subset, self.length)
        self._among = self.length if self._subset is None else len(self._subset)
        self.size = self._among if limit is None else min(self._among, _whole("limit", limit))
        self._parts = 1
        if per_epoch is not None:
            if subset is not None or limit is not None or weights is not None:
                raise UsageError(
                    f"per_epoch={per_epoch} with a subset, a limit or weights: it takes all samples of the "
                    "source, epoch by epoch; leave out one of the two"
                )
            self.size = _whole("per_epoch", per_epoch)
            self._parts, left = divmod(self.length, self.size)
            if left or not self._parts:
                raise UsageError(
                    f"per_epoch={per_epoch} of {self.length} samples: give a number that they divide by"
                )
        self._cumulative = None if weights is None else self._sum_up(checked_weights(weights, self.length))
        if self.drop_last and self.batch_size > self.size:
            raise UsageError(
                f"drop_last leaves nothing of {self.size} samples in batches of {self.batch_size}: "
                f"take batch_size {self.size} or less, or drop_last=False"
            )

    def __repr__(self) -> str:
        names = ("length", "batch_size", "seed", "shuffle", "drop_last", "size")
        return f"Order({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    @property
    def steps(self) -> int:
        """Steps an epoch."""
        return self.count_steps()

    def count_steps(self, offset: int = 0) -> int:
        """Steps of an epoch whose batches are counted from this offset."""
        rest = self.size - self._checked_offset(offset)
        return rest // self.batch_size if self.drop_last else -(-rest // self.batch_size)

    def batch(self, epoch: int, step: int, offset: int = 0) -> NDArray[np.int64]:
        """The sample numbers of a global batch."""
        start, stop = self._span(step, offset)
        return self._samples(epoch, np.arange(start, stop, dtype=np.int64))

    def shard(
        self,
        epoch: int,
        step: int,
        rank: int,
        world_size: int,
        *,
        padding: bool = True,
        offset: int = 0,
    ) -> Shard:
        """A rank's part of a global batch; all ranks' parts in a row are the global batch.

        `batch_size` must divide by the world size. A short last batch that does not is padded at its end
        with its own first samples again, fewer than there are ranks, so that all ranks have as many
        (DistributedSampler takes the epoch's first, which would have to be read again). `Shard.repeats`
        counts them. With `padding=False` ranks may differ by one sample, and some may have none.
        """
        self._span(step, offset)
        shards = self.shards(
            epoch, step, step + 1, rank=rank, world_size=world_size, padding=padding, offset=offset
        )
        return next(shards)

    def shards(
        self,
        epoch: int,
        start: int = 0,
        stop: int | None = None,
        *,
        rank: int = 0,
        world_size: int = 1,
        padding: bool = True,
        offset: int = 0,
    ) -> Iterator[Shard]:
        """A rank's shards of steps start to stop - 1, or to the epoch's end; computed many at one go."""
        each = self._checked_share(rank, world_size)
        end = self.count_steps(offset)
        stop = end if stop is None else stop
        if not 0 <= start <= stop <= end:
            raise UsageError(f"steps {start} to {stop} (exclusive): the epoch has {end}")
        return self._shards(epoch, range(start, stop), rank, each, padding, offset)

    def blocks(self, epoch: int, start: int, stop: int, offset: int = 0) -> NDArray[np.int64]:
        """The blocks needed for steps start to stop - 1, in the order in which they are first needed.

        With `shuffle="blocks"` these are whole groups. A block that is not among those of the steps still to
        come is needed no more in this epoch.
        """
        if self._cumulative is not None or self.shuffle == "full":
            raise UsageError(
                'here any step may need any block: take shuffle="blocks" or False, and no weights'
            )
        if start >= stop:
            return np.empty(0, dtype=np.int64)
        first, last = self._span(start, offset)[0], self._span(stop - 1, offset)[1]
        if self.shuffle == "blocks":
            return self._block_shuffle(epoch).blocks(first, last)
        return np.arange(first // self.block_size, (last - 1) // self.block_size + 1, dtype=np.int64)

    def block(self, number: int, epoch: int = 0) -> NDArray[np.int64]:
        """The sample numbers of a block, as they stand in the source (or in `subset`)."""
        count = -(-self.size // self.block_size)
        if not 0 <= number < count:
            raise UsageError(f"no block {number}: there are {count}, from 0 to {count - 1}")
        stop = min((number + 1) * self.block_size, self.size)
        return self._taken(np.arange(number * self.block_size, stop, dtype=np.int64)) + self._first(epoch)

    def numbers(self) -> NDArray[np.int64] | None:
        """The samples that are taken at all, ascending; None for every one of the source's."""
        if self._subset is None and not self._is_limited:
            return None
        return np.unique(self._taken(np.arange(self.size, dtype=np.int64)))

    @cached_property
    def takes_each_once(self) -> bool:
        """Whether no sample comes twice in an epoch, but for the padding of a short last batch."""
        if self._cumulative is not None:
            return False
        return self._subset is None or len(np.unique(self._subset)) == len(self._subset)

    def state(self, place: Place, fingerprint: str) -> State:
        """What a checkpoint keeps, when `place` is what comes next of a source with this fingerprint."""
        end = self.count_steps(place.offset)
        if not 0 <= place.step <= end:
            raise UsageError(f"step {place.step} comes next: the epoch has {end}")
        blocks = self.shuffle == "blocks"
        return State(
            version=VERSION,
            epoch=_epoch(place.epoch),
            samples=min(place.offset + place.step * self.batch_size, self.size),
            seed=self.seed,
            shuffle=self.shuffle,
            block_size=self.block_size if blocks else None,
            group_size=self.group_size if blocks else None,
            batch_size=self.batch_size,
            length=self.length,
            selection=self._selection,
            fingerprint=fingerprint,
        )

    def check(self, state: State, fingerprint: str) -> None:
        """Raise SourceChanged or OrderChanged where going on from the state would repeat or miss samples.

        The batch size may differ, and the world size is nowhere in it.
        """
        if state.version != VERSION:
            raise OrderChanged(
                f"the state is of version {state.version} of the order, and this is version {VERSION}, in "
                "which samples come differently: resume with the release that wrote it, or without the state"
            )
        if state.length != self.length:
            raise SourceChanged(
                f"the state was taken of {state.length} samples, and now there are {self.length}: {_REDO}"
            )
        if state.fingerprint != fingerprint:
            raise SourceChanged(
                f"the state was taken of a source with the fingerprint {state.fingerprint}, and now it is "
                f"{fingerprint}: {_REDO}"
            )
        ours = self.state(Place(), fingerprint)
        for name in ("seed", "shuffle", "block_size", "group_size", "selection"):
            then, now = getattr(state, name), getattr(ours, name)
            if then != now:
                what = "selection (subset, limit, weights, per_epoch)" if name == "selection" else name
                raise OrderChanged(
                    f"the state was taken with {what} {then!r}, and this order has {now!r}: samples would "
                    f"come twice or not at all. Give the same {what} as then, or start without the state"
                )
        if state.samples > self.size:
            raise StateBroken(
                f"the state counts {state.samples} samples of an epoch of {self.size}: start without it"
            )

    def resume(self, state: State, fingerprint: str) -> Place:
        """Where to go on, after `check`.

        With another batch size the epoch goes on at the very sample where it stopped: its other batches are
        cut from there, so that none comes twice and none is missed, and the last is as short as it comes.
        When the epoch was over, the place is its end (step == count_steps(offset)): no step is left in it.
        """
        self.check(state, fingerprint)
        step, offset = divmod(state.samples, self.batch_size)
        return Place(epoch=state.epoch, step=step, offset=offset)

    def _shards(
        self, epoch: int, steps: range, rank: int, each: int, padding: bool, offset: int
    ) -> Iterator[Shard]:
        whole = min(steps.stop, (self.size - offset) // self.batch_size)
        step, at_once = steps.start, _FIRST_AT_ONCE
        while step < whole:
            count = min(max(1, at_once // each), whole - step)
            run = Run(
                partial(self._samples, epoch),
                first=offset + step * self.batch_size + rank * each,
                shape=(count, each),
                apart=self.batch_size,
                shuffle=self._plain_shuffle(epoch),
            )
            step, at_once = step + count, min(2 * at_once, _AT_ONCE)
            yield from (Shard(run=run, row=row) for row in range(count))
        if steps and steps.stop > whole:
            batch = self.batch(epoch, steps.stop - 1, offset)
            yield _cut(batch, rank, self.batch_size // each, padding)

    def _samples(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The samples at ascending positions of an epoch."""
        numbers = self._shuffled(_epoch(epoch), positions)
        return numbers if self._parts == 1 else numbers + self._first(epoch)

    def _first(self, epoch: int) -> int:
        """The first of the samples that an epoch takes."""
        return epoch % self._parts * self.size

    def _shuffled(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._cumulative is not None:
            drawn = uniform(key(self.seed, "weights", epoch), positions) * self._cumulative[-1]
            return self._taken(np.searchsorted(self._cumulative, drawn, side="right"))
        if self.shuffle == "full":
            ranks = permute(positions, self.size, key(self.seed, "full", epoch))
            return self._named(choose(ranks, self._among, self.seed) if self._is_limited else ranks)
        if self.shuffle == "blocks":
            return self._taken(self._block_shuffle(epoch).permute(positions))
        return self._taken(positions)

    def _plain_shuffle(self, epoch: int) -> tuple[int, int] | None:
        """Length and key of the permutation whose numbers are the samples; None where more makes them."""
        if self.shuffle != "full" or self._cumulative is not None or self._subset is not None:
            return None
        if self._parts > 1:
            return None
        return None if self._is_limited else (self.size, key(self.seed, "full", _epoch(epoch)))

    def _block_shuffle(self, epoch: int) -> BlockShuffle:
        return _one_block_shuffle(self.size, self.block_size, self.group_size, self.seed, _epoch(epoch))

    def _named(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """From numbers within the subset to samples of the source."""
        return numbers if self._subset is None else self._subset[numbers]

    def _taken(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """From ranks within what is taken, as it stands in the source, to samples of the source."""
        return self._named(self._limited[ranks] if self._is_limited else ranks)

    @property
    def _is_limited(self) -> bool:
        return self.size * self._parts < self._among

    @cached_property
    def _limited(self) -> NDArray[np.int64]:
        """What `limit` takes, in the source's order, so that what is near there is read together."""
        return np.sort(choose(np.arange(self.size, dtype=np.int64), self._among, self.seed))

    @cached_property
    def _selection(self) -> str:
        """What tells one subset, limit, weights and part for each epoch from others."""
        if self._parts > 1:
            return f"{self.size} per epoch"
        if self._subset is None and self._cumulative is None and not self._is_limited:
            return "all"
        digest = blake2b(f"{self.size} of {self._among}".encode(), digest_size=8)
        for array, kind in ((self._subset, "<i8"), (self._cumulative, "<f8")):
            digest.update(b"" if array is None else kind.encode() + array.astype(kind).tobytes())
        return digest.hexdigest()

    def _sum_up(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """The weights up to each rank, added one after the other: the same to the bit everywhere."""
        if self.shuffle == "blocks":
            raise UsageError('weights draw from anywhere: leave out shuffle="blocks"')
        with np.errstate(over="ignore"):
            sums: NDArray[np.float64] = np.cumsum(weights[self._taken(np.arange(self.size, dtype=np.int64))])
        if not 0 < sums[-1] < np.inf:
            raise UsageError(
                f"the weights of the samples taken sum to {sums[-1]}: give some above 0, and finite"
            )
        return sums

    def _span(self, step: int, offset: int) -> tuple[int, int]:
        count = self.count_steps(offset)
        if not 0 <= step < count:
            raise UsageError(f"no step {step}: the epoch has {count}, from 0 to {count - 1}")
        start = offset + step * self.batch_size
        return start, min(start + self.batch_size, self.size)

    def _checked_offset(self, offset: int) -> int:
        if not 0 <= offset < self.batch_size or offset > self.size:
            raise UsageError(
                f"offset {offset}: it is below the batch size of {self.batch_size}, and at most {self.size}"
            )
        return offset

    def _checked_share(self, rank: int, world_size: int) -> int:
        """Samples a rank in a full batch."""
        if not 0 <= rank < world_size:
            raise UsageError(f"rank {rank} of {world_size}: ranks go from 0 to the world size - 1")
        each, left = divmod(self.batch_size, world_size)
        if left:
            below, above = each * world_size, (each + 1) * world_size
            sizes = f"{below} or {above}" if below else f"{above}"
            worlds = [str(n) for n in range(1, world_size) if self.batch_size % n == 0]
            raise UsageError(
                f"a global batch of {self.batch_size} does not divide among {world_size} ranks: "
                f"take a batch_size of {sizes}, or {', '.join(worlds)} ranks"
            )
        return each


_REDO = "the rest of its order is of other data; bring back the data as it was, or start without the state"


@lru_cache(maxsize=8)  # finding the short block costs more than a batch
def _one_block_shuffle(length: int, block_size: int, group_size: int, seed: int, epoch: int) -> BlockShuffle:
    return BlockShuffle(length=length, block_size=block_size, group_size=group_size, seed=seed, epoch=epoch)


def _cut(batch: NDArray[np.int64], rank: int, world_size: int, padding: bool) -> Shard:
    """A rank's part of a short batch."""
    if not padding:
        return Shard(samples=np.array_split(batch, world_size)[rank])
    each = -(-len(batch) // world_size)
    padded = np.resize(batch, each * world_size)  # again from its first
    repeats = min(max((rank + 1) * each - len(batch), 0), each)
    return Shard(samples=padded[rank * each : (rank + 1) * each], repeats=repeats)


def _shuffle(given: bool | str) -> Shuffle:
    if given is True or given == "full":
        return "full"
    if given is False:
        return False
    if given == "blocks":
        return "blocks"
    raise UsageError(f'shuffle={given!r}: take False, True, "full" or "blocks"')


def _whole(name: str, value: SupportsIndex, least: int | None = 1, most: int | None = None) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{name}={value!r}: give a whole number") from None
    if least is not None and number < least:
        raise UsageError(f"{name}={number}: it must be {least} or more")
    if most is not None and number > most:
        raise UsageError(f"{name}={number}: it must be {most} or less")
    return number


def _epoch(epoch: int) -> int:
    if epoch < 0:
        raise UsageError(f"epoch {epoch}: epochs are counted from 0")
    return epoch
