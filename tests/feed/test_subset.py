"""Which samples take part."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from stoker.errors import UsageError
from stoker.feed.subset import checked_subset, checked_weights, choose_classes, subset_of_classes

# How long a case takes says how busy the machine is.
untimed = settings(deadline=None)
LABELS = st.lists(st.sampled_from(["ant", "bee", "cat", "dog", "eel"]), min_size=1, max_size=40)


@untimed
@given(LABELS, st.integers(0, 100), st.data())
def test_a_number_of_classes_takes_all_their_samples(
    labels: list[str], seed: int, data: st.DataObject
) -> None:
    """So many labels, ascending, and no sample of another one; the same by name."""
    count = data.draw(st.integers(1, len(set(labels))))
    chosen = subset_of_classes(labels, count, seed)
    names = {labels[number] for number in chosen.tolist()}
    assert len(names) == count
    assert chosen.tolist() == [number for number, label in enumerate(labels) if label in names]
    assert chosen.tolist() == subset_of_classes(labels, sorted(names)).tolist()
    assert sorted(names) == choose_classes(labels, count, seed)


def test_the_classes_chosen_never_change() -> None:
    """Staged copies and runs of other days hang on it."""
    names = [f"n{number:08d}" for number in range(100)]
    assert choose_classes(names, 3, seed=7) == ["n00000041", "n00000087", "n00000090"]


def test_another_seed_chooses_others_and_fewer_are_a_part_of_more() -> None:
    """100 classes of 1,000, as ImageNet-100 is made."""
    names = range(1000)
    hundred = choose_classes(names, 100, seed=1)
    assert set(choose_classes(names, 10, seed=1)) <= set(hundred)
    assert len(set(hundred) & set(choose_classes(names, 100, seed=2))) < 40


def test_integer_labels_are_labels_too() -> None:
    """From a list, an array of any width, or a tensor."""
    for labels in ([3, 1, 3, 2], np.array([3, 1, 3, 2], dtype=np.uint8), torch.tensor([3, 1, 3, 2])):
        assert subset_of_classes(labels, [3]).tolist() == [0, 2]
        assert subset_of_classes(labels, np.int64(3)).tolist() == [0, 1, 2, 3]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("labels", "classes", "told"),
    [
        (["cat", "dog"], ["cta"], r"no sample has the label 'cta': of 2 labels the nearest are cat$"),
        (["cat", "dog"], 3, r"3 classes were asked for: there are 2; take 1 to 2"),
        (["cat", "dog"], 0, r"0 classes were asked for"),
        (["cat", "dog"], "cat", r"classes='cat' is one text: give a list, \['cat'\]"),
        ([[1, 2], [3, 4]], 1, r"labels of shape \(2, 2\) and type int64: give an integer or text for each"),
        ([0.5, 1.5], 1, r"type float64"),
    ],
)
def test_classes_that_cannot_be_are_told(labels: ArrayLike, classes: int | list[str], told: str) -> None:
    """With what was asked for and what there is."""
    with pytest.raises(UsageError, match=told):
        subset_of_classes(labels, classes)


class OnADevice:
    """As a tensor that numpy cannot read: on a GPU, or one that has a gradient."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __array__(self, *_: object, **__: object) -> None:
        raise self.error


@pytest.mark.parametrize("error", [TypeError("on cuda:0"), RuntimeError("requires grad")])
def test_what_numpy_cannot_read_is_told(error: Exception) -> None:
    """In our words, as anything else that is no array of numbers is."""
    with pytest.raises(UsageError, match=rf"a subset that is no array \({error}\): give sample numbers"):
        checked_subset(OnADevice(error), 3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=rf"weights that are no numbers \({error}\): give one number"):
        checked_weights(OnADevice(error), 3)  # type: ignore[arg-type]
