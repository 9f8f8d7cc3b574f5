"""Servers that samples come from: an S3 store and a database, cut off, refusing, killed. Samples are counted.

Half of the trials with the store read by a feed, the other half stage.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from stoker.bench.faults import samples
from stoker.bench.faults.judge import Ended, Seen
from stoker.bench.faults.reading import EPOCHS, STEPS, Reading
from stoker.bench.faults.row import CLEAR_ERROR, GOES_ON, Row
from stoker.bench.faults.scene import Child, Scene
from stoker.bench.faults.services import BUCKET
from stoker.bench.faults.staging import Staging
from stoker.ward.proxy import Proxy
from stoker.ward.s3 import S3Server

# So many times in a trial, each for some connections at once.
_TIMES, _AT_ONCE = 4, 3
# A feed asks a store that is away for 25 s three times over, staging that three times: and then some.
_LONG_S = 600.0
_STATUSES = (
    (500, "InternalError"), (502, "BadGateway"), (503, "ServiceUnavailable"), (504, "GatewayTimeout"),
)  # fmt: skip
_THROTTLES = ((503, "SlowDown"), (429, "TooManyRequests"))

Order = Callable[[Scene, Proxy], None]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What reads from the store: started, gone on with, and counted alike."""

    start: Callable[[], Child]
    ended: Callable[[Child], Ended]
    is_under_way: Callable[[Child, float], bool]
    counts: Callable[[], dict[str, tuple[int, int]]]
    left: Callable[[], tuple[str, ...]]
    name: str


@contextlib.contextmanager
def from_store(scene: Scene) -> Iterator[tuple[Work, Proxy]]:
    """A feed or a staging of the images in the store, by way of a proxy that makes trouble."""
    server = scene.services.s3
    with Proxy(port=server.port) as proxy:
        store = S3Server(proxy.port)
        work = _feed(scene, store) if scene.random.random() < 0.5 else _stage(scene, store)
        yield work, proxy


def _feed(scene: Scene, store: S3Server) -> Work:
    job = Reading(scene, "s3", where=f"s3://{BUCKET}/train", options=store.options(), hold_s=0.02)
    return Work(
        start=job.start,
        ended=partial(job.ended, names=r"s3://faults|:\d+"),
        is_under_way=lambda child, share: job.reaches(child, max(1, int(share * EPOCHS * STEPS))),
        counts=job.counts,
        left=scene.left,
        name="feed",
    )


def _stage(scene: Scene, store: S3Server) -> Work:
    origin = scene.services.made("images", lambda folder: samples.make("images", folder))
    options = ("--endpoint", store.endpoint, "--region", "us-east-1")
    job = Staging(
        scene, f"s3://{BUCKET}/train", origin=origin, options=options, env=scene.services.s3.environment()
    )
    return Work(
        start=job.start,
        ended=lambda child: child.ended(names=r"s3://faults|:\d+"),
        is_under_way=lambda child, share: job.reaches(child, max(1, int(share * samples.COUNT))),
        counts=job.counts,
        left=lambda: (*scene.left(), *job.parts()),
        name="stage",
    )


def disturb(order: Order, scene: Scene) -> Seen:
    """A fault several times over, at moments all over the work; then in peace, should it have ended."""
    with from_store(scene) as (work, proxy):
        child = work.start()
        for share in sorted(scene.random.random() for _ in range(_TIMES)):
            if not work.is_under_way(child, share):
                break
            order(scene, proxy)
        ended = [work.ended(child)]
        met = proxy.faults_met > 0
        proxy.forget()
        if ended[0].code:
            ended.append(work.ended(work.start()))
        return Seen(
            ended=tuple(ended), counts=work.counts(), left=work.left(), met=met,
            note=f"{work.name}: {proxy.faults_met} faults met",
        )  # fmt: skip


def cut(scene: Scene, proxy: Proxy) -> None:
    """Connections are reset amid their answers."""
    proxy.cut(after=scene.random.randrange(600), times=scene.random.randint(1, _AT_ONCE))


def truncate(scene: Scene, proxy: Proxy) -> None:
    """Answers end early and in order, or are half of a body that calls itself the whole."""
    times = scene.random.randint(1, _AT_ONCE)
    if scene.random.random() < 0.5:
        proxy.shorten(times=times)
    else:
        proxy.cut(after=scene.random.randrange(600), times=times, reset=False)


def refuse(statuses: tuple[tuple[int, str], ...], most: int, scene: Scene, proxy: Proxy) -> None:
    """The server says that it cannot, or not now."""
    for _ in range(scene.random.randint(1, most)):
        proxy.answer(_refusal(*scene.random.choice(statuses)))


def _refusal(status: int, code: str) -> bytes:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>made up</Message></Error>".encode()
    head = f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Retry-After: 1\r\nConnection: close\r\n\r\n" + body


def kill_store(scene: Scene) -> Seen:
    """The server, which comes back after a while."""
    with from_store(scene) as (work, _):
        child = work.start()
        met = work.is_under_way(child, scene.random.random() * 0.9)
        scene.services.s3.kill()
        scene.pause(2.0)
        scene.services.s3.start()
        ended = [work.ended(child)]
        if ended[0].code:
            ended.append(work.ended(work.start()))
        return Seen(ended=tuple(ended), counts=work.counts(), left=work.left(), met=met, note=work.name)


def lose_store(scene: Scene) -> Seen:
    """The server, which comes back only after whoever reads from it has given up."""
    scene.patience_s = _LONG_S
    with from_store(scene) as (work, _):
        child = work.start()
        met = work.is_under_way(child, scene.random.random() * 0.5)
        scene.services.s3.kill()
        try:
            first = work.ended(child)
        finally:
            scene.services.s3.start()
        ended = (first, work.ended(work.start())) if first.code else (first,)
        return Seen(
            ended=ended, counts=work.counts(), left=work.left(), met=met and bool(first.code), note=work.name
        )


def kill_database(scene: Scene) -> Seen:
    """PostgreSQL, all of it; it comes back at once, after a while, or once the reader has given up."""
    server = scene.services.postgres
    job = Reading(scene, "postgres", where=server.tcp_url)
    child = job.start()
    met = job.reaches(child, job.draw())
    server.kill()
    away = scene.random.choice((0.0, 1.0, None))
    if away is not None:
        time.sleep(away)
        server.start()
    first = job.ended(child, names=r"postgresql://|PostgreSQL")
    if away is None:
        server.start()
    scene.services.require_postgres()
    ended = (first, job.ended(job.start())) if first.code else (first,)
    note = "back when the reader had ended" if away is None else f"away for {away:g} s and its start"
    return Seen(ended=ended, counts=job.counts(), left=scene.left(), met=met, note=note)


def keep_on_locked_disk(scene: Scene) -> Seen:
    """Images from the store that are to be kept in a folder that cannot be written to."""
    from stoker.bench.faults.disks import MIB, disk

    server = scene.services.s3
    with disk(scene.folder / "disk", 64 * MIB) as small:
        keep = small.folder / "keep"
        job = Reading(
            scene, "s3", where=f"s3://{BUCKET}/train", options=server.options(), keep=str(keep), hold_s=0.01
        )
        is_full = scene.random.random() < 0.5
        child = job.start()
        met = job.reaches(child, job.draw())
        if is_full:
            small.fill()
            ended = [job.ended(child)]
        else:
            child.kill()
            small.lock()
            ended = [job.ended(job.start(), names=r"keep")]
        if ended[0].code:
            small.unlock()
            ended.append(job.ended(job.start()))
        return Seen(
            ended=tuple(ended), counts=job.counts(), left=scene.left(), met=met,
            note="full" if is_full else "read-only",
        )  # fmt: skip


_COUNTED = "samples by number once an epoch, or files byte by byte; parts of files, processes"
_row = partial(Row, counted=_COUNTED, needs=("s3",))

ROWS = (
    _row(
        name="s3-cut",
        part="feed",
        fault="connections to the store reset amid their answers",
        act=partial(disturb, cut),
        times=12,
        seconds=15,
        good=GOES_ON,
    ),
    _row(
        name="s3-truncated",
        part="feed",
        fault="bodies that end early in order, or are half of themselves and say they are whole",
        act=partial(disturb, truncate),
        times=14,
        seconds=15,
    ),
    _row(
        name="s3-5xx",
        part="feed",
        fault="500, 502, 503 and 504 for some requests",
        act=partial(disturb, partial(refuse, _STATUSES, 6)),
        times=10,
        seconds=15,
        good=GOES_ON,
    ),
    _row(
        name="s3-throttled",
        part="feed",
        fault="503 SlowDown and 429 for up to 40 requests in a row",
        act=partial(disturb, partial(refuse, _THROTTLES, 40)),
        times=8,
        seconds=25,
    ),
    _row(
        name="s3-kill",
        part="feed",
        fault="kill -9 of the S3 server, back after up to 2 s and its start",
        act=kill_store,
        times=8,
        seconds=25,
    ),
    _row(
        name="s3-gone",
        part="feed",
        fault="kill -9 of the S3 server, not back before its reader has given up",
        act=lose_store,
        times=2,
        seconds=200,
        good=CLEAR_ERROR,
    ),
    _row(
        name="s3-keep",
        part="feed",
        fault="the folder that keeps what is read from the store: full, or read-only",
        act=keep_on_locked_disk,
        times=8,
        seconds=15,
        needs=("s3", "mounts"),
    ),
    Row(
        name="postgres-kill",
        part="feed",
        fault="kill -9 of all of PostgreSQL under a feed: back at once, later, or after its reader gave up",
        counted="samples by number, each once an epoch with its own values",
        act=kill_database,
        times=8,
        seconds=15,
        needs=("postgres",),
    ),
)
