"""s3torchconnector in threads: the bytes of every object by its map-style dataset, nothing made of them."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from s3torchconnector import S3ClientConfig, S3MapDataset


def open_epochs(
    *, url: str, endpoint: str, key: str, secret: str, objects: int, batch: int, workers: int
) -> Callable[[], Iterator[Any]]:
    """An epoch is every object, that many threads asking."""
    os.environ |= {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
    dataset = S3MapDataset.from_prefix(
        f"{url}/",
        region="us-east-1",
        endpoint=endpoint,
        s3client_config=S3ClientConfig(force_path_style=True),
    )
    if len(dataset) != objects:
        raise SystemExit(f"{len(dataset)} objects were listed of {objects}")
    pool = ThreadPoolExecutor(workers)

    def get(number: int) -> bytes:
        data: bytes = dataset[number].read()
        return data

    def epoch() -> Iterator[Any]:
        order = np.random.default_rng().permutation(objects).tolist()
        found = pool.map(get, order)
        for at in range(0, objects, batch):
            yield [next(found) for _ in order[at : at + batch]], None

    return epoch
