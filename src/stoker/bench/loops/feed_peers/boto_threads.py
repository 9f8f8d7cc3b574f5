"""boto3 in threads: the bytes of every object, nothing made of them."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import boto3
import numpy as np
from botocore.config import Config


def open_epochs(
    *, url: str, endpoint: str, key: str, secret: str, objects: int, batch: int, workers: int
) -> Callable[[], Iterator[Any]]:
    """An epoch is every object, that many threads asking."""
    place = urlsplit(url)
    bucket, prefix = place.netloc, place.path.strip("/")
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        region_name="us-east-1",
        config=Config(max_pool_connections=workers, s3={"addressing_style": "path"}),
    )
    pool = ThreadPoolExecutor(workers)

    def get(number: int) -> bytes:
        data: bytes = client.get_object(Bucket=bucket, Key=f"{prefix}/{number:06d}")["Body"].read()
        return data

    def epoch() -> Iterator[Any]:
        order = np.random.default_rng().permutation(objects).tolist()
        found = pool.map(get, order)
        for at in range(0, objects, batch):
            yield [next(found) for _ in order[at : at + batch]], None

    return epoch
