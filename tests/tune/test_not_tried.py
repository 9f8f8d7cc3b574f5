"""What a search does not try, and says so."""

from collections.abc import Mapping
from dataclasses import replace

from test_search import STARVED, search

from stoker.doctor.verdict import reach
from stoker.tune.search import Search

# It computes on a GPU; its batches are there in time.
COMPUTES = replace(
    STARVED,
    shares={**STARVED.shares, "wait": 0.01, "forward": 0.84},
    loader=0.005,
    step=0.0101,
    process={"parameters": {"float32": 100}, "on_gpu": True},
)


def tries(variants: Mapping[str, float] | None, eliminated: Mapping[str, str]) -> tuple[set[str], list[str]]:
    """The changes that are tried of a run with these steps under each switch, and what is said of others."""
    run = replace(COMPUTES, variants=variants)
    verdict = replace(reach(run), eliminated=eliminated)
    wanted = Search(verdict=verdict, run=run, kinds=frozenset({"same", "redraw", "numerics"}))
    return {one.change for one in wanted.candidates()}, wanted.not_tried


def test_precision_that_the_doctor_measured_not_to_help_is_not_tried() -> None:
    """Each by its own steps, in the doctor's words; one that helps, or was not measured, is tried."""
    said = "a step takes 10 ms; with tf32 9.9 ms, bf16 9 ms"
    steps = {"as it is": 0.01, "tf32": 0.0099, "bf16": 0.009}
    changes, not_tried = tries(steps, {"slow-precision": said})
    assert "tf32" not in changes
    assert f"tf32: it won't help: {said}" in not_tried
    assert "autocast" in changes
    assert not any(line.startswith(("autocast: it won't", "channels_last: it won't")) for line in not_tried)


def test_precision_on_an_idle_device_is_not_tried() -> None:
    """No switch was measured, for the device is not what a step waits for."""
    changes, not_tried = tries(None, {"slow-precision": "the device is busy 20% of a step"})
    assert changes.isdisjoint({"tf32", "autocast", "channels_last"})
    told = [line for line in not_tried if line.endswith("the device is busy 20% of a step")]
    assert [line.split(":")[0] for line in told] == ["tf32", "autocast", "channels_last"]


def test_what_was_not_ruled_out_is_tried() -> None:
    """Nothing was measured."""
    assert "autocast" in tries(None, {})[0]


def test_what_is_tried_only_when_asked_is_said_with_how_to_ask() -> None:
    """In every whole search."""
    wanted = search()
    list(wanted.candidates())
    asked = [line for line in wanted.not_tried if "only when asked" in line]
    assert [line.split(": ")[0] for line in asked] == ["batch_size", 'autocast = "fp16"', "in_order"]
    assert all("[changes]" in line and "stoker run --with stoker.toml" in line for line in asked)
