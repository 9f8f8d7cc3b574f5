"""What a store holds, in a few arrays: keys, sizes, times and tags, without a Python object for each.

600,000 entries as objects take some 190 MB, and forked workers copy every page of them that they look at,
because looking counts references. Packed they take about 50 MB, in buffers that are only ever read.
"""

from array import array
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
        buffer, ends = bytearray(), array("q")
        for text in texts:
            # File names need not be UTF-8.
            buffer += text.encode("utf-8", "surrogateescape")
            ends.append(len(buffer))
        return cls(bytes(buffer), np.array(ends, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]  # one at a time, no slices
        start = int(self.ends[index - 1]) if index else 0
        return self.buffer[start : int(self.ends[index])].decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        for index in range(len(self)):
            yield self[index]


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
        sizes, times = array("q"), array("q")
        tags: list[str] = []

        def keys() -> Iterator[str]:
            for entry in entries:
                sizes.append(entry.size)
                times.append(entry.modified_ns)
                tags.append(entry.etag or "")
                yield entry.key

        packed = Texts.pack(keys())
        listing = cls(packed, np.array(sizes, np.int64), np.array(times, np.int64), Texts.pack(tags))
        return listing.take(sorted(range(len(packed)), key=list(packed).__getitem__))

    def take(self, indices: Sequence[int] | NDArray[np.int64]) -> "Listing":
        """The entries with these numbers, in this order."""
        chosen = np.asarray(indices, dtype=np.int64)
        numbers: list[int] = chosen.tolist()
        return Listing(
            Texts.pack(self.keys[i] for i in numbers),
            self.sizes[chosen],
            self.modified_ns[chosen],
            Texts.pack(self.etags[i] for i in numbers),
        )

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
