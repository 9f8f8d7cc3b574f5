"""Changes put over a real training loop: each is of the kind that it says, and meets what it is for."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker import changes
from stoker.errors import UsageError

HERE = Path(__file__).parent
WORKERS = {"num_workers": 2}
# Losses so small that none overflows as it is scaled, and each update is clipped.
SMALL = {"images": True, "weight": 0.01, "clip": 0.01}
JOBS: dict[str, dict[str, Any]] = {
    "plain": {"changes": {}},
    "workers": {"changes": {"num_workers": 2, "prefetch_factor": 1}},
    "no workers": {"changes": {"num_workers": 0}, "loader": {"num_workers": 2, "persistent_workers": True}},
    "persistent": {"changes": {"persistent_workers": True}, "loader": WORKERS, "epochs": 3},
    "not persistent": {"changes": {}, "loader": WORKERS, "epochs": 3},
    "persistent, shifted": {
        "changes": {"persistent_workers": True},
        "loader": WORKERS,
        "epochs": 3,
        "shifted": True,
    },
    "not persistent, shifted": {"changes": {}, "loader": WORKERS, "epochs": 3, "shifted": True},
    "forkserver": {"changes": {"start_method": "forkserver"}, "loader": {"num_workers": 1}, "epochs": 1},
    "random": {"changes": {}, "random": True},
    "random, workers": {"changes": {"num_workers": 2}, "random": True},
    "threads": {"changes": {"worker_threads": 3}, "loader": WORKERS},
    "stream": {"changes": {"num_workers": 2}, "stream": True},
    "bf16": {"changes": {"autocast": "bf16", "channels_last": True}, "images": True},
    "bf16, frozen": {"changes": {"autocast": "bf16", "gc_freeze": True}, "images": True},
    "images": {"changes": {}, "images": True},
    "fp16": {"changes": {"autocast": "fp16"}, "images": True, "clip": 0.5},
    "images, clipped": {"changes": {}, "images": True, "clip": 0.5},
    "one epoch": {"changes": {}, "epochs": 1},
    "fp16, overflow": {"changes": {"autocast": "fp16"}, "images": True, "weight": 1e36, "epochs": 1},
    "fp16, closure": {"changes": {"autocast": "fp16"}, "images": True, "closure": True},
    "fused": {"changes": {"fused_optimizer": True}, "optimizer": "AdamW"},
    "not fused": {"changes": {}, "optimizer": "AdamW"},
    "frozen": {"changes": {"gc_freeze": True}},
    "backends": {"changes": {"tf32": True, "cudnn_benchmark": True}, "sets_backends": True, "epochs": 1},
    "backends as they are": {"changes": {}, "sets_backends": True, "epochs": 1},
    "fp16, whole": {"changes": {"autocast": "fp16"}, **SMALL},
    "fp16, two optimizers": {"changes": {"autocast": "fp16"}, "second": True, **SMALL},
    "fp16, in parts": {"changes": {"autocast": "fp16", "micro_batch": 3}, **SMALL},
    "in parts, fp16, two optimizers": {
        "changes": {"micro_batch": 3, "autocast": "fp16"},
        "second": True,
        **SMALL,
    },
    "in parts, fp16": {"changes": {"micro_batch": 3, "autocast": "fp16"}, **SMALL},
}


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    """What came of each job."""
    done = subprocess.run(
        [sys.executable, str(HERE / "loops.py")],
        input=json.dumps(list(JOBS.values())),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(JOBS, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize(
    ("name", "beside"),
    [
        ("workers", "plain"),
        ("no workers", "plain"),
        ("forkserver", "one epoch"),
        ("frozen", "plain"),
        ("threads", "plain"),
    ],
)
def test_same_is_the_same(runs: dict[str, Any], name: str, beside: str) -> None:
    """The same samples in the same order and bit-identical losses and weights, dropout included."""
    for part in ("ids", "losses", "weights"):
        assert runs[name][part] == runs[beside][part]


def test_persistent_workers_are_started_anew_once_the_dataset_is_changed(runs: dict[str, Any]) -> None:
    """Else they would go on with the dataset of the first epoch; after that they live on again."""
    kept, new = runs["persistent, shifted"], runs["not persistent, shifted"]
    assert (kept["ids"], kept["losses"]) == (new["ids"], new["losses"])
    assert new["losses"] != runs["not persistent"]["losses"]
    assert kept["readers"][0] != kept["readers"][1] == kept["readers"][2]


@pytest.mark.parametrize("name", ["frozen", "bf16", "bf16, frozen"])
def test_a_scripts_own_step_hook_is_called_in_every_step(runs: dict[str, Any], name: str) -> None:
    """Beside those of changes, which have something to do in a few steps only."""
    assert runs[name]["hooked"] == len(runs[name]["losses"]) == 24


def test_persistent_workers_shuffle_as_new_ones_would(runs: dict[str, Any]) -> None:
    """They draw one seed less an epoch by themselves, and all later shuffles would differ."""
    kept, new = runs["persistent"], runs["not persistent"]
    assert (kept["ids"], kept["losses"]) == (new["ids"], new["losses"])
    assert kept["readers"][0] == kept["readers"][2]
    assert not set(new["readers"][0]) & set(new["readers"][2])


def test_a_random_dataset_is_redrawn(runs: dict[str, Any]) -> None:
    """The same samples in the same order; what is drawn inside them differs.

    For an epoch: in the main process its draws move the next shuffle.
    """
    assert runs["random, workers"]["ids"][:96] == runs["random"]["ids"][:96]
    assert runs["random, workers"]["losses"] != runs["random"]["losses"]


def test_only_loaders_that_train_are_altered(runs: dict[str, Any]) -> None:
    """The held-out rows are still read by the training process."""
    run = runs["workers"]
    assert all(len(readers) == 2 and run["here"] not in readers for readers in run["readers"])
    assert run["held_out"] == [run["here"]]
    assert run["told"] == ["changed: DataLoader(Rows): num_workers 0 -> 2, prefetch_factor None -> 1"]
    assert runs["no workers"]["readers"] == [[runs["no workers"]["here"]]] * 2


def test_an_iterable_dataset_keeps_its_workers(runs: dict[str, Any]) -> None:
    """Each worker would read all of it; that is said."""
    assert runs["stream"]["ids"] == [*range(96), *range(96)]
    assert "left alone: num_workers: an IterableDataset" in runs["stream"]["told"][0]


def test_workers_compute_with_as_many_threads_as_told(runs: dict[str, Any]) -> None:
    """And with one, torch's own choice, where nothing is told."""
    assert runs["threads"]["threads"] == [3]
    assert runs["not persistent"]["threads"] == [1]


def test_autocast_computes_in_half_and_returns_whole(runs: dict[str, Any]) -> None:
    """Inside it is bfloat16 with channels last; losses stay near those of float32."""
    assert runs["bf16"]["seen"] == ["torch.bfloat16 True"]
    assert runs["images"]["seen"] == ["torch.float32 False"]
    assert runs["bf16"]["losses"] == pytest.approx(runs["images"]["losses"], rel=0.05)
    assert runs["bf16"]["losses"] != runs["images"]["losses"]


def test_scaled_losses_train_as_unscaled_ones(runs: dict[str, Any]) -> None:
    """Gradients are unscaled (by 65,536 and less) before they are clipped, and before the step.

    The first steps overflow and are left out, until the scale is small enough.
    """
    assert runs["fp16"]["seen"][0].startswith("torch.float16")
    assert runs["fp16"]["norm"] == pytest.approx(runs["images, clipped"]["norm"], rel=0.2)
    assert runs["fp16"]["losses"][-1] == pytest.approx(runs["images, clipped"]["losses"][-1], rel=0.2)
    assert runs["fp16"]["losses"] != runs["images, clipped"]["losses"]


@pytest.mark.parametrize("name", ["fp16, two optimizers", "in parts, fp16, two optimizers"])
def test_several_optimizers_have_one_scale(runs: dict[str, Any], name: str) -> None:
    """It is updated when all have stepped: what one of them met is nothing that others unscale by."""
    assert runs[name]["weights"] == pytest.approx(runs["fp16, whole"]["weights"], rel=0, abs=1e-4)


@pytest.mark.parametrize("name", ["fp16, in parts", "in parts, fp16"])
def test_scaled_losses_of_parts_train_as_those_of_batches(runs: dict[str, Any], name: str) -> None:
    """Whichever is named first: all parts are unscaled together, once, and then clipped."""
    assert runs[name]["weights"] == pytest.approx(runs["fp16, whole"]["weights"], rel=0, abs=1e-4)
    assert runs[name]["norm"] == pytest.approx(runs["fp16, whole"]["norm"], rel=0.01)
    assert runs[name]["norm"] > 0.01
    assert "24 batches of up to 8 samples in parts of up to 3" in " ".join(runs[name]["told"])


def test_backends_are_set_over_what_a_script_sets(runs: dict[str, Any]) -> None:
    """Scripts do so while they begin, which is after changes are put in place."""
    assert runs["backends as they are"]["backends"] == ["highest", False, False]
    assert runs["backends"]["backends"] == ["high", True, True]


def test_steps_whose_gradients_overflow_are_left_out(runs: dict[str, Any]) -> None:
    """Weights stay finite: no step of infinities is made."""
    assert all(abs(weight) < 1e6 for weight in runs["fp16, overflow"]["weights"])


def test_a_closure_with_scaled_losses_is_refused(runs: dict[str, Any]) -> None:
    """It says so, and what to take."""
    assert "take autocast = 'bf16'" in runs["fp16, closure"]["error"]


def test_a_fused_optimizer_gives_nearly_the_same(runs: dict[str, Any]) -> None:
    """Other rounding, and no more."""
    assert (runs["fused"]["fused"], runs["not fused"]["fused"]) == (True, None)
    assert runs["fused"]["losses"] == pytest.approx(runs["not fused"]["losses"], rel=1e-4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[changes]\nnum_worker = 2", "did you mean num_workers?"),
        ("[changes]\nnum_workers = 'two'", "a whole number from 0 to 1024"),
        ("[changes]\nnum_workers = true", "a whole number from 0 to 1024"),
        ("[changes]\nautocast = 'int8'", "one of bf16, fp16"),
        ("changes = 3", "write a table"),
        ("[changes", "is not TOML"),
    ],
)
def test_bad_settings_are_refused(tmp_path: Path, text: str, says: str) -> None:
    """With what is wrong and what it may be."""
    path = tmp_path / "stoker.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=says.replace("?", r"\?")):
        changes.from_file(path)


def test_no_settings_are_said(tmp_path: Path) -> None:
    """The path is named."""
    with pytest.raises(UsageError, match=r"no settings at .*nowhere\.toml"):
        changes.from_file(tmp_path / "nowhere.toml")


def test_what_cannot_be_had_here_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the script begins."""
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    path = tmp_path / "stoker.toml"
    path.write_text("[changes]\npin_memory = true")
    with pytest.raises(UsageError, match="no accelerator to copy to; take it out"):
        changes.from_file(path)


def test_every_change_is_in_the_catalogue() -> None:
    """A file each, under its id or a name near it."""
    files = {path.stem for path in Path(changes.__file__).parent.glob("*.py")}
    parts = {
        "__init__",
        "applied",
        "backends",
        "catalogue",
        "change",
        "division",
        "held",
        "loader_classes",
        "loaders",
        "models",
        "parts",
        "settings",
        "table",
    }
    named = {"compile": "compiled", "feed": "feed_tier"}
    assert {named.get(name, name) for name in changes.ALL} == files - parts


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[change]\nnum_workers = 2", r"\[change\] is read by nothing; did you mean \[changes\]"),
        ("[Changes]\nnum_workers = 2", r"did you mean \[changes\]"),
        ("[changes]\n[memroy]\npeak_bytes = 2", r"did you mean \[memory\]"),
        ("num_workers = 2", r"num_workers stands in no table: write \[changes\]"),
        ("[changes]\nnum_worker = 2", "no change 'num_worker'"),
        ("[changes]\nnum_workers = 'two'", "change num_workers = 'two': give a whole number"),
    ],
)
def test_settings_that_would_do_nothing_are_refused_by_their_file(
    tmp_path: Path, text: str, says: str
) -> None:
    """A table, a change or a value that is misspelt; each error names the file that is to be mended."""
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=rf"mine\.toml: .*{says}"):
        changes.read(path)


def test_tables_of_others_are_left_to_them(tmp_path: Path) -> None:
    """What is nothing like a table of Stoker's is no mistake."""
    path = tmp_path / "stoker.toml"
    path.write_text("[changes]\nnum_workers = 2\n[memory]\npeak_bytes = 5\n[model]\nwidth = 3\n[charts]\n")
    assert changes.read(path) == {"num_workers": 2}
