"""Random numbers by counting: each is computed from its key and number, none is drawn before it.

The one place for the hash behind orders, subsets and random transforms. It is SplitMix64: the word at a
counter is the mixed sum of a key and that many steps of the golden ratio, as in Java's SplittableRandom.
Plain 64-bit integers, wrapping: the same on every platform, and short enough to write again in a kernel.
"""

from hashlib import blake2b
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]

# Goes up with any edit, here or in the modules of the order, that changes which numbers come out. A state
# holds it, and golden vectors in the tests notice when it was forgotten.
VERSION = 1

# As scalars of the arrays' own type: a Python int would be converted anew in every call.
_GOLDEN, _FIRST, _SECOND = (
    np.uint64(word) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_11, _27, _30, _31 = (np.uint64(shift) for shift in (11, 27, 30, 31))


def key(seed: int, purpose: str, *more: int) -> int:
    """A key of 64 bits; another seed, purpose or number gives an unrelated one.

    >>> key(0, "full", 1) == key(0, "full", 2)
    False
    """
    words = " ".join([str(int(seed)), purpose, *(str(int(word)) for word in more)])
    return int.from_bytes(blake2b(words.encode(), digest_size=8).digest(), "little")


def as_words(numbers: NDArray[np.int64]) -> Words:
    """The same bits without a sign; from any array of integers (NumPy 1's own on Windows have 32 bits)."""
    return np.asarray(numbers, dtype=np.int64).view(np.uint64)


def bits(key: int | Words, counters: Words) -> Words:
    """64 random bits for each counter, and for each key where there are several (a column of them)."""
    if not isinstance(key, np.ndarray):
        words = counters * _GOLDEN
        words += np.uint64(key)
        return _mix(words)
    return _mix(counters * _GOLDEN + key)


def uniform(key: int, counters: NDArray[np.int64]) -> NDArray[np.float64]:
    """A random number from 0 to below 1 for each counter, in steps of 2**-53."""
    return _as_fraction(bits(key, as_words(counters)))


def draw(*, seed: int, epoch: int, samples: NDArray[np.int64], count: int = 1) -> NDArray[np.float64]:
    """`count` random numbers for each of these samples, a row each; for random transforms.

    What a sample gets depends neither on its batch, its rank nor the tier that it comes from.

    >>> rows = draw(seed=0, epoch=1, samples=np.array([5, 6, 7]), count=2)
    >>> bool((draw(seed=0, epoch=1, samples=np.array([7]), count=2) == rows[2:]).all())
    True
    """
    own = bits(key(seed, "sample", epoch), as_words(samples))
    return _as_fraction(_mix(own[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN))


def _as_fraction(words: Words) -> NDArray[np.float64]:
    return (words >> _11).astype(np.float64) * 2.0**-53


def _mix(words: Words) -> Words:
    """Every bit into every other, one to one; in place, since new arrays are much of a batch's cost."""
    words ^= words >> _30
    words *= _FIRST
    words ^= words >> _27
    words *= _SECOND
    words ^= words >> _31
    return words
