"""What a store holds, in a few arrays: keys, sizes, times and tags, without a Python object for each.

600,000 entries as objects take 181 MB, and forked workers copy every page of them that they look at, because
looking counts references. Packed they take 57 MB, in buffers that are only ever read.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One object: its key (with `/` between its parts), bytes, time of change and the store's tag for it."""

    key: str
    size: int
    modified_ns: int
    etag: str | None = None

    def is_like(self, other: "Entry") -> bool:
        """Whether both tell of the same content: by tag where both have one, else by time to the second."""
        if self.size != other.size:
            return False
        if self.etag and other.etag:
            return self.etag == other.etag
        # A listing may tell milliseconds where the answer to a read has only seconds.
        return self.modified_ns // 10**9 == other.modified_ns // 10**9


@dataclass(frozen=True, kw_only=True)
class Reading:
    """An object being read: what it was when opened, and its bytes. They end early only with an error.

    Read to its end it is closed; `with` closes it earlier.
    """

    entry: Entry
    chunks: Iterator[bytes]
    close: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Texts(Sequence[str]):
    """Many texts in one buffer.

    >>> Texts.pack(["ab", "", "c"])[2]
    'c'
    """

    def __init__(self, buffer: bytes, ends: NDArray[np.int64]) -> None:
        self.buffer = buffer
        self.ends = ends

    @classmethod
    def pack(cls, texts: Iterable[str]) -> "Texts":
        """These texts, in this order."""
        packer = _Packer()
        for text in texts:
            packer.add(encode(text))
        return packer.done()

    @classmethod
    def join(cls, parts: Sequence["Texts"]) -> "Texts":
        """All texts of these, one after the other."""
        starts = np.cumsum([0, *(len(part.buffer) for part in parts)])
        ends = [part.ends + start for part, start in zip(parts, starts[:-1], strict=True)]
        return cls(b"".join(part.buffer for part in parts), np.concatenate([np.empty(0, np.int64), *ends]))

    def encoded(self, index: int) -> bytes:
        """One as it lies in the buffer; texts are in order when these are."""
        start = int(self.ends[index - 1]) if index else 0
        return self.buffer[start : int(self.ends[index])]

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]  # one at a time, no slices
        return self.encoded(index).decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        for index in range(len(self)):
            yield self[index]


class _Packer:
    """Gathers texts that become a `Texts`."""

    def __init__(self) -> None:
        self._buffer, self._ends = bytearray(), array("q")

    def add(self, text: bytes) -> None:
        self._buffer += text
        self._ends.append(len(self._buffer))

    def done(self) -> Texts:
        return Texts(bytes(self._buffer), np.array(self._ends, dtype=np.int64))


def encode(text: str) -> bytes:
    """As in a buffer; file names need not be UTF-8."""
    return text.encode("utf-8", "surrogateescape")


class Listing:
    """Entries, sorted by key."""

    def __init__(
        self, keys: Texts, sizes: NDArray[np.int64], modified_ns: NDArray[np.int64], etags: Texts
    ) -> None:
        self.keys = keys
        self.sizes = sizes
        self.modified_ns = modified_ns
        self.etags = etags

    @classmethod
    def gather(cls, entries: Iterable[Entry]) -> "Listing":
        """Pack what a store tells; sorted, whatever order it came in."""
        keys, tags, sizes, times = _Packer(), _Packer(), array("q"), array("q")
        for entry in entries:
            keys.add(encode(entry.key))
            tags.add((entry.etag or "").encode())
            sizes.append(entry.size)
            times.append(entry.modified_ns)
        packed = cls(keys.done(), np.array(sizes, np.int64), np.array(times, np.int64), tags.done())
        return packed._sorted()

    @classmethod
    def join(cls, parts: Sequence["Listing"]) -> "Listing":
        """All entries of these."""
        none = [np.empty(0, np.int64)]
        return cls(
            Texts.join([part.keys for part in parts]),
            np.concatenate([*none, *(part.sizes for part in parts)]),
            np.concatenate([*none, *(part.modified_ns for part in parts)]),
            Texts.join([part.etags for part in parts]),
        )._sorted()

    def _sorted(self) -> "Listing":
        # Stores list in order, folder by folder; then this is one pass, and no key stays an object.
        keys, count = self.keys, len(self.keys)
        if all(keys.encoded(number - 1) <= keys.encoded(number) for number in range(1, count)):
            return self
        return self.take(sorted(range(count), key=keys.encoded))

    def take(self, indices: Sequence[int] | NDArray[np.int64]) -> "Listing":
        """The entries with these numbers, in this order."""
        chosen = np.asarray(indices, dtype=np.int64)
        keys, tags = _Packer(), _Packer()
        for number in chosen.tolist():
            keys.add(self.keys.encoded(number))
            tags.add(self.etags.encoded(number))
        return Listing(keys.done(), self.sizes[chosen], self.modified_ns[chosen], tags.done())

    def find(self, key: str) -> Entry | None:
        """The entry with this key."""
        place = self.number(key)
        return None if place is None else self[place]

    def number(self, key: str) -> int | None:
        """Where the entry with this key stands, by halving."""
        wanted = encode(key)
        place = bisect_left(range(len(self)), wanted, key=self.keys.encoded)
        return place if place < len(self) and self.keys.encoded(place) == wanted else None

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> Entry:
        return Entry(
            key=self.keys[index],
            size=int(self.sizes[index]),
            modified_ns=int(self.modified_ns[index]),
            etag=self.etags[index] or None,
        )

    def __iter__(self) -> Iterator[Entry]:
        for index in range(len(self)):
            yield self[index]

    def fingerprint(self) -> str:
        """A digest of keys and sizes, and of the tags, or of the times where the store gives no tags."""
        digest = blake2b(digest_size=16)
        times = np.where(np.diff(self.etags.ends, prepend=0) > 0, 0, self.modified_ns)
        for part in (self.keys.buffer, self.keys.ends, self.sizes, self.etags.buffer, self.etags.ends, times):
            digest.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()
