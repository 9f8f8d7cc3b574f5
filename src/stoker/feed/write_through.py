"""Write-through: what is read from a slow store is also kept on disk, whole, and comes from there next time.

A kept file carries the source's time of change, so that it counts only while its size and time are those of
the listing: every process can tell by itself, also after a restart. It is the layout and the manifest of
`stoker stage`, which finds what is already there.
"""

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from stoker.errors import NotPermitted
from stoker.feed.manifest import Line, Manifest
from stoker.feed.per_process import PerProcess
from stoker.feed.sources.listing import Entry, Listing
from stoker.feed.sources.objects import Store
from stoker.feed.stage_plan import Target
from stoker.feed.whole_file import remove_leftovers, whole_file


class WriteThrough:
    """A store whose reads leave a copy in `folder`. A full disk ends the keeping (it warns), not the reading.

    `why` says why nothing more is kept in this process, and is None while all is well.
    """

    def __init__(self, store: Store, folder: Path, listing: Listing) -> None:
        self.store = store
        self.folder = folder
        self.why: str | None = None
        self._listing = listing
        self._target = Target(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NotPermitted(
                f"cannot keep files in {folder}: {error.strerror}; give a folder to write to"
            ) from error
        self._target.check(listing.keys)
        remove_leftovers(folder)
        self._lines = PerProcess(partial(Manifest, folder, store.url))
        self._lines.get().require_source()
        self.in_flight = store.in_flight

    def view(self, key: str) -> memoryview:
        """All of an object, from disk where it is kept."""
        entry = self._listing.find(key)
        if entry is None:
            return self.store.view(key)
        kept = self._read(entry)
        if kept is not None:
            return memoryview(kept)
        data = self.store.view(key, entry.size)
        if self.why is None:
            self._keep(entry, data)
        return data

    def fetch(self, keys: Sequence[str], sizes: Sequence[int] | None = None) -> Iterator[memoryview]:
        """All of these objects, in this order, many at a time; their sizes are those of the listing.

        The thread that got one writes it too: others have requests under way meanwhile.
        """
        return self.store.threads.map(self.view, keys)

    def get_many(self, keys: Sequence[str]) -> Sequence[bytes]:
        """All of these objects, in this order; one that is named twice is read once."""
        wanted = tuple(dict.fromkeys(keys))
        found = dict(zip(wanted, map(bytes, self.fetch(wanted)), strict=True))
        return [found[key] for key in keys]

    def _read(self, entry: Entry) -> bytes | None:
        if not self._target.holds(entry):
            return None
        try:
            data = self._target.path(entry.key).read_bytes()
        except OSError:  # removed a moment ago: the store still has it
            return None
        return data if len(data) == entry.size else None

    def _keep(self, entry: Entry, data: memoryview) -> None:
        try:
            with whole_file(self._target.place(entry.key), modified_ns=entry.modified_ns) as out:
                out.write(data)
            digest = f"blake2b:{hashlib.blake2b(data, digest_size=16).hexdigest()}"
            self._lines.get().add(Line.of(entry, digest))
        except OSError as error:
            self.why = f"nothing more is kept in {self.folder}: {error.strerror}; what is there is still used"
            warnings.warn(self.why, stacklevel=2)
