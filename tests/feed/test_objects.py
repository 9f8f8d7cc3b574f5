"""The objects client, against a real S3 server, and a proxy that makes trouble."""

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from stoker.errors import (
    AccessRefused,
    NoSuchBucket,
    NoSuchObject,
    NotPermitted,
    SourceChanged,
    StoreError,
    StoreUnreachable,
    UsageError,
)
from stoker.feed.sources.listing import Entry, Listing, Texts
from stoker.feed.sources.objects import Store, local_folder
from stoker.feed.tiers import batch_memory
from stoker.ward.proxy import Proxy

from .s3 import SECRET, S3Server

service = pytest.mark.service
DATA = bytes(range(256)) * 400


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with Proxy(port=s3_server.port) as proxy:
        yield proxy


def through(proxy: Proxy, path: str, **options: Any) -> Store:
    return S3Server(proxy.port).store(path, **options)


@pytest.fixture(params=["s3", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path, prefix: str) -> Store:
    """The same calls on a server and on a folder."""
    if request.param == "folder":
        return Store(tmp_path)
    server: S3Server = request.getfixturevalue("s3_server")
    return server.store(prefix)


@service
def test_what_is_put_is_listed_and_got(store: Store) -> None:
    """Keys with blanks, umlauts, # and % come back as they were; sizes are right."""
    keys = ["a/b c.bin", "a/ü#%1.bin", "f#1", "z/y/x.bin"]
    for number, key in enumerate(keys):
        store.put(key, DATA[: 10 + number])
    assert {entry.key: entry.size for entry in store.list()} == {key: 10 + n for n, key in enumerate(keys)}
    assert [entry.key for entry in store.list("a")] == keys[:2]
    assert list(store.folders()) == ["a", "z"]
    assert [store.get(key) for key in keys] == [DATA[: 10 + n] for n in range(4)]
    assert list(store.gather().keys) == keys
    store.put("empty", b"")
    assert (store.get("empty"), b"".join(store.open("empty").chunks)) == (b"", b"")


@service
def test_many_come_in_the_order_asked(store: Store) -> None:
    """However many are in flight, and one named twice comes twice."""
    keys = [f"k/{number:03d}" for number in range(70)]
    for number, key in enumerate(keys):
        store.put(key, DATA[number : number + 1000])
    wanted = [*reversed(keys), keys[3], keys[3]]
    assert store.get_many(wanted) == [store.get(key) for key in wanted]


@service
def test_objects_of_one_size_come_as_rows(store: Store) -> None:
    """In the order asked; one of another size is told, with both sizes."""
    for number in range(50):
        store.put(f"r/{number}", DATA[number : number + 1000])
    keys = [f"r/{number}" for number in (*range(49, -1, -1), 7)]
    assert [bytes(row) for row in store.get_rows(keys, 1000)] == store.get_many(keys)
    assert store.get_rows([], 1000).shape == (0, 1000)
    store.put("r/7", b"short")
    with pytest.raises(SourceChanged, match=r"'r/7' .* has 5 bytes where 1000 were expected"):
        store.get_rows(keys, 1000)


def test_rows_keep_their_memory_as_long_as_anything_is_made_of_them(tmp_path: Path) -> None:
    """Also a numpy view or a tensor of a part of them; then the next rows get it."""
    store, size = Store(tmp_path), 1 << 19
    for number in range(4):
        store.put(str(number), bytes([number]) * size)
    batch_memory._free.clear()
    rows = store.get_rows(["0", "1"], size)
    address, view, tensor = rows.ctypes.data, rows[1][5:], torch.from_numpy(rows)[0]
    del rows
    later = store.get_rows(["2", "3"], size)
    assert later.ctypes.data != address
    assert (view == 1).all()
    assert bool((tensor == 0).all())
    del tensor
    assert store.get_rows(["2", "3"], size).ctypes.data != address
    assert (view == 1).all()
    del view, later
    assert address in {rows.ctypes.data for rows in [store.get_rows(["2", "3"], size) for _ in range(3)]}


@service
def test_the_first_error_ends_a_read_of_many(store: Store) -> None:
    """Nothing more is asked for, and nothing is handed over after it was raised."""
    store.put("there", b"1")
    taken: list[int] = []
    with pytest.raises(NoSuchObject):
        store.get_each(["there", "nowhere", *["there"] * 1000], lambda place, _: taken.append(place))
    assert len(taken) < 1000
    count = len(taken)
    assert store.get("there") == b"1"
    assert len(taken) == count


@service
def test_ranges_are_exact(store: Store) -> None:
    """From start to before stop; none is answered short, and one past the end is an error."""
    store.put("x", DATA)
    ranges = [(0, 5), (7, 7), (90_000, 90_003), (256, 258)]
    assert store.get_ranges("x", ranges) == [DATA[start:stop] for start, stop in ranges]
    with pytest.raises(StoreError, match="only 10 came"):
        store.get_ranges("x", [(len(DATA) - 10, len(DATA) + 10)])
    with pytest.raises(UsageError, match="0 <= start <= stop"):
        store.get_ranges("x", [(5, 3)])


@service
def test_an_object_can_be_read_in_chunks(store: Store) -> None:
    """With what it was when opened."""
    data = DATA * 30
    store.put("big", data)
    reading = store.open("big")
    assert (reading.entry.key, reading.entry.size) == ("big", len(data))
    chunks = list(reading.chunks)
    assert len(chunks) > 1
    assert b"".join(chunks) == data


@service
def test_a_missing_object_is_told(store: Store) -> None:
    """By its key and where it was looked for; also as the built-in error."""
    store.put("there", b"1")
    with pytest.raises(NoSuchObject, match="nowhere"):
        store.get("nowhere")
    with pytest.raises(FileNotFoundError):
        store.get_many(["there", "nowhere"])


@service
def test_a_key_cannot_leave_the_store(store: Store) -> None:
    """Neither by .. nor by empty parts."""
    for key in ("../x", "a/../../x", "a//b"):
        with pytest.raises((UsageError, NoSuchObject)):
            store.get(key)
    with pytest.raises(UsageError):
        store.put("../x", b"1")


@service
def test_a_wrong_secret_is_refused(s3_server: S3Server, prefix: str) -> None:
    """In reads and listings; neither secret stands in the message, nor in the traceback."""
    s3_server.store(prefix).put("x", b"1")
    wrong = s3_server.store(prefix, secret_access_key="wrong-secret-words")
    for ask in (lambda: wrong.get("x"), lambda: list(wrong.list()), lambda: wrong.put("x", b"2")):
        with pytest.raises(AccessRefused, match=r"SignatureDoesNotMatch.*check the credentials") as caught:
            ask()
        assert "wrong-secret-words" not in str(caught.value)
        assert caught.value.__suppress_context__
    with pytest.raises(AccessRefused, match="InvalidAccessKeyId"):
        s3_server.store(prefix, access_key_id="nobody").get("x")


@service
def test_a_wrong_bucket_is_told(s3_server: S3Server) -> None:
    """As such, not as a missing object."""
    store = s3_server.store("no-such-bucket")
    for ask in (lambda: store.get("x"), lambda: list(store.list())):
        with pytest.raises(NoSuchBucket, match=r"s3://no-such-bucket.*check its name"):
            ask()


def test_an_endpoint_that_is_not_there_is_told() -> None:
    """With its address, after the retries."""
    store = Store("s3://any", options=S3Server(1).options(), retries=1)
    with pytest.raises(StoreUnreachable, match=r"http://127\.0\.0\.1:1.*check the address"):
        store.get("x")


def test_wrong_addresses_and_options_are_told() -> None:
    """At the first use at the latest."""
    with pytest.raises(UsageError, match="no store is called ftp://"):
        Store("ftp://host/x")
    with pytest.raises(UsageError, match="'colour'"):
        Store("s3://any", options={"colour": "red"}).get("x")
    with pytest.raises(UsageError, match="names no bucket"):
        Store("s3://")
    for url in ("file://data", "file://data/train"):  # and never the folder that one happens to be in
        with pytest.raises(UsageError, match=f"{url} names no folder of this machine.*file:///data"):
            Store(url)
    for url in ("file://localhost/data/a%20b", "file:///data/a%20b"):
        assert Store(url).folder == Path("/data/a b")
    with pytest.raises(UsageError, match="Missing SecretAccessKey"):
        Store("s3://any", options={"access_key_id": "somebody"}).get("x")
    with pytest.raises(UsageError, match="no such folder"):
        list(Store("/no/such/folder").list())


def test_a_store_shows_no_secret() -> None:
    """Not in its repr, and not from the query of its address."""
    store = Store("https://host/container?sig=abcdef", options={"secret_access_key": SECRET})
    assert repr(store) == "Store('https://host/container')"


@service
def test_a_body_cut_off_is_read_to_its_end(proxy: Proxy, prefix: str) -> None:
    """The rest is asked for, by range or from the start; never is a part taken for the whole."""
    store = through(proxy, prefix)
    store.put("x", DATA)
    for ask in (store.get, lambda key: b"".join(store.open(key).chunks)):
        met = proxy.faults_met
        proxy.cut(after=40_000, times=2)
        assert ask("x") == DATA
        assert proxy.faults_met > met


@service
def test_a_short_answer_that_does_not_go_on_is_asked_for_again(proxy: Proxy, prefix: str) -> None:
    """When the rest cannot be had because the object's tag is another, it is read from its start."""
    store = through(proxy, prefix)
    store.put("x", DATA)
    proxy.answer(
        b'HTTP/1.1 200 OK\r\nETag: "other"\r\nLast-Modified: Sun, 15 Nov 2026 13:27:54 GMT\r\n'
        b"Content-Length: 10\r\nConnection: close\r\n\r\nabc"
    )
    assert store.get("x") == DATA
    assert proxy.faults_met == 1


@service
def test_throttling_and_refusals_are_retried(proxy: Proxy, prefix: str) -> None:
    """503, 429, and connections closed in its face."""
    store = through(proxy, prefix)
    store.put("x", DATA)
    for answer in (b"HTTP/1.1 503 Slow Down", b"HTTP/1.1 429 Too Many Requests", b""):
        met = proxy.faults_met
        proxy.answer(answer and answer + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", times=2)
        assert store.get("x") == DATA
        assert proxy.faults_met == met + 2


@service
def test_a_server_that_stays_away_is_told(proxy: Proxy, prefix: str) -> None:
    """After all retries, as unreachable."""
    store = through(proxy, prefix, retries=1)
    proxy.answer(b"", times=100)
    with pytest.raises(StoreUnreachable, match="after all retries"):
        store.get("x")


class Lengths(Dataset[int]):
    """The sizes of objects, read in workers."""

    def __init__(self, store: Store, keys: list[str]) -> None:
        self.store, self.keys = store, keys

    def __len__(self) -> int:
        return len(self.keys)

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [len(data) for data in self.store.get_many([self.keys[index] for index in indices])]

    def __getitem__(self, index: int) -> int:
        return self.__getitems__([index])[0]


@service
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_read_after_the_parent_has(start: str, s3_server: S3Server, prefix: str) -> None:
    """Forked ones too, where obstore alone would hang: each has a client and a runtime of its own."""
    store = s3_server.store(prefix)
    keys = [f"{number}" for number in range(24)]
    for number, key in enumerate(keys):
        store.put(key, DATA[: number + 1])
    loader = DataLoader(
        Lengths(store, keys), batch_size=8, num_workers=2, multiprocessing_context=start, timeout=60
    )
    assert [int(n) for batch in loader for n in batch] == [number + 1 for number in range(24)]
    assert store.get("3") == DATA[:4]


def test_a_store_pickles_without_its_client(tmp_path: Path) -> None:
    """Used or not."""
    store = Store(tmp_path)
    store.put("x", b"1")
    assert pickle.loads(pickle.dumps(store)).get("x") == b"1"


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    """At its end at the latest."""
    store = Store(tmp_path)
    store.put("x", DATA * 30)
    reading = store.open("x")
    next(reading.chunks)
    with (tmp_path / "x").open("ab") as file:
        file.write(b"more")
    with pytest.raises(SourceChanged, match="changed while it was read"):
        list(reading.chunks)


def test_links_in_a_folder_are_followed_once(tmp_path: Path) -> None:
    """A link to a folder is listed through; one that leads back up ends there."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "f").write_bytes(b"1")
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "up").symlink_to(tmp_path)
    keys = {entry.key for entry in Store(tmp_path).list()}
    assert {"real/f", "linked/f"} <= keys
    assert not [key for key in keys if key.count("real") > 1 and key.count("up") > 1]


@pytest.mark.parametrize("given", ["s3://bucket/x", Path("s3://bucket/x"), "file:///x"])
def test_an_address_is_no_folder_to_write_into(given: Any, tmp_path: Path) -> None:
    """Taken for a path, it would be a folder `s3:` in the one that one happens to be in."""
    with pytest.raises(UsageError, match="is no folder of this machine"):
        local_folder(given)
    assert local_folder("~/x") == Path.home() / "x"
    assert local_folder(tmp_path) == tmp_path


def test_what_is_removed_while_it_is_listed_is_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file, or a folder: whatever removes them, all else is listed."""
    for name in ("a/kept", "a/file-gone", "a/folder-gone/inner", "b/kept"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    plain = os.scandir

    @contextmanager
    def scan(path: Any) -> Iterator[Iterator[os.DirEntry[str]]]:
        with plain(path) as found:
            yield map(remove, found)

    def remove(entry: os.DirEntry[str]) -> os.DirEntry[str]:
        if entry.name == "file-gone":
            Path(entry.path).unlink()
        elif entry.name == "folder-gone":
            Path(entry.path).rename(tmp_path.with_name("elsewhere"))
        return entry

    monkeypatch.setattr("os.scandir", scan)
    assert list(Store(tmp_path).gather().keys) == ["a/kept", "b/kept"]


def test_a_folder_that_may_not_be_listed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never passed over: what is in it would be missing without a word."""

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(NotPermitted, match="check its rights"):
        list(Store(tmp_path).list())


def test_a_listing_is_packed_and_sorted() -> None:
    """It gives back what went in, and its fingerprint follows names, sizes, and tags or times."""
    entries = [
        Entry(key="b", size=2, modified_ns=20, etag="t"),
        Entry(key="a/\udcff", size=1, modified_ns=10),
        Entry(key="a/ü", size=3, modified_ns=30),
    ]
    listing = Listing.gather(entries)
    assert list(listing) == [entries[2], entries[1], entries[0]]
    assert [listing.find(entry.key) for entry in entries] == entries
    assert (listing.find("a"), listing.find("zz")) == (None, None)
    assert list(Listing.join([Listing.gather(entries[:1]), Listing.gather(entries[1:])])) == list(listing)
    assert list(Listing.join([])) == []
    assert list(Listing.gather(reversed(entries))) == list(listing)
    assert list(pickle.loads(pickle.dumps(listing))) == list(listing)
    assert list(listing.take([2, 0])) == [entries[0], entries[2]]
    told = {listing.fingerprint()}
    for change in ({"key": "c"}, {"size": 3}, {"etag": "u"}):
        told.add(Listing.gather([replaced(entries[0], **change), *entries[1:]]).fingerprint())
    told.add(Listing.gather([entries[0], replaced(entries[1], modified_ns=11), entries[2]]).fingerprint())
    assert len(told) == 5
    # A tag tells more than a time: an object that was only copied again is the same.
    again = Listing.gather([replaced(entries[0], modified_ns=99), *entries[1:]])
    assert again.fingerprint() == listing.fingerprint()


def replaced(entry: Entry, **values: Any) -> Entry:
    fields = {name: getattr(entry, name) for name in ("key", "size", "modified_ns", "etag")}
    return Entry(**{**fields, **values})


def test_packed_texts_take_no_object_each() -> None:
    """600,000 names are two buffers: forked workers that read them copy nothing."""
    texts = Texts.pack(f"n{number:08d}/n{number:08d}_1.JPEG" for number in range(1000))
    assert (texts[0], texts[999], len(texts)) == (
        "n00000000/n00000000_1.JPEG",
        "n00000999/n00000999_1.JPEG",
        1000,
    )
    assert len(pickle.dumps(texts)) < 1000 * 36 + 500


@service
def test_half_of_a_body_that_says_it_is_whole_is_asked_for_again(proxy: Proxy, prefix: str) -> None:
    """By the size that was listed; SourceChanged where it never comes whole."""
    store = through(proxy, prefix)
    store.put("x", DATA)
    proxy.shorten()
    assert len(store.get("x")) == len(DATA) // 2  # nothing is known of it but what the answer says
    proxy.shorten()
    assert [bytes(data) for data in store.fetch(["x"], [len(DATA)])] == [DATA]
    assert proxy.faults_met == 2
    with pytest.raises(SourceChanged, match=r"'x' in .* has 102400 bytes where 7 were listed"):
        list(store.fetch(["x"], [7]))


@service
def test_a_clock_that_is_not_the_stores_is_told(proxy: Proxy, prefix: str) -> None:
    """And not taken for wrong credentials."""
    store = through(proxy, prefix, retries=0)
    body = b"<Error><Code>RequestTimeTooSkewed</Code><Message>too far</Message></Error>"
    head = b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n" % len(body)
    proxy.answer(head + b"Connection: close\r\n\r\n" + body)
    with pytest.raises(AccessRefused, match="clock is not the store's; set it"):
        store.get("x")


def test_a_link_that_leads_nowhere_is_listed_and_told_when_it_is_read(tmp_path: Path) -> None:
    """Not left out without a word, as if it had never been there."""
    (tmp_path / "there").write_bytes(b"1")
    (tmp_path / "dead").symlink_to(tmp_path / "nowhere")
    store = Store(tmp_path)
    assert [entry.key for entry in store.list()] == ["dead", "there"]
    with pytest.raises(NoSuchObject, match="dead; it is a link that leads nowhere"):
        list(store.fetch(["there", "dead"]))
