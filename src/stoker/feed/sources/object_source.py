"""Objects under an address, each a sample: whatever `decode` makes of its bytes.

    train = ObjectSource("s3://bucket/captures", decode=read_capture, include=["*.bin"])
    batch = train.read(np.arange(256))                   # what default_collate makes of 256 of them

Many requests are in flight at once (see `Store`), and a batch is asked for as a whole.
"""

import difflib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stoker.errors import SourceBroken, UsageError
from stoker.feed.arguments import checked_call, checked_list
from stoker.feed.sources.base import Indices, checked
from stoker.feed.sources.class_folders import Globs
from stoker.feed.sources.listing import Listing, encode
from stoker.feed.sources.objects import Store
from stoker.feed.sources.stored import StoredSource
from stoker.feed.sources.torch import collate, emptied
from stoker.feed.tiers.batch_memory import fresh_batch
from stoker.feed.value_digest import code_digest

# A name that is not there is compared with so many on each side of its place.
_BESIDE = 50


class ObjectSource(StoredSource):
    """The objects under an address (`s3://bucket/prefix`, `gs://…`, `az://…`, `https://…`, or a folder).

    They are in the order of their keys; those with a part that begins with a dot are none.

    Args:
        url: where they lie.
        decode: what makes a sample of an object's bytes: tensors, arrays, numbers, text, and dicts, tuples
            and lists of such. A function that can be pickled, called by several threads at a time. Without it
            a sample is the bytes, a uint8 tensor, and objects that come in one batch must be of one size.
        include: patterns of which one must match: `*.bin` a name, `train/*` a whole key. Without, all do.
        exclude: patterns of which none may match.
        names: the keys of the only objects that are taken.
        keep: a folder into which everything read from a remote store is also written.
        options: what the store's client is told, in obstore's words.
        in_flight: how many requests are made at once (see `Store`).

    An object that `decode` fails on raises `SourceBroken` with its key.
    """

    def __init__(
        self,
        url: str | Path,
        *,
        decode: Callable[[bytes], Any] | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        names: Sequence[str] | None = None,
        keep: Path | str | None = None,
        options: Mapping[str, Any] | None = None,
        in_flight: int | None = None,
    ) -> None:
        checked_call("decode", decode)
        patterns = Globs(include=include, exclude=exclude)
        store = Store(url, options=options, in_flight=in_flight)
        listing = store.gather()
        if names is not None:
            listing = _named(listing, checked_list("names", names, "keys"), store.url)
        taken = [
            number
            for number, key in enumerate(listing.keys)
            if patterns.match(key) and not (key.startswith(".") or "/." in key)
        ]
        if not taken:
            raise UsageError(
                f"no objects to read under {store.url}: {len(listing)} are there"
                + (", none of them asked for: look at include=, exclude=, names=" if len(listing) else "")
                + "; give the address that they lie under"
            )
        super().__init__(store, listing.take(taken), keep)
        self.ignored = len(listing) - len(taken)
        self.decode = decode
        sizes = self._listing.sizes
        self.user_made = decode is not None or bool((sizes != sizes[0]).any())
        how = "bytes" if decode is None else code_digest(decode)
        self._fingerprint = blake2b(
            f"objects {self._listing.fingerprint()} {how}".encode(), digest_size=16
        ).hexdigest()

    def __repr__(self) -> str:
        return f"ObjectSource({len(self)} objects under {self.url})"

    def fingerprint(self) -> str:
        """Of the objects' keys, sizes and tags or times, and of the code of `decode`."""
        return self._fingerprint

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples as `decode` made them: of any shapes."""
        return self._samples(checked(indices, len(self)))

    def read(self, indices: Indices) -> Any:
        """These samples by default_collate; undecoded, a row of bytes for each."""
        chosen = checked(indices, len(self))
        if not len(chosen):
            return emptied(self.read(np.zeros(1, np.int64)))
        sizes = self._listing.sizes[chosen]
        keys = self._chosen_keys(chosen)
        if self.decode is None and (sizes == sizes[0]).all() and sizes[0]:
            return self._read_rows(keys, sizes)
        return collate(
            self._samples(chosen),
            lambda place: f"{self.url}/{keys[place]}",
            cure="Give ObjectSource a decode that makes them alike.",
        )

    def _chosen_keys(self, chosen: Indices) -> list[str]:
        return [self._keys[number] for number in chosen.tolist()]

    def _read_rows(self, keys: list[str], sizes: Indices) -> torch.Tensor:
        """Objects of one size, each straight into its row."""
        if isinstance(self._store, Store):
            return torch.from_numpy(self._store.get_rows(keys, int(sizes[0])))
        batch = fresh_batch((len(keys), int(sizes[0])), torch.uint8)
        for row, data in zip(batch.numpy(), self._store.fetch(keys, sizes.tolist()), strict=True):
            np.copyto(row, np.frombuffer(data, np.uint8))
        return batch

    def _samples(self, chosen: Indices) -> list[Any]:
        """Each is decoded while those after it are on their way."""
        keys = self._chosen_keys(chosen)
        fetched = self._store.fetch(keys, self._listing.sizes[chosen].tolist())
        return [self._sample(key, bytes(data)) for key, data in zip(keys, fetched, strict=True)]

    def _sample(self, key: str, data: bytes) -> Any:
        if self.decode is None:
            return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0).byte()
        try:
            return self.decode(data)
        except Exception as error:  # the user's own code
            raise SourceBroken(
                f"decode failed on {self.url}/{key} ({len(data)} bytes): {type(error).__name__}: {error}; "
                f"mend it, or leave it out: exclude=[{key!r}]"
            ) from error


def _named(listing: Listing, names: Iterable[str], url: str) -> Listing:
    """Those with these keys, each once; UsageError for one that is not there."""
    found = set()
    for name in names:
        number = listing.number(name)
        if number is None:
            place = bisect_left(range(len(listing)), encode(name), key=listing.keys.encoded)
            beside = range(max(0, place - _BESIDE), min(len(listing), place + _BESIDE))
            near = difflib.get_close_matches(name, [listing.keys[at] for at in beside], n=3)
            told = f", the nearest are {', '.join(near)}" if near else ""
            raise UsageError(
                f"no object {name!r} under {url}: of {len(listing)}, named relative to that{told}"
            )
        found.add(number)
    return listing.take(sorted(found))
