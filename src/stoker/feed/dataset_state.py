"""A digest of what a dataset is made of: its classes' text and what its objects hold.

For a cache that outlives the run. A dataset with another size to crop to, another list of files or another
line in its `__getitem__` is another one. Data that changed in its files is not seen by this.
"""

import hashlib
from typing import Any

from stoker.feed.sources.torch import unwrapped
from stoker.feed.value_digest import class_text, take_in


def state_digest(dataset: Any) -> str:
    """Hexadecimal digits; the same for the same dataset in another run, as far as it can be pickled."""
    hashed = hashlib.sha256()
    for inner in unwrapped(dataset):
        for kind in type(inner).__mro__:
            hashed.update(class_text(kind).encode())
    take_in(hashed.update, dataset)
    return hashed.hexdigest()
