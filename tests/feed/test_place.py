"""The state that a checkpoint keeps, and what a resume refuses."""

import io
from dataclasses import replace
from typing import Any

import pytest
import torch

from stoker.errors import OrderChanged, SourceChanged, StateBroken
from stoker.feed.order import Order
from stoker.feed.place import Place, State

ORDER: dict[str, Any] = {
    "length": 1000,
    "batch_size": 10,
    "seed": 5,
    "shuffle": "blocks",
    "block_size": 50,
    "limit": 700,
}


def a_state() -> State:
    return Order(**ORDER).state(Place(epoch=3, step=12), "abc")


def test_a_state_is_plain_and_comes_back() -> None:
    """Numbers and text: a checkpoint with it loads with weights_only, torch's default."""
    kept = a_state().to_json()
    assert (kept["epoch"], kept["samples"], kept["fingerprint"]) == (3, 120, "abc")
    file = io.BytesIO()
    torch.save({"feed": kept}, file)
    file.seek(0)
    assert State.from_json(torch.load(file, weights_only=True)["feed"]) == a_state()


@pytest.mark.parametrize(
    ("then", "told"),
    [
        ({"length": 900}, "taken of 900 samples, and now there are 1000: .* start without the state"),
        ({"fingerprint": "xyz"}, "with the fingerprint xyz, and now it is abc: .* bring back the data"),
    ],
)
def test_a_resume_on_changed_data_says_so(then: dict[str, Any], told: str) -> None:
    """With both lengths, or both fingerprints."""
    with pytest.raises(SourceChanged, match=told):
        Order(**ORDER).check(replace(a_state(), **then), "abc")


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({"seed": 6}, "taken with seed 5, and this order has 6: .* Give the same seed as then"),
        ({"shuffle": "full"}, "taken with shuffle 'blocks', and this order has 'full'"),
        ({"block_size": 60}, "taken with block_size 50, and this order has 60"),
        ({"group_size": 3}, "taken with group_size 16, and this order has 3"),
        ({"limit": 701}, r"selection \(subset, limit, weights, per_epoch\) '\w{16}', and this .* '\w{16}'"),
        ({"limit": None}, "this order has 'all'"),
        ({"subset": range(999)}, "selection"),
    ],
)
def test_a_resume_with_another_order_says_so(now: dict[str, Any], told: str) -> None:
    """With what it was and what it is: going on would repeat samples and miss others."""
    with pytest.raises(OrderChanged, match=told):
        Order(**ORDER | now).resume(a_state(), "abc")


def test_weights_are_a_part_of_the_order() -> None:
    """Others draw others."""
    state = Order(length=3, batch_size=1, weights=[1, 2, 3]).state(Place(), "abc")
    with pytest.raises(OrderChanged, match="selection"):
        Order(length=3, batch_size=1, weights=[1, 2, 4]).resume(state, "abc")


def test_a_state_of_another_version_is_refused() -> None:
    """Its samples came from another permutation."""
    with pytest.raises(OrderChanged, match="is of version 2 of the order, and this is version 1"):
        Order(**ORDER).check(replace(a_state(), version=2), "abc")


def test_the_batch_size_and_drop_last_may_change() -> None:
    """The resume goes on at the sample where it stopped: 120 are out, and 64 does not divide them."""
    place = Order(**ORDER | {"batch_size": 64, "drop_last": True}).resume(a_state(), "abc")
    assert place == Place(epoch=3, step=1, offset=56)


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        (None, "is a dict, not NoneType"),
        ({"epoch": 1, "step": 4}, "it lacks batch_size, block_size, .* and has step besides"),
        (a_state().to_json() | {"extra": 1}, "lacks nothing and has extra besides"),
        (a_state().to_json() | {"samples": -1}, "samples in the state is -1, not a number from 0"),
        (a_state().to_json() | {"epoch": "3"}, "epoch in the state is '3'"),
        (a_state().to_json() | {"epoch": True}, "epoch in the state is True"),
        (a_state().to_json() | {"seed": None}, "seed in the state is None, not a whole number"),
        (a_state().to_json() | {"shuffle": 0}, 'shuffle in the state is 0, not false, "full" or "blocks"'),
        (a_state().to_json() | {"block_size": 0}, "block_size in the state is 0"),
        (a_state().to_json() | {"fingerprint": 5}, "fingerprint in the state is 5, not text"),
    ],
)
def test_what_is_not_a_state_is_told(kept: Any, told: str) -> None:
    """With what is missing, unknown or wrong."""
    with pytest.raises(StateBroken, match=told):
        State.from_json(kept)


def test_a_state_beyond_the_epoch_is_told() -> None:
    """It counts more samples than there are."""
    with pytest.raises(StateBroken, match="counts 701 samples of an epoch of 700"):
        Order(**ORDER).check(replace(a_state(), samples=701), "abc")
