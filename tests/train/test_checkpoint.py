"""Checkpoints that appear whole, are checked, and are found again."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import Tiny, TinyConfig, plain

from stoker.errors import CheckpointBroken, TrainingFailed, UsageError
from stoker.train.checkpoint import Checkpoint, Checkpoints, read_weights
from stoker.train.config import EmaConfig, OptimizerConfig, SaveConfig, ScheduleConfig, StopConfig
from stoker.train.fit import fit
from stoker.train.folder import put_aside


def state(value: float, step: int) -> Checkpoint:
    return Checkpoint(
        model={"w": torch.full((3, 4), value), "tied": torch.full((3, 4), value)},
        mean=None,
        tensors={"optimizer": {"exp_avg": torch.ones(3), "step": step}},
        plain={"step": step},
    )


def kept(folder: Path, *steps: int, keep: int = 2) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep=keep)
    for step in steps:
        checkpoints.save(checkpoints.name_for(step), state(float(step), step))
    return checkpoints


def test_the_newest_is_found_again(tmp_path: Path) -> None:
    """With all that was saved."""
    found = kept(tmp_path, 5, 10).find_last_good()
    assert found is not None
    assert (found.folder.name, found.passed_over) == ("step-000000010", {})
    assert found.checkpoint.plain == {"step": 10}
    assert torch.equal(found.checkpoint.model["w"], torch.full((3, 4), 10.0))
    assert found.checkpoint.tensors["optimizer"]["step"] == 10


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_a_broken_newest_is_passed_over(tmp_path: Path, name: str, damage: str) -> None:
    """Whichever file, whether a byte differs, the end is missing or all of it: the last good one is taken."""
    checkpoints = kept(tmp_path, 5, 10)
    path = tmp_path / "step-000000010" / name
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif damage == "cut":
        path.write_bytes(content[:-7])
    else:
        path.unlink()
    found = checkpoints.find_last_good()
    assert found is not None
    assert found.checkpoint.plain == {"step": 5}
    assert list(found.passed_over) == ["step-000000010"]


def test_none_that_is_whole_is_an_error(tmp_path: Path) -> None:
    """To begin anew would hide that something is lost."""
    checkpoints = kept(tmp_path, 5)
    (tmp_path / "step-000000005" / "state.pt").write_bytes(b"")
    with pytest.raises(CheckpointBroken, match="begin anew with --fresh"):
        checkpoints.find_last_good()
    assert Checkpoints(tmp_path / "nothing").find_last_good() is None


def test_a_writer_that_was_killed_leaves_nothing_that_counts(tmp_path: Path) -> None:
    """Half a checkpoint has no name yet, and is removed by the next."""
    checkpoints = kept(tmp_path, 5)
    shutil.copytree(tmp_path / "step-000000005", tmp_path / ".stoker-part-0123")
    (tmp_path / ".stoker-part-0123" / "manifest.json").unlink()
    assert checkpoints.names() == ["step-000000005"]
    checkpoints.remove_parts()
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000005"]


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    """Others go; a step saved again gets a name of its own, and is the newer one."""
    checkpoints = kept(tmp_path, 1, 2, 3, 4, 4)
    checkpoints.prune("step-000000002")
    assert checkpoints.names() == ["step-000000004.1", "step-000000004", "step-000000002"]


def test_a_training_goes_on_from_the_last_good_checkpoint(tmp_path: Path) -> None:
    """It says which was broken, and ends with the weights of an undisturbed one."""
    settings = {"epochs": 2, "save": SaveConfig(every=3), "ema": EmaConfig(decay=0.9)}
    fit(Tiny(TinyConfig(train=plain(**settings))), out=tmp_path / "whole")
    fit(Tiny(TinyConfig(train=plain(**settings, max_steps=None))), out=tmp_path / "hurt")
    checkpoints = Checkpoints(tmp_path / "hurt" / "checkpoints")
    newest = tmp_path / "hurt" / "checkpoints" / checkpoints.names()[0]
    (newest / "model.safetensors").write_bytes(b"nothing")
    told: list[str] = []
    fitted = fit(Tiny(TinyConfig(train=plain(**settings))), out=tmp_path / "hurt", tell=told.append)
    assert fitted.resumed == 12
    assert any("passed over" in text and newest.name in text for text in told)
    [aside] = (tmp_path / "hurt" / "checkpoints").glob(f"broken-*-{newest.name}")
    assert (aside / "model.safetensors").read_bytes() == b"nothing"
    ends = [Checkpoints(tmp_path / name / "checkpoints").find_last_good() for name in ("whole", "hurt")]
    assert ends[0] is not None
    assert ends[1] is not None
    for mean in (False, True):
        one, other = (read_weights(end.folder, mean=mean) for end in ends if end is not None)
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_best_is_named_in_a_file(tmp_path: Path) -> None:
    """With the metric that it is best by."""
    fitted = fit(Tiny(TinyConfig(train=plain(epochs=2))), out=tmp_path)
    assert fitted.best is not None
    told = json.loads((tmp_path / "checkpoints" / "best.json").read_text())
    assert (told["metric"], told["value"], told["checkpoint"]) == (
        "mae",
        fitted.best.value,
        fitted.best.checkpoint,
    )
    assert read_weights(tmp_path / "checkpoints" / told["checkpoint"]).keys() >= {"0.weight", "4.bias"}


def test_a_resume_with_another_batch_optimizer_or_model_is_refused(tmp_path: Path) -> None:
    """Its steps could not be gone on with; the error says what it was made with."""
    fit(Tiny(TinyConfig(train=plain(epochs=1))), out=tmp_path)
    for change, told in (
        ({"batch_size": 4}, r"train\.batch_size is 4, and the checkpoint was made with 8"),
        ({"optimizer": OptimizerConfig(name="sgd")}, r"optimizer\.name is sgd, .* made with adamw"),
    ):
        with pytest.raises(UsageError, match=told):
            fit(Tiny(TinyConfig(train=plain(epochs=2, **change))), out=tmp_path)
    with pytest.raises(UsageError, match="the checkpoint is of another model"):
        fit(Tiny(TinyConfig(norm="layer", train=plain(epochs=2))), out=tmp_path)


def test_a_folder_of_another_task_is_told(tmp_path: Path) -> None:
    """By both names, with the ways out."""

    class Other(Tiny):
        name = "other"

    fit(Tiny(TinyConfig(train=plain(epochs=1))), out=tmp_path)
    with pytest.raises(UsageError, match="is of tiny, and not of other: choose another folder"):
        fit(Other(TinyConfig(train=plain(epochs=2))), out=tmp_path)


def test_fresh_puts_the_older_training_aside(tmp_path: Path) -> None:
    """Nothing of it is lost, pictures neither, and nothing of it is gone on from."""
    fit(Tiny(TinyConfig(train=plain(epochs=1, picture=True))), out=tmp_path)
    drawn = (tmp_path / "picture.txt").read_text()
    fitted = fit(Tiny(TinyConfig(train=plain(epochs=1))), out=tmp_path, fresh=True)
    assert fitted.resumed is None
    assert (tmp_path / "before-1" / "picture.txt").read_text() == drawn
    assert not (tmp_path / "picture.txt").exists()
    assert Checkpoints(tmp_path / "before-1" / "checkpoints").find_last_good() is not None


@pytest.mark.parametrize("fresh", [False, True])
def test_what_a_killed_training_left_half_written_is_removed(tmp_path: Path, fresh: bool) -> None:
    """Files and checkpoints, also where the older training is put aside."""
    task = Tiny(TinyConfig(train=plain(epochs=1)))
    fit(task, out=tmp_path)
    (tmp_path / ".stoker-part-01").write_bytes(b"half of a file")
    (tmp_path / "checkpoints" / ".stoker-part-02").write_bytes(b"half of a file")
    (tmp_path / "checkpoints" / ".stoker-part-03").mkdir()
    fit(task, out=tmp_path, fresh=fresh)
    assert not list(tmp_path.rglob(".stoker-part-*"))


def test_a_longer_training_goes_on_from_a_finished_one(tmp_path: Path) -> None:
    """More epochs than before are made; what was changed is told."""
    fit(Tiny(TinyConfig(train=plain(epochs=1))), out=tmp_path)
    told: list[str] = []
    longer = Tiny(TinyConfig(train=plain(epochs=2)))
    fitted = fit(longer, out=tmp_path, tell=told.append)
    assert (fitted.resumed, fitted.step, longer.epochs) == (7, 14, [1])
    assert any("train.epochs 1 -> 2" in text for text in told)


def test_another_rate_counts_from_the_resume_on(tmp_path: Path) -> None:
    """An optimizer's kept states do not bring its old settings back."""
    constant = ScheduleConfig(name="constant")
    fit(Tiny(TinyConfig(train=plain(epochs=1, schedule=constant))), out=tmp_path)
    lower = plain(epochs=2, schedule=constant, optimizer=OptimizerConfig(name="adamw", lr=1e-5))
    fit(Tiny(TinyConfig(train=lower)), out=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["lr"] for line in lines if line["kind"] == "train"] == [1e-2, 1e-5]


def test_a_training_that_ended_early_stays_ended(tmp_path: Path) -> None:
    """The same command again makes no more steps."""
    settings = plain(epochs=9, stop=StopConfig(patience=1), optimizer=OptimizerConfig(name="adamw", lr=1e-12))
    first = fit(Tiny(TinyConfig(norm="layer", train=settings)), out=tmp_path)
    again = fit(Tiny(TinyConfig(norm="layer", train=settings)), out=tmp_path)
    assert (first.ended, again.ended, again.step) == ("early", "early", first.step)


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    """No room for a file: an error that says so, nothing half written, and the older one is found."""
    resource = pytest.importorskip("resource")
    checkpoints = kept(tmp_path, 5)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    large = replace(state(10.0, 10), tensors={"optimizer": {"exp_avg": torch.ones(100_000)}})
    # Of the weights, which come first; and of the optimizer's states, which torch itself writes.
    for limit, made in ((100, state(10.0, 10)), (10_000, large), (399_000, large)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(TrainingFailed, match=r"cannot save .*step-000000010: .*Make room there"):
                checkpoints.save("step-000000010", made)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert [path.name for path in tmp_path.iterdir()] == ["step-000000005"]
    assert checkpoints.find_last_good() is not None


def test_a_folder_that_takes_no_checkpoint_or_keeps_an_old_one_is_told(tmp_path: Path) -> None:
    """Something stands where they go, and what is to be removed cannot be: with the words for it."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TrainingFailed, match=r"cannot save .*step-000000001: .*Make room there"):
        kept(tmp_path / "file", 1)
    checkpoints = kept(tmp_path / "kept", 2, 3)
    (tmp_path / "kept" / "step-000000001").symlink_to(tmp_path / "kept" / "step-000000003")
    with pytest.raises(TrainingFailed, match=r"cannot remove .*step-000000001: .* symbolic link.*by hand"):
        checkpoints.prune(None)
    assert checkpoints.find_last_good() is not None


@pytest.mark.parametrize("text", ["", "[]", '{"pictures": 3, "folder": "x"}', '{"folder": "x"}'])
def test_an_older_training_is_put_aside_whatever_its_result_says(tmp_path: Path, text: str) -> None:
    """The file was harmed: the rest of the folder is put aside all the same."""
    (tmp_path / "result.json").write_text(text)
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    aside = put_aside(tmp_path)
    assert aside is not None
    assert sorted(path.name for path in aside.iterdir()) == ["metrics.jsonl", "result.json"]
