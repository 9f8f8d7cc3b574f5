"""What many GPUs would be fed by, from what one rank asks for: the model, by cases worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.doctor.scale import WAYS, Load, caches_needed, first_ceiling, foresee, slowest_of
from stoker.doctor.scale_links import Links, links_of, parse
from stoker.errors import UsageError

# A step of 100 ms with 50 samples of 1 MB: 500 samples/s and 500 MB/s a rank. Gradients of 100 MB.
RANK = Load(
    ranks=1,
    samples=50,
    busy=(0.1,) * 40,
    other=0.0,
    backward=0.06,
    spread=0.0,
    workers=4,
    read=0.001,
    prepare=0.001,
    from_network=True,
    cpu=0.02,
    make_cpu=0.0005,
    sample_bytes=1e6,
    set_bytes=1e12,
    gradient_bytes=100e6,
)


def links(**told: float) -> Links:
    given = {"per_node": 8, "cores": 64, "ram_room": 500e9, "vram_room": 50e9, "fabric": 400e9, "peer": 400e9}
    return links_of({**given, "gets": 1e9, **told}, {})


def parts(load: Load, known: Links, way: str, gpus: int) -> dict[str, float]:
    return dict(foresee(load, known, way, gpus).parts)


def test_the_store_is_shared_by_all_and_a_node_s_network_by_its_own() -> None:
    """64 ranks ask 32 GB/s of a store of 10, 8 of them 4 GB/s of a node's 5."""
    seen = foresee(RANK, links(store=10e9, nic=5e9), "store", 64)
    assert seen.parts["store"] == pytest.approx(64 * 50e6 / 10e9)
    assert seen.parts["nic"] == pytest.approx(8 * 50e6 / 5e9)
    assert seen.limit == "store"
    assert seen.rate is not None
    assert seen.rate.mid == pytest.approx(10e9 / 1e6)
    assert seen.of_linear == pytest.approx(10_000 / (64 * 500))


def test_requests_are_a_ceiling_of_their_own() -> None:
    """Of small samples a store answers no more than so many."""
    seen = foresee(RANK, links(store=1e15, gets=2000), "store", 8)
    assert seen.limit == "gets"
    assert seen.rate is not None
    assert seen.rate.mid == pytest.approx(2000)


def test_ranks_that_are_fed_scale_with_their_number() -> None:
    """With room everywhere a step waits for computing alone, and stays as long as it was."""
    seen = foresee(RANK, links(store=1e15, nic=1e15, fabric=1e15, peer=1e15), "store", 1024)
    assert seen.limit == "compute"
    assert seen.of_linear == pytest.approx(1.0, rel=1e-3)


def test_workers_and_cores_are_ceilings_of_a_rank_and_of_a_node() -> None:
    """4 workers at 2 ms a sample make 2,000 a second; 8 ranks on 4 cores have half a core each."""
    plenty = {"store": 1e15, "nic": 1e15}
    slow = replace(RANK, read=0.007)
    assert parts(slow, links(**plenty), "store", 8)["workers"] == pytest.approx(50 * 0.008 / 4)
    busy = parts(RANK, links(**plenty, cores=4), "store", 8)
    assert busy["cores"] == pytest.approx(8 * (0.02 + 50 * 0.0005) / 4)
    assert foresee(RANK, links(**plenty, cores=1), "store", 8).limit == "cores"


def test_a_loop_that_makes_its_own_batches_overlaps_nothing() -> None:
    """Without workers a step is computing and making, one after the other."""
    alone = replace(RANK, workers=0)
    made = parts(alone, links(store=1e15), "store", 1)
    assert made["workers"] == pytest.approx(0.1 + 50 * 0.002)


def test_gradients_hide_behind_the_backward_pass_but_for_the_last_bucket() -> None:
    """Over a fast link only the last bucket's part is felt, over a slow one what is longer than the pass."""
    known = links(store=1e15, nic=1e15, fabric=10e9)
    fast = parts(RANK, known, "store", 16)["gradients"]
    moved = 2 * (7 / 8) * 100e6 / 400e9 + 2 * (1 / 2) * 100e6 / 10e9
    assert fast == pytest.approx(moved * 25 * 2**20 / 100e6)
    slow = foresee(RANK, links(store=1e15, nic=1e15, fabric=1e9), "store", 16)
    assert slow.parts["gradients"] == pytest.approx(2 * (7 / 8) * 100e6 / 400e9 + 0.1 - 0.06)
    assert slow.limit == "gradients"
    assert slow.rate is not None
    assert slow.rate.mid == pytest.approx(16 * 50 / (0.1 + slow.parts["gradients"]))


def test_without_a_network_of_their_own_gradients_load_the_one_for_samples() -> None:
    """Both are counted on it."""
    told = {"per_node": 8.0, "cores": 64.0, "gets": 1e9, "nic": 10e9}
    both = parts(RANK, links_of(told, {}), "store", 16)["nic"]
    assert both == pytest.approx(8 * 50e6 / 10e9 + 2 * (1 / 2) * 100e6 / 10e9)


def test_a_set_too_large_for_one_place_is_sharded_over_all() -> None:
    """1 TB: a copy on each node's disks of 2 TB; of 0.5 TB each, half lies on the other of two nodes."""
    copied = foresee(RANK, links(disk=10e9, disk_room=2e12), "disk", 16)
    assert "nic" not in copied.parts
    sharded = foresee(RANK, links(disk=10e9, disk_room=0.5e12, nic=10e9), "disk", 16)
    assert sharded.parts["nic"] == pytest.approx(0.5 * 8 * 50e6 / 10e9)
    assert sharded.parts["disk"] == copied.parts["disk"]
    assert foresee(RANK, links(), "ram", 64).how == "sharded over the memory of 8 nodes"
    assert foresee(RANK, links(), "vram", 64).how == "sharded over 64 cards, exchanged"


def test_what_does_not_fit_anywhere_has_no_rate() -> None:
    """8 cards with 50 GB of room do not hold 1 TB: said, and not predicted."""
    seen = foresee(RANK, links(), "vram", 8)
    assert (seen.rate, seen.limit) == (None, None)
    assert "931 GiB do not fit 8 x 46.6 GiB" in seen.how


def test_samples_held_decoded_take_the_room_that_they_take_then() -> None:
    """Ten times as large in memory: what fitted two nodes needs twenty."""
    assert foresee(RANK, links(), "ram", 16).rate is not None
    assert foresee(RANK, links(held=10e6), "ram", 16).rate is None


@pytest.mark.parametrize("name", ["sample_bytes", "gradient_bytes"])
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_predicted_from_what_was_not_measured(name: str, way: str) -> None:
    """No rate, and the reason with what to do."""
    blind: Any = {name: None, "missing": {name: "give --link it=1MB"}}
    seen = foresee(replace(RANK, **blind), links(), way, 64)
    assert seen.rate is None
    assert seen.how == f"{name} not known: give --link it=1MB"


def test_one_gpu_needs_no_gradients() -> None:
    """There is nobody to bring them together with."""
    assert foresee(replace(RANK, gradient_bytes=None), links(store=1e15), "store", 1).rate is not None


def test_the_slowest_of_many_is_slower_than_the_mean() -> None:
    """Of two ranks whose steps take 1 or 3, three in four wait for a 3; of one, the mean."""
    assert slowest_of([1.0, 3.0], 1) == pytest.approx(2.0)
    assert slowest_of([3.0, 1.0], 2) == pytest.approx(2.5)
    assert slowest_of([1.0, 3.0], 1000) == pytest.approx(3.0)


def test_a_record_of_several_ranks_has_waited_for_the_slowest_already() -> None:
    """Twice as many ranks as in the record are slowed as one is by a second."""
    uneven = replace(RANK, busy=(0.1, 0.3), backward=0.0, gradient_bytes=0.0)
    four = foresee(replace(uneven, ranks=4), links(), "store", 8)
    assert four.parts["slowest"] == pytest.approx(slowest_of([0.1, 0.3], 2) - 0.2)
    assert four.limit == "slowest"


def test_the_interval_holds_the_prediction_and_widens_with_what_is_not_tried() -> None:
    """More ranks, more doubt; never faster than ranks that wait for nothing."""
    known = links(store=1e15, nic=1e15)
    rates = [foresee(RANK, known, "store", gpus).rate for gpus in (1, 8, 64, 1024)]
    shares = []
    for gpus, rate in zip((1, 8, 64, 1024), rates, strict=True):
        assert rate is not None
        assert rate.low <= rate.mid <= rate.high <= gpus * RANK.alone * (1 + 1e-9)
        shares.append(rate.low / rate.mid)
    assert shares == sorted(shares, reverse=True)


def test_the_first_ceiling_is_where_a_step_begins_to_wait() -> None:
    """A store of 5 GB/s feeds 10 ranks of 500 MB/s; nodes are whole, so 16 are the first that wait."""
    known = links(store=5e9, nic=1e15)
    assert first_ceiling(RANK, known, "store") == (16, "store")
    assert foresee(RANK, known, "store", 8).limit == "compute"
    assert first_ceiling(RANK, replace(known, store=1.2e9), "store") == (3, "store")
    assert first_ceiling(RANK, replace(known, store=1e15, fabric=1e15), "store") is None


def test_cache_nodes_are_counted_for_what_the_ranks_ask() -> None:
    """64 ranks ask some 32 GB/s: at 3 GB/s of disk each, eleven."""
    known = links(nic=12.5e9, disk=3e9, fabric=1e15, peer=1e15)
    assert caches_needed(RANK, known, 64) == 11
    assert foresee(RANK, replace(known, cache_nodes=11), "cache", 64).limit == "compute"
    assert foresee(RANK, replace(known, cache_nodes=10), "cache", 64).limit == "cache"
    assert caches_needed(replace(RANK, sample_bytes=None), known, 64) is None


def test_what_cache_nodes_cannot_hold_comes_from_the_store() -> None:
    """2 nodes with room for 200 GB each hold 40% of 1 TB: the rest asks the store, in requests and time."""
    known = links(cache_nodes=2, disk_room=200e9, store=10e9, gets=2000, near=0.004, nic=1e15)
    seen = foresee(RANK, known, "cache", 64)
    assert seen.how == "2 cache nodes, 8 GPU nodes; they hold 40% of the set, the rest is from the store"
    assert seen.parts["cache"] == pytest.approx(0.4 * 64 * 50e6 / (2 * 3e9))
    assert seen.parts["store"] == pytest.approx(0.6 * 64 * 50e6 / 10e9)
    assert seen.parts["gets"] == pytest.approx(0.6 * 64 * 50 / 2000)
    assert seen.parts["workers"] == pytest.approx(50 * (0.4 * 0.004 + 0.6 * 0.001 + 0.001) / 4)
    assert seen.limit == "gets"
    held = foresee(RANK, replace(known, disk_room=500e9), "cache", 64)
    assert held.how == "2 cache nodes, 8 GPU nodes"
    assert not {"store", "gets"} & set(held.parts)


def test_caches_for_a_set_of_unknown_size_are_not_predicted() -> None:
    """Nobody knows whether it fits them."""
    blind = replace(RANK, set_bytes=None, missing={"set_bytes": "give --link set=150GB"})
    assert foresee(blind, links(), "cache", 64).how == "set_bytes not known: give --link set=150GB"
    assert caches_needed(blind, links(), 64) is None


@given(
    size=st.floats(1e6, 1e16), room=st.floats(1e9, 1e14), disk=st.floats(1e8, 1e11),
    gpus=st.integers(1, 2048),
)  # fmt: skip
def test_the_cache_nodes_that_are_needed_hold_the_set_and_are_not_waited_for(
    size: float, room: float, disk: float, gpus: int
) -> None:
    """By room and by what they give; and one fewer is too few."""
    load, known = replace(RANK, set_bytes=size), links(disk=disk, disk_room=room, nic=1e15)
    count = caches_needed(load, known, gpus)
    assert count is not None
    seen = foresee(load, replace(known, cache_nodes=count), "cache", gpus)
    own = sum(seen.parts[name] for name in ("compute", "slowest", "gradients"))
    assert "store" not in seen.parts
    assert seen.parts["cache"] <= own * (1 + 1e-9)
    if count > 1:
        fewer = foresee(load, replace(known, cache_nodes=count - 1), "cache", gpus).parts
        assert "store" in fewer or fewer["cache"] > own * (1 - 1e-9)


# --- links as they are typed ------------------------------------------------------------------------------


def test_links_are_read_in_the_units_they_are_sold_in() -> None:
    """Bits and bytes, thousands and 1,024s, milliseconds, counts."""
    typed = "nic=100Gbit/s store=5GB/s disk_room=2TiB latency=25ms gets=5500/s cores=96"
    told = parse(typed.split())
    assert told == {
        "nic": 12.5e9, "store": 5e9, "disk_room": 2 * 2**40, "latency": 0.025, "gets": 5500, "cores": 96,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("nick=1GB/s", "does not know 'nick=1GB/s': write NAME=VALUE with one of per_node"),
        ("nic", "does not know 'nic'"),
        ("nic=100", "nic is '100'; it is bytes/s and more than 0, like 100Gbit/s"),
        ("nic=1GB", "nic is '1GB'; it is bytes/s"),
        ("nic=0GB/s", "more than 0"),
        ("nic=-1GB/s", "nic is '-1GB/s'"),
        ("disk_room=2TB/s", "disk_room is '2TB/s'; it is bytes and"),
        ("latency=25", "latency is '25'; it is seconds and more than 0, like 25ms"),
        ("per_node=1.5", "per_node is '1.5'; it is a whole number"),
        ("nic=100Gb/s", "nic is '100Gb/s'; its b may be bits or bytes: write 100Gbit/s or 100GB/s"),
        ("nic=100gb/s", "write 100Gbit/s or 100GB/s"),
        ("disk=3.5 kib/s", "write 3.5Kibit/s or 3.5KiB/s"),
        ("disk_room=2Tb", "write 2Tbit or 2TB"),
        ("store=1b/s", "write 1bit/s or 1B/s"),
        ("disk=1Gb", "disk is '1Gb'; it is bytes/s"),
        ("per_node=1e400", "per_node is '1e400'; more than can be counted with: give a smaller one"),
        ("nic=1e400GB/s", "nic is '1e400GB/s'; more than"),
        ("nic=1e300PB/s", "nic is '1e300PB/s'; more than"),
        ("latency=1e400s", "latency is '1e400s'; more than"),
    ],
)
def test_a_link_that_is_none_is_told(word: str, said: str) -> None:
    """What is wrong, the value, and how to write it."""
    with pytest.raises(UsageError) as told:
        parse([word])
    assert said in str(told.value)


@pytest.mark.parametrize("word", ["gbit", "Gbit", "GBIT", "GBit"])
def test_a_bit_that_is_written_out_may_be_in_any_case(word: str) -> None:
    """Nothing about it is in doubt; nor about a byte's prefix."""
    assert parse([f"nic=100{word}/s", "disk=3gB/s"]) == {"nic": 12.5e9, "disk": 3e9}


def test_a_link_given_twice_is_told() -> None:
    """Neither is taken."""
    with pytest.raises(UsageError, match="nic twice"):
        parse(["nic=1GB/s", "nic=2GB/s"])


def test_what_is_told_stands_above_what_was_measured_and_that_above_what_is_assumed() -> None:
    """And each says which it is."""
    known = links_of({"cores": 96.0}, {"cores": 2.0, "per_node": 4.0, "ram_room": None})
    assert (known.cores, known.origin["cores"]) == (96.0, "told")
    assert (known.per_node, known.origin["per_node"]) == (4, "measured")
    assert (known.nic, known.origin["nic"]) == (12.5e9, "assumed")
    assert (known.ram_room, known.origin["ram_room"]) == (None, "assumed")
