"""Objects of an S3 server: the part `s3` of `stoker bench feed`."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from stoker.bench.children import say
from stoker.bench.contest import Contender, Contest, ours, peer_of
from stoker.bench.feed_ours import key_of
from stoker.bench.peers import Peer, find_peer
from stoker.feed.sources.objects import Store
from stoker.ward.s3 import KEY, SECRET, serve

OBJECTS, OBJECT_BYTES, BATCH = 2048, 100_000, 256
BUCKET = "bench"
# Seconds: an epoch takes about one.
_STRETCH = 0.5
# Requests that a client may have in flight; the best is kept.
_THREADS = (8, 16, 32, 64)
PEERS = (
    ("s3torchconnector", "s3torchconnector", "s3_connector"),
    ("boto3", "boto3", "boto_threads"),
)


def measure_s3(
    folder: Path, *, objects: int, seconds: float, peers: bool
) -> tuple[list[dict[str, Any]], Mapping[str, str]]:
    """The runs, and the versions of the peers in them."""
    say(f"s3: a server of its own with {objects} objects")
    home, data, work = folder / "server", folder / "data", folder / "work"
    for made in (home, data, work):
        made.mkdir()
    versions: dict[str, str] = {}
    with serve(home, BUCKET) as server:
        url = f"s3://{BUCKET}/objects"
        _fill(server.store(f"{BUCKET}/objects"), data, objects)
        contest = Contest("s3", folder, stretch_s=_STRETCH, expected=objects)
        plan = {"batch": BATCH, "objects": objects, "url": url, "options": server.options()}
        contenders = [
            ours("stoker", {"way": "s3_caching", "work": str(work), **plan}),
            ours("uncached", {"way": "s3", **plan}),
            ours("second", {"way": "s3_second", "work": str(work), **plan}),
            ours("disk", {"way": "feed", "data": str(data), "work": str(work), "batch": BATCH}),
        ]
        told = {"url": url, "endpoint": server.endpoint, "key": KEY, "secret": SECRET, "batch": BATCH}
        plans = [{**told, "objects": objects, "workers": count} for count in _THREADS]
        # A client of ours, in our environment: there is no ratio without it.
        contenders.append(Contender(kind="peer_obstore", module="obstore_threads", plans=plans, needed=True))
        if peers:
            for name, distribution, module in PEERS:
                found = find_peer(name, distribution=distribution)
                if isinstance(found, Peer):
                    versions[distribution] = found.version
                made_of = peer_of(found, f"peer_{name}", module, plans)
                if isinstance(made_of, str):
                    contest.leave_out(f"peer_{name}", made_of)
                else:
                    contenders.append(made_of)
        return contest.hold(contenders, seconds), versions


def _fill(store: Store, data: Path, objects: int) -> None:
    """The objects, and the same rows in a local file; an object begins with its number, its label."""
    labels = np.arange(objects, dtype=np.int64)
    rows = np.random.default_rng(0).integers(0, 256, (objects, OBJECT_BYTES), np.uint8)
    rows[:, :8] = labels.view(np.uint8).reshape(objects, 8)
    np.save(data / "rows.npy", rows)
    np.save(data / "labels.npy", labels)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put(key_of(number), rows[number].tobytes()), range(objects)))
