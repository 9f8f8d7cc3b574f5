"""Objects of an S3 server: the part `s3` of `stoker bench feed`."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stoker.bench.children import say
from stoker.bench.contest import Contender, Contest, ours, peer_of
from stoker.bench.feed_ours import key_of
from stoker.bench.peers import Peer, find_peer
from stoker.feed.sources.objects import Store
from stoker.ward.proxy import Proxy
from stoker.ward.s3 import KEY, SECRET, S3Server, serve

# As many as make what an epoch begins and ends with little, as it is in a real set: of 2,048 objects the last
# batch's write alone is a fiftieth of the time.
OBJECTS, OBJECT_BYTES, BATCH = 6144, 100_000, 256
BUCKET = "bench"
_URL = f"s3://{BUCKET}/objects"
# Seconds: an epoch takes about three.
_STRETCH = 0.5
# Seconds of a round trip by the proxy; a store in the same region answers in as much.
FAR_S = 0.025
# Requests that a client may have in flight; of several numbers the fastest is kept. boto3 was slower with
# every number above 8.
OBSTORE_THREADS, FAR_THREADS, SOCKETS = (32, 128), (64, 128, 256), (32,)
PEERS = (
    ("s3torchconnector", "s3torchconnector", "s3_connector", (16, 64)),
    ("boto3", "boto3", "boto_threads", (8,)),
)


def measure_s3(
    folder: Path, *, objects: int, seconds: float, peers: bool
) -> tuple[list[dict[str, Any]], Mapping[str, str]]:
    """The runs, and the versions of the peers in them."""
    say(f"s3: a server of its own with {objects} objects")
    home, data, work = folder / "server", folder / "data", folder / "work"
    for made in (home, data, work, work / "near", work / "far"):
        made.mkdir()
    versions: dict[str, str] = {}
    with serve(home, BUCKET) as server, Proxy(port=server.port, delay_s=FAR_S / 2) as proxy:
        _fill(server.store(f"{BUCKET}/objects"), data, objects)
        contest = Contest("s3", folder, stretch_s=_STRETCH, expected=objects)
        contenders = _ours(server, S3Server(proxy.port), data, work)
        asked = partial(_plans, server, objects)
        # Clients of ours, in our environment: there is no ratio without them.
        needed = (
            ("peer_obstore", "obstore_threads", asked(OBSTORE_THREADS)),
            ("far_peer_obstore", "obstore_threads", _plans(S3Server(proxy.port), objects, FAR_THREADS)),
            ("limit", "raw_sockets", asked(SOCKETS)),
        )
        contenders += [
            Contender(kind=kind, module=module, plans=plans, needed=True) for kind, module, plans in needed
        ]
        for name, distribution, module, threads in PEERS if peers else ():
            found = find_peer(name, distribution=distribution)
            if isinstance(found, Peer):
                versions[distribution] = found.version
            made_of = peer_of(found, f"peer_{name}", module, asked(threads))
            if isinstance(made_of, str):
                contest.leave_out(f"peer_{name}", made_of)
            else:
                contenders.append(made_of)
        return contest.hold(contenders, seconds), versions


def _ours(near: S3Server, far: S3Server, data: Path, work: Path) -> list[Contender]:
    """Stoker's own ways, each with its cache in a folder of its own."""
    plan = {"batch": BATCH, "url": _URL, "options": near.options()}
    plan_far = {**plan, "options": far.options()}
    return [
        ours("stoker", {"way": "s3_caching", "work": str(work / "near"), **plan}),
        ours("uncached", {"way": "s3", **plan}),
        ours("far", {"way": "s3_caching", "work": str(work / "far"), **plan_far}),
        ours("far_uncached", {"way": "s3", **plan_far}),
        ours("second", {"way": "s3_second", "work": str(work), **plan}),
        ours("disk", {"way": "feed", "data": str(data), "work": str(work), "batch": BATCH}),
    ]


def _plans(server: S3Server, objects: int, threads: Sequence[int]) -> list[dict[str, Any]]:
    """What a client is told, for each number of threads."""
    told = {"url": _URL, "endpoint": server.endpoint, "key": KEY, "secret": SECRET, "batch": BATCH}
    return [{**told, "objects": objects, "workers": count} for count in threads]


def _fill(store: Store, data: Path, objects: int) -> None:
    """The objects, and the same rows in a local file; an object begins with its number, its label."""
    labels = np.arange(objects, dtype=np.int64)
    rows = np.random.default_rng(0).integers(0, 256, (objects, OBJECT_BYTES), np.uint8)
    rows[:, :8] = labels.view(np.uint8).reshape(objects, 8)
    np.save(data / "rows.npy", rows)
    np.save(data / "labels.npy", labels)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put(key_of(number), rows[number].tobytes()), range(objects)))
