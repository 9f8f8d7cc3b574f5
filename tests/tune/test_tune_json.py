"""What `stoker tune --json` says: every key, and the unit of every figure."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from test_search import PLAIN, by_workers, search, tuned
from test_tune_report import KEPT

from stoker.tune.meaning import Probe
from stoker.tune.settings_file import as_json

TRIAL = {
    "change",
    "value",
    "kind",
    "outcome",
    "reason",
    "rate",
    "low",
    "high",
    "ratio",
    "runs",
    "predicted",
    "check",
}


def test_a_trial_has_its_rate_and_its_ratio_each_with_its_interval(tmp_path: Path) -> None:
    """Rates are in samples a second, from `low` to `high`; ratios are to the script as it is."""
    told = as_json(tuned(by_workers, tmp_path / "it"))
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert set(told) == {
        "schema", "baseline", "best", "unit", "ratio", "last_pair", "trials", "runs", "not_tried", "stopped",
        "settings",
    }  # fmt: skip
    assert (told["unit"], told["baseline"]) == ("sample", pytest.approx(800, rel=0.01))
    assert set(told["ratio"]) == {"low", "mid", "high"}
    kept = [one for one in told["trials"] if one["outcome"] == "kept"]
    assert kept[-1]["rate"] == pytest.approx(told["best"], rel=0.01)
    for one in told["trials"]:
        assert set(one) == TRIAL
        assert set(one["ratio"]) == {"low", "mid", "high"}
        assert one["low"] < one["rate"] < one["high"]
        assert one["ratio"]["low"] < one["ratio"]["mid"] < one["ratio"]["high"]
        for end in ("low", "high"):
            assert one[end] / one["rate"] == pytest.approx(one["ratio"][end] / one["ratio"]["mid"])
        assert one["rate"] == pytest.approx(one["ratio"]["mid"] * told["baseline"], rel=0.02)
        # How large the samples are was not measured here, so whether memory can hold them is not known.
        assert (one["predicted"] is None) == (one["change"] == "feed")
        if one["predicted"] is not None:
            assert set(one["predicted"]) == {"low", "mid", "high"}
            assert 0.3 < one["predicted"]["mid"] / one["ratio"]["mid"] < 3


def test_what_is_not_known_of_a_trial_is_null() -> None:
    """A trial that broke has no rate; of one whose interval has no end, neither end is made up."""
    told = {one["change"] + str(one["value"]): one for one in as_json(KEPT)["trials"]}
    broken, unbounded = told["pin_memoryTrue"], told["prefetch_factor4"]
    assert [broken[name] for name in ("rate", "low", "high", "ratio", "predicted", "check")] == [None] * 6
    assert unbounded["ratio"] == {"low": None, "mid": 2.35, "high": None}
    assert (unbounded["low"], unbounded["rate"], unbounded["high"]) == (None, 800 * 2.35, None)
    assert as_json(KEPT)["last_pair"] is None


def test_a_graver_kind_than_declared_is_the_kind_of_a_trial(tmp_path: Path) -> None:
    """Workers say `same`; where draws in samples differ with them they are `redraw`."""

    def probe(settings: Mapping[str, Any], seed: int, dropout: bool) -> Probe:
        return Probe(ids=[[0, 1]], batches=[9], losses=[1.1]) if settings else PLAIN

    told = as_json(tuned(by_workers, tmp_path / "it", wanted=search(), probe=probe))
    first = told["trials"][0]
    assert (first["change"], first["kind"], first["outcome"]) == ("num_workers", "redraw", "kept")
    assert first["check"]["kind"] == "redraw"
