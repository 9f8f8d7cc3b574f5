"""What of bringing gradients together is felt, from a record whose ranks did so already."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.doctor.scale import Load, Outlook, foresee
from stoker.doctor.scale_links import Links, links_of

BYTES, SECONDS = st.floats(0, 1e11), st.floats(0, 2)
SPEEDS = st.floats(1e8, 1e12)
COUNTS = st.integers(1, 2048)


def rank(gradients: float, backward: float) -> Load:
    """One rank that computes 50 ms beside its backward pass, alone."""
    return Load(
        ranks=1, samples=50, busy=(backward + 0.05,) * 40, other=0.0, backward=backward, spread=0.0,
        workers=4, read=0.0, prepare=0.0, cpu=0.0, make_cpu=0.0, sample_bytes=1.0, set_bytes=1e3,
        gradient_bytes=gradients,
    )  # fmt: skip


def links(**told: float) -> Links:
    return links_of({"per_node": 8, "store": 1e15, "nic": 1e15, "gets": 1e15, "latency": 1e-9, **told}, {})


def recorded(load: Load, known: Links, ranks: int) -> Load:
    """The record that so many ranks leave which do exactly what is predicted of them."""
    felt = foresee(load, known, "store", ranks).parts["gradients"]
    busy = tuple(one + felt for one in load.busy)
    return replace(load, ranks=ranks, busy=busy, backward=load.backward + felt)


def own(seen: Outlook) -> float:
    return sum(seen.parts[name] for name in ("compute", "slowest", "gradients"))


def test_what_a_record_hid_is_not_taken_from_what_is_felt() -> None:
    """1 GB of gradients: 8 ranks hide all but a bucket, 64 take 210 ms of which a pass of 100 hides 100."""
    known, alone = links_of({}, {"per_node": 8}), rank(1e9, 0.1)
    eight = recorded(alone, known, 8)
    felt = 2 * (7 / 8) * 1e9 / 25e9 * 25 * 2**20 / 1e9
    assert eight.backward == pytest.approx(0.1 + felt)
    assert foresee(alone, known, "store", 64).parts["gradients"] == pytest.approx(0.11)
    assert foresee(eight, known, "store", 64).parts["gradients"] == pytest.approx(0.11 - felt)


@given(
    gradients=BYTES, backward=SECONDS, peer=SPEEDS, fabric=SPEEDS, per_node=st.integers(1, 16), ranks=COUNTS,
    more=COUNTS,
)  # fmt: skip
def test_a_record_of_any_ranks_foretells_what_one_of_one_does(
    gradients: float, backward: float, peer: float, fabric: float, per_node: int, ranks: int, more: int
) -> None:
    """Where ranks do what was predicted of them, more of them are predicted the same from either record."""
    known = links(peer=peer, fabric=fabric, per_node=per_node)
    alone = rank(gradients, backward)
    several = recorded(alone, known, ranks)
    gpus = max(ranks, more)
    assert own(foresee(several, known, "store", gpus)) == pytest.approx(
        own(foresee(alone, known, "store", gpus)), rel=1e-6
    )
    assert foresee(several, known, "store", ranks).parts["gradients"] == 0


@given(gradients=BYTES, backward=SECONDS, peer=SPEEDS, fabric=SPEEDS, ranks=COUNTS, more=COUNTS)
def test_the_bounds_hold_whatever_the_record_s_backward_pass_was(
    gradients: float, backward: float, peer: float, fabric: float, ranks: int, more: int
) -> None:
    """Also where it was shorter than its links could have brought the gradients together in."""
    known = links(peer=peer, fabric=fabric)
    seen = foresee(replace(rank(gradients, backward), ranks=ranks), known, "store", max(ranks, more))
    assert seen.rate is not None
    assert seen.rate.low <= seen.rate.mid * (1 + 1e-9)
    assert seen.rate.mid <= seen.rate.high * (1 + 1e-9)
    fewer = foresee(replace(rank(gradients, backward), ranks=ranks), known, "store", min(ranks, more))
    assert fewer.parts["gradients"] == 0
