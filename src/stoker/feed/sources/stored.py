"""What sources of objects have in common: listed once, kept on disk or in memory as they are."""

from pathlib import Path

from stoker.feed.held_files import HeldFiles, hold_if_they_fit
from stoker.feed.sources.base import Source, checked, told_apart
from stoker.feed.sources.listing import Listing
from stoker.feed.sources.objects import Store, local_folder
from stoker.feed.write_through import WriteThrough


class StoredSource(Source):
    """Sample k is made of object k of a listing, whose keys are in order.

    `keep` names a folder into which everything read from the store is also written.
    """

    def __init__(self, store: Store, listing: Listing, keep: Path | str | None) -> None:
        self.url = store.url
        if store.folder is None:
            self.in_flight = store.in_flight
        self._listing = listing
        self._keys = listing.keys
        self._store: Store | WriteThrough | HeldFiles = store
        if keep is not None:
            self._store = WriteThrough(store, local_folder(keep, "keep"), listing)

    def __len__(self) -> int:
        return len(self._keys)

    def key(self, index: int) -> str:
        """The name of a sample's object, relative to the source."""
        return self._keys[int(checked([index], len(self))[0])]

    def kept_as(self) -> str:
        """Of where the objects are, too."""
        return told_apart(self.fingerprint(), self.url)

    def hold_files(self, free: int | None) -> str:
        """Keep the objects in memory as they are, undecoded, if they fit into so much; what is to be said.

        For feeds: what is made of them, which is faster, did not fit.
        """
        if isinstance(self._store, HeldFiles):
            return ""
        held, said = hold_if_they_fit(self._store, self._listing, free)
        self._store = held or self._store
        return said

    def let_files_go(self) -> None:
        """Give that memory back."""
        held = self._store
        if isinstance(held, HeldFiles):
            self._store = held.store
            held.close()
