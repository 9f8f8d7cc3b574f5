"""What a dataset is made of: a digest of its classes' text and what its objects hold, or its attributes.

The digest is for a cache that outlives the run. A dataset with another size to crop to, another list of files
or another line in its `__getitem__` is another one. Data that changed in its files is not seen by this.
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


def plain_attributes(dataset: Any) -> list[dict[str, Any]]:
    """What a script may change in a dataset, or in those inside it, between epochs: numbers and texts.

    Anything else is known by its place in memory alone: what is changed within it is not seen.
    """
    return [
        {name: _plain(value) for name, value in getattr(inner, "__dict__", {}).items()}
        for inner in unwrapped(dataset)
    ]


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, bytes, type(None))) else id(value)
