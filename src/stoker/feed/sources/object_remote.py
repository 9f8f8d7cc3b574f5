"""A remote store, by obstore. Everything that is obstore's own lies in this file.

Its requests run on a Tokio runtime that is one for the whole process and does not survive a fork: in a
forked child of a process that has used it, a new client hangs like the old one. Only another copy of the
extension has another runtime, so such a child loads one (10 ms, 15 MB). Spawned children need nothing.
"""

import importlib.util
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from importlib.machinery import ExtensionFileLoader
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from stoker.errors import (
    AccessRefused,
    MissingExtra,
    NoSuchBucket,
    NoSuchObject,
    StoreError,
    StoreUnreachable,
    UsageError,
)
from stoker.facts.secrets import hide_password
from stoker.feed.sources.listing import Entry, Reading

T = TypeVar("T")
_CHUNK = 1 << 20
_PAGE = 1000
# obstore goes on where a body was cut off, if the object is still the same; else it is read from its start.
_STARTS = 3
_PLAIN_OPTIONS = ("endpoint", "region", "bucket", "account_name")
# The process in which obstore's runtime was, or may have been, started.
_home: int | None = None
# Several threads may be the first to need it; a forked child gets one that nobody holds.
_loading = threading.Lock()


def _renew_lock() -> None:
    global _loading
    _loading = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


class RemoteClient:
    """A connection to one bucket or container."""

    def __init__(self, url: str, options: Mapping[str, Any], retries: int) -> None:
        self._url = shown_url(url).rstrip("/")
        hidden = [str(value) for name, value in options.items() if name not in _PLAIN_OPTIONS]
        hidden.append(urlsplit(url).password or "")
        self._secrets = [value for value in hidden if len(value) > 3]
        self._endpoint = str(options.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL") or "")
        obstore = _load()
        self._base_error: type[Exception] = obstore.exceptions.BaseError
        plain = self._endpoint.startswith("http://") or url.startswith("http://")
        retry = {
            "max_retries": retries,
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=10),
                "base": 2,
            },
            "retry_timeout": timedelta(minutes=2),
        }
        # A whole request may bring gigabytes; one that stalls ends by read_timeout.
        limits = {"connect_timeout": "5s", "read_timeout": "60s", "timeout": "6h"}
        client = {**limits, **({"allow_http": True} if plain else {})}
        # An HTTP store has no options of its own, and is read below its address but listed from its host on.
        by_http = urlsplit(url).scheme.startswith("http")
        self._above = f"{unquote(urlsplit(self._url).path).strip('/')}/".lstrip("/") if by_http else ""
        config = {} if by_http else {"config": dict(options)}
        connect = partial(obstore.store.from_url, url, client_options=client, retry_config=retry, **config)
        self._store = self._ask(connect, "opening")

    def entries(self, prefix: str) -> Iterator[Entry]:
        """Every object below `prefix`, a page in memory at a time."""
        pages = self._ask(lambda: iter(self._store.list(prefix or None, chunk_size=_PAGE)), "listing")
        while (page := self._ask(lambda: next(pages, None), "listing")) is not None:
            yield from map(self._entry, page)

    def folders(self) -> tuple[list[str], list[Entry]]:
        """The first parts of all keys that have several, and the objects whose keys have one."""
        answer = self._ask(self._store.list_with_delimiter, "listing")
        # The folder that is listed may stand in its own listing.
        below = [folder for folder in answer["common_prefixes"] if f"{folder}/" != self._above]
        names = [folder.removeprefix(self._above) for folder in below]
        return names, [self._entry(meta) for meta in answer["objects"]]

    def open(self, key: str) -> Reading:
        """Begin to read an object."""
        result = self._ask(lambda: self._store.get(key), "reading", key)
        entry = self._entry({**result.meta, "path": self._above + key})

        def chunks() -> Iterator[bytes]:
            parts, got = result.stream(min_chunk_size=_CHUNK), 0
            while (part := self._ask(lambda: next(parts, None), "reading", key)) is not None:
                got += len(part)
                yield bytes(part)
            self._require(key, got, entry.size)

        return Reading(entry=entry, chunks=chunks())

    def get(self, key: str) -> memoryview:
        """All of an object, where obstore has put it: copied once more, a tenth fewer came in a second."""
        for start in range(_STARTS):
            try:
                result = self._ask(lambda: self._store.get(key), "reading", key)
                data = memoryview(self._ask(result.bytes, "reading", key))
                self._require(key, len(data), result.meta["size"])
            except StoreUnreachable:
                if start + 1 == _STARTS:
                    raise
            else:
                return data
        raise AssertionError("every turn of the loop returns or raises")

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """These parts of an object; those less than 1 MiB apart come by one request."""
        starts, ends = [start for start, _ in ranges], [stop for _, stop in ranges]
        parts = self._ask(lambda: self._store.get_ranges(key, starts=starts, ends=ends), "reading", key)
        return [bytes(part) for part in parts]

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        self._ask(lambda: self._store.put(key, data), "writing", key)

    def _entry(self, meta: Mapping[str, Any]) -> Entry:
        etag = meta.get("e_tag")
        return Entry(
            key=meta["path"].removeprefix(self._above),
            size=meta["size"],
            modified_ns=round(meta["last_modified"].timestamp() * 1e6) * 1000,
            etag=None if etag is None else etag.strip('"'),
        )

    def _require(self, key: str, got: int, size: int) -> None:
        if got != size:
            raise StoreUnreachable(
                f"reading {key!r} in {self._url}: {got} of {size} bytes came; the connection drops answers, "
                "try again"
            )

    def _ask(self, call: Callable[[], T], doing: str, key: str | None = None) -> T:
        try:
            return call()
        except (self._base_error, ValueError, OSError) as error:
            # Without its cause: obstore's text holds the request's address, and with it signatures.
            raise self._explain(error, doing, key) from None

    def _explain(self, error: Exception, doing: str, key: str | None) -> Exception:
        """What went wrong, in our words; the texts come from servers of many makes, their codes from few."""
        text, _, debug = str(error).partition("\n\nDebug source")
        code = (re.search(r"<Code>(\w+)</Code>", text) or ("", ""))[1]
        status = (re.search(r"status code: (\d{3})", text) or ("", ""))[1]
        kind = type(error).__name__
        what = f"{doing} {self._url}" if key is None else f"{doing} {key!r} in {self._url}"
        said = f" (the server said {code or status})" if code or status else ""
        if kind == "UnknownConfigurationKeyError":
            return UsageError(f"{self._scrub(text)}; obstore's documentation names the options of each store")
        if "169.254.169.254" in text or "metadata.google" in text:
            return AccessRefused(
                f"{what}: no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or "
                "your store's own variables), or say that the bucket is public by options={'skip_signature': "
                "True} or --anonymous"
            )
        if code == "RequestTimeTooSkewed":
            return AccessRefused(
                f"{what}: access was refused{said}: this machine's clock is not the store's; set it, and try "
                "again"
            )
        if kind in ("PermissionDeniedError", "UnauthenticatedError") or status in ("401", "403"):
            return AccessRefused(
                f"{what}: access was refused{said}; check the credentials and what they are allowed to do"
            )
        if code in ("NoSuchBucket", "ContainerNotFound"):
            return NoSuchBucket(f"{what}: there is no such bucket{said}; check its name and the endpoint")
        if isinstance(error, FileNotFoundError):
            return NoSuchObject(f"{what}: no such object{said}; it was removed, or never there: list anew")
        if isinstance(error, ValueError) or "Unable to recognise URL" in text:
            return UsageError(f"{what}: {self._scrub(text)}; check the address and the key")
        # An answer to a part that does not say which part it is is none, as one that breaks off.
        broken = any(words in text for words in ("HTTP error", "Content-Range")) or "kind: Connect" in debug
        if broken or status in ("429", "500", "502", "503", "504"):
            where = f"the endpoint {shown_url(self._endpoint)}" if self._endpoint else "the store"
            return StoreUnreachable(
                f"{what}: no usable answer from {where}{said}, after all retries; check the address and the "
                "network, or try again later"
            )
        if doing == "opening":
            return UsageError(f"{what}: {self._scrub(text)}; give it in options or in the environment")
        return StoreError(f"{what}: {self._scrub(text)}; see what the store's own tools say of it")

    def _scrub(self, text: str) -> str:
        """One line, without anything that may be a secret."""
        line = re.sub(r"\?\S+", "?…", hide_password(text.splitlines()[0]))
        for secret in self._secrets:
            line = line.replace(secret, "…")
        return line


def shown_url(url: str) -> str:
    """An address as it may be shown and kept: without password, and without a query, which may sign it."""
    return hide_password(url).partition("?")[0]


def _load() -> Any:
    """The module obstore, with a runtime of this process's own."""
    global _home
    with _loading:
        if _home not in (None, os.getpid()):
            _load_copy()
        try:
            import obstore.exceptions
            import obstore.store
        except ImportError:
            raise MissingExtra("obstore", "objects", "a remote store") from None
        _home = os.getpid()
        return obstore


def _load_copy() -> None:
    """Put a copy of the extension in the place of the one whose runtime stayed behind in the parent."""
    name = "obstore._obstore"
    origin = sys.modules[name].__file__
    if not hasattr(os, "memfd_create") or origin is None:
        raise UsageError(
            "a store was used before this process was forked, and its client cannot follow; start workers "
            'by spawn: multiprocessing_context="spawn"'
        )
    copy = os.memfd_create("obstore")
    try:
        # The same file would be the same library, by whatever path it is opened.
        with open(origin, "rb") as file:  # noqa: PTH123  # a descriptor to send from
            size = os.fstat(file.fileno()).st_size
            sent = 0
            while sent < size:
                sent += os.sendfile(copy, file.fileno(), sent, size - sent)
        loader = ExtensionFileLoader(name, f"/proc/self/fd/{copy}")
        spec = importlib.util.spec_from_file_location(name, loader.path, loader=loader)
        if spec is None:
            raise UsageError(f"{origin} cannot be loaded again in a forked process; start workers by spawn")
        for loaded in [one for one in tuple(sys.modules) if one.partition(".")[0] == "obstore"]:
            del sys.modules[loaded]
        sys.modules[name] = importlib.util.module_from_spec(spec)
        loader.exec_module(sys.modules[name])
    finally:
        os.close(copy)
