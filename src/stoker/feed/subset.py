"""Which of a source's samples take part: an array of their numbers, a seeded few, or some classes."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stoker.errors import UsageError
from stoker.feed.arguments import checked_list
from stoker.feed.draws import key
from stoker.feed.permutation import permute

T = TypeVar("T", str, int)


def choose(ranks: NDArray[np.int64], length: int, seed: int) -> NDArray[np.int64]:
    """The numbers at these places of one permutation that every epoch shares: what `limit` cuts from.

    A smaller limit chooses some of what a larger one chooses.
    """
    return permute(ranks, length, key(seed, "limit"))


def choose_classes(names: Iterable[T], count: int, seed: int = 0) -> list[T]:
    """`count` of these classes, in sorted order; the same ones whatever order and however often they came.

    >>> choose_classes(["a", "b", "c", "a"], 2) == choose_classes(["c", "b", "a"], 2)
    True
    """
    known = sorted(set(names))
    if not 1 <= count <= len(known):
        raise UsageError(f"{count} classes were asked for: there are {len(known)}; take 1 to {len(known)}")
    places = permute(np.arange(count), len(known), key(seed, "classes"))
    return sorted(known[place] for place in places.tolist())


def subset_of_classes(
    labels: ArrayLike, classes: int | Sequence[str] | Sequence[int], seed: int = 0
) -> NDArray[np.int64]:
    """The numbers of all samples with these labels, ascending; for an int, of that many classes by the seed.

    >>> subset_of_classes(["a", "b", "a", "c"], ["a", "c"]).tolist()
    [0, 2, 3]
    """
    column = np.asarray(labels)
    if column.ndim != 1 or column.dtype.kind not in "iuUb":
        raise UsageError(
            f"labels of shape {column.shape} and type {column.dtype}: give an integer or text for each sample"
        )
    known: list[Any] = np.unique(column).tolist()
    if isinstance(classes, (int, np.integer)):
        wanted: list[Any] = choose_classes(known, int(classes), seed)
    else:
        wanted = checked_list("classes", classes, "names, or a number of classes")
        for name in wanted:
            if name not in known:
                raise UsageError(_unknown(name, known))
    return np.flatnonzero(np.isin(column, wanted)).astype(np.int64)


def checked_subset(subset: ArrayLike, length: int) -> NDArray[np.int64]:
    """A copy of the array as sample numbers that no one can write to."""
    try:
        numbers = np.array(subset)
    except (TypeError, ValueError, RuntimeError) as error:  # also a tensor's, on a GPU or with grad
        raise UsageError(f"a subset that is no array ({error}): give sample numbers") from None
    if numbers.dtype.kind == "b":
        raise UsageError("the subset is a mask: give the sample numbers, np.flatnonzero(mask)")
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or not numbers.size:
        raise UsageError(
            f"a subset of shape {numbers.shape} and type {numbers.dtype}: "
            "give a flat array of sample numbers, at least one"
        )
    wrong = numbers[(numbers < 0) | (numbers >= length)]
    if wrong.size:
        raise UsageError(f"the subset names sample {wrong[0]}: there are {length}, from 0 to {length - 1}")
    kept = numbers.astype(np.int64)
    kept.flags.writeable = False
    return kept


def checked_weights(weights: ArrayLike, length: int) -> NDArray[np.float64]:
    """A copy of the weights: one for each sample of the source, finite, none below 0."""
    try:
        values = np.array(weights, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"weights that are no numbers ({error}): give one number for each sample") from None
    if values.shape != (length,):
        raise UsageError(f"weights of shape {values.shape}: give one for each of the {length} samples")
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if wrong.size:
        raise UsageError(f"the weight of sample {wrong[0]} is {values[wrong[0]]}: take 0 or more, finite")
    return values


def _unknown(name: object, known: list[Any]) -> str:
    texts = [str(one) for one in known]
    near = difflib.get_close_matches(str(name), texts, n=3) or texts[:8]
    return f"no sample has the label {name!r}: of {len(known)} labels the nearest are {', '.join(near)}"
