"""Batches in parts, or of another size, in real loops nobody edited."""

import json
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stoker.changes.division import Indivisible, divide

HERE = Path(__file__).parent
MICRO = {"micro_batch": 6}
TWICE = {"batch_size": 22}
# Loops whose weights are the same, whole or in parts.
FOLLOWED: dict[str, dict[str, Any]] = {
    "plain": {},
    "SGD, one cycle": {"optimizer": "SGD", "schedule": "one cycle", "zero": "after"},
    "scaled and clipped": {"scaler": True, "clip": True},
    "clipped, module cleared": {"clip": True, "zero": "model", "schedule": "chained"},
    "checkpointed": {"checkpoint": True},
    "by epoch": {"loop": "by_epoch"},
    "skipping": {"loop": "skipping", "skips": False},
}
REFUSED = {
    "accumulating": "accumulates gradients itself",
    "ahead": "draws batches ahead",
    "anew": "next(iter(loader))",
    "twice": "more than one update with a batch",
    "clearing": "clears gradients itself",
    "closure": "calls a closure",
    "grad": "without a backward pass",
    "zipped": "several loaders feed one update",
}
JOBS: dict[str, dict[str, Any]] = {
    **{f"{name}, whole": {"changes": {}, **job} for name, job in FOLLOWED.items()},
    **{f"{name}, parts": {"changes": MICRO, **job} for name, job in FOLLOWED.items()},
    **{name: {"changes": MICRO, "loop": name, "optimizer": "SGD"} for name in REFUSED},
    "breaks, parts": {"changes": MICRO, "loop": "by_epoch", "break_at": 3},
    "skips, parts": {"changes": MICRO, "loop": "skipping", "skips": True},
    "skips, whole": {"changes": {}, "loop": "skipping", "skips": True},
    "norm": {"changes": MICRO, "norm": True},
    "sum, whole": {"changes": {}, "reduction": "sum", "optimizer": "SGD"},
    "sum": {"changes": MICRO, "reduction": "sum", "optimizer": "SGD"},
    "small": {"changes": {"micro_batch": 16}},
    "fp16": {"changes": {"autocast": "fp16", **MICRO}, "clip": True, "optimizer": "SGD"},
    "fp16, whole": {"changes": {"autocast": "fp16"}, "clip": True, "optimizer": "SGD"},
    "size": {"changes": TWICE},
    "size, one cycle": {"changes": {**TWICE, "lr_rule": "linear"}, "schedule": "one cycle"},
    "size, linear": {"changes": {**TWICE, "lr_rule": "linear"}},
    "size, sqrt": {"changes": {"lr_rule": "sqrt", "batch_size": 4}, "optimizer_first": True},
    "size, as it was": {"changes": {"batch_size": 16, "lr_rule": "linear"}},
}


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    """What came of each job."""
    done = subprocess.run(
        [sys.executable, str(HERE / "parted_loop.py")],
        input=json.dumps(list(JOBS.values())),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(JOBS, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("name", FOLLOWED)
def test_parts_make_the_weights_of_the_whole(runs: dict[str, Any], name: str) -> None:
    """After each of nine updates, of which every third is of a smaller batch; rates and schedules too."""
    whole, parts = runs[f"{name}, whole"], runs[f"{name}, parts"]
    assert len(whole["weights"]) == len(parts["weights"]) == 9
    for before, after in zip(whole["weights"], parts["weights"], strict=True):
        assert after == pytest.approx(before, rel=1e-4, abs=1e-6)
    assert parts["rates"] == whole["rates"]
    assert (parts["schedule"], parts["last_rate"]) == (whole["schedule"], whole["last_rate"])


def test_only_batches_that_train_come_in_parts(runs: dict[str, Any]) -> None:
    """Of at most six rows; those that are held out come whole, and the loader's length stays."""
    run = runs["plain, parts"]
    assert run["drawn"][:12] == [5, 5, 6, 5, 5, 6, 6, 6, -11, -11, -11, -11]
    assert run["batches"] == 3
    assert run["told"] == ["changed: 9 batches of up to 16 samples in parts of up to 6"]
    assert "micro_batch had no effect" in runs["small"]["told"][0]


@pytest.mark.parametrize(("name", "says"), REFUSED.items())
def test_loops_that_cannot_be_followed_are_refused(runs: dict[str, Any], name: str, says: str) -> None:
    """At their first update, with the reason and the lines to write instead."""
    assert says in runs[name]["error"]
    assert "for x_part, y_part in zip(x.split(6), y.split(6)):" in runs[name]["error"]


def test_a_batch_that_is_left_in_the_middle_leaves_nothing(runs: dict[str, Any]) -> None:
    """A break in the second batch: one update an epoch, and the epoch's schedule goes on."""
    run = runs["breaks, parts"]
    assert (len(run["rates"]), run["rates"]) == (3, [0.01, 0.005, 0.0025])
    assert run["told"][-1] == "2 batches were left out: the loop trained on some of their parts only"


def test_a_batch_of_which_a_part_is_skipped_is_left_out(runs: dict[str, Any]) -> None:
    """As the loop does with whole ones: as many updates, with the same weights."""
    assert len(runs["skips, parts"]["weights"]) == len(runs["skips, whole"]["weights"]) < 9
    assert runs["skips, parts"]["weights"][-1] == pytest.approx(
        runs["skips, whole"]["weights"][-1], rel=1e-4, abs=1e-6
    )


def test_batch_norm_and_sums_change_the_weights(runs: dict[str, Any]) -> None:
    """That is what the probe is for; of BatchNorm it is told."""
    assert "BatchNorm1d sees a part, not a batch" in runs["norm"]["told"][1]
    assert runs["sum"]["weights"][2] != pytest.approx(runs["sum, whole"]["weights"][2], rel=1e-2)


def test_scaled_half_precision_goes_with_parts(runs: dict[str, Any]) -> None:
    """Losses are scaled by one change and weighed by the other; gradients are unscaled once, then clipped."""
    assert len(runs["fp16"]["weights"]) == len(runs["fp16, whole"]["weights"])
    assert runs["fp16"]["weights"][-1] == pytest.approx(runs["fp16, whole"]["weights"][-1], abs=1e-3)


def test_a_batch_size_is_there_from_the_start(runs: dict[str, Any]) -> None:
    """Schedules made of the loader's length end where they should; others than shuffled ones keep theirs."""
    run = runs["size"]
    assert (run["batches"], run["schedule"], run["last_rate"]) == (2, 6, pytest.approx(0.0, abs=1e-12))
    assert run["drawn"][:6] == [22, 22, -11, -11, -11, -11]
    assert run["rates"][0] == 0.01
    assert run["told"] == ["changed: DataLoader(TensorDataset): batch_size 16 -> 22"]


def test_rates_follow_by_the_rule(runs: dict[str, Any]) -> None:
    """Before a scheduler reads them, whichever is made first; a scheduler's own rates too."""
    assert runs["size, linear"]["rates"][0] == pytest.approx(0.01 * 22 / 16)
    assert runs["size, sqrt"]["rates"][0] == pytest.approx(0.005)
    assert runs["size, sqrt"]["last_rate"] == pytest.approx(0.0, abs=1e-12)
    assert runs["size, one cycle"]["rates"][0] == pytest.approx(0.05 * 22 / 16 / 25)
    assert "changed: OneCycleLR: max_lr 0.05 times 1.375" in runs["size, one cycle"]["told"]
    assert "changed: AdamW: lr 0.01 -> 0.01375 (linear)" in runs["size, linear"]["told"]


def test_a_rule_without_a_change_is_said(runs: dict[str, Any]) -> None:
    """The batch size is the script's own."""
    told = runs["size, as it was"]["told"]
    assert "had no effect: no loader was made that shuffles" in told[0]
    assert told[1] == "lr_rule = 'linear' had no effect: no batch size was changed"


# --- a batch divided ----------------------------------------------------------------------------------------

Named = namedtuple("Named", "x y")


def test_all_of_a_sample_stays_together() -> None:
    """In tensors, arrays, lists, named tuples and dicts; what is the whole batch's is in each part."""
    batch = {
        "pair": Named(torch.arange(5), np.arange(5) * 10),
        "names": list("abcde"),
        "size": (3, 4),
        "scale": torch.tensor(2.0),
    }
    *_, (part, samples) = divide(batch, 2)
    assert samples == 2
    assert (part["pair"].x.tolist(), part["pair"].y.tolist()) == ([3, 4], [30, 40])
    assert (part["names"], part["size"], float(part["scale"])) == (["d", "e"], (3, 4), 2.0)


def test_images_in_a_list_are_samples() -> None:
    """Even three of three channels, beside a target each; two fields of two rows are fields."""
    images, targets = divide(([torch.zeros(3, 2, 2)] * 3, [{"boxes": torch.zeros(7, 4)}] * 3), 2)[1][0]
    assert (len(images), len(targets)) == (2, 2)
    x, y = divide([torch.zeros(2, 3), torch.zeros(2)], 1)[1][0]
    assert (x.shape, y.shape) == ((1, 3), (1,))


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ({"nodes": torch.zeros(9, 2), "edges": torch.zeros(4, 2)}, "4 and 9 rows"),
        ([torch.zeros(9), [{"boxes": torch.zeros(3)}]], "a tensor of 3 rows"),
        (object(), "builtins.object"),
        ("a word", "no tensor"),
    ],
)
def test_what_cannot_be_divided_is_said(batch: Any, says: str) -> None:
    """With what stands in the way."""
    with pytest.raises(Indivisible, match=says):
        divide(batch, 2)
