"""obstore as it is, in threads: the bytes of every object, nothing made of them."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import obstore


def open_epochs(
    *, url: str, endpoint: str, key: str, secret: str, objects: int, batch: int, workers: int
) -> Callable[[], Iterator[Any]]:
    """An epoch is every object, that many threads asking."""
    store = obstore.store.from_url(
        url,
        config={
            "endpoint": endpoint,
            "access_key_id": key,
            "secret_access_key": secret,
            "region": "us-east-1",
        },
        client_options={"allow_http": True},
    )
    pool = ThreadPoolExecutor(workers)

    def get(number: int) -> Any:
        return store.get(f"{number:06d}").bytes()  # in its own memory: a copy would cost it a tenth

    def epoch() -> Iterator[Any]:
        order = np.random.default_rng().permutation(objects).tolist()
        found = pool.map(get, order)
        for at in range(0, objects, batch):
            yield [next(found) for _ in order[at : at + batch]], None

    return epoch
