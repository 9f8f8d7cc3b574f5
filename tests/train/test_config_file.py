"""Settings from files and from the command line."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from stoker.errors import UsageError, WrongSettings
from stoker.train.config import OptimizerConfig, ScheduleConfig, TrainConfig
from stoker.train.config_file import build, differences, load, to_values


@dataclass(frozen=True, kw_only=True)
class Own:
    """A workload's own."""

    data: Path | None = None
    base: int = 32
    kind: Literal["lite", "residual"] = "lite"
    train: TrainConfig = field(default_factory=lambda: TrainConfig(epochs=20, batch_size=64))


YAML = """
base: 64
train:
  epochs: 5
  optimizer: {name: sgd, lr: 1e-2}
  schedule: {name: step, milestones: [2, 4]}
"""
TOML = """
base = 64
[train]
epochs = 5
[train.optimizer]
name = "sgd"
lr = 1e-2
[train.schedule]
name = "step"
milestones = [2, 4]
"""


@pytest.mark.parametrize(("name", "text"), [("a.yaml", YAML), ("a.toml", TOML)])
def test_a_file_and_the_command_line_over_the_defaults(tmp_path: Path, name: str, text: str) -> None:
    """What the file does not say keeps the workload's own default; the command line comes last."""
    (tmp_path / name).write_text(text)
    found = load(Own, tmp_path / name, ["train.epochs=7", "data=/somewhere", "kind=residual"])
    assert found == Own(
        data=Path("/somewhere"),
        base=64,
        kind="residual",
        train=TrainConfig(
            epochs=7,
            batch_size=64,
            optimizer=OptimizerConfig(name="sgd", lr=0.01),
            schedule=ScheduleConfig(name="step", milestones=(2.0, 4.0)),
        ),
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["bse=3"], r"no setting bse: did you mean base\? at the top there are data, base, kind, train"),
        (
            ["train.optimizer.learning_rate=3"],
            "no setting train.optimizer.learning_rate: .*under train.optimizer there are name, lr, ",
        ),
        (["train.epoch=3"], r"did you mean train\.epochs\?"),
        (["kind=dense"], "kind is 'dense': it is one of lite, residual"),
        (["base=many"], "base is 'many': it must be a whole number"),
        (["base=true"], "base is True: it must be a whole number"),
        (["base=1.5"], "base is 1.5: it must be a whole number"),
        (["train=3"], "train is 3: it has keys of its own, epochs"),
        (["train.epochs"], "'train.epochs' is no setting: write it as train.epochs=3"),
        (["train.epochs=0"], "train: epochs is 0: it must be 1 or more"),
        (["train.optimizer.lr=-1"], "train.optimizer: lr is -1: it must be above 0"),
        (["train.optimizer.lr=nan"], "train.optimizer.lr is 'nan': it must be a number"),
        (["train.clip=Infinity"], "train.clip is inf: it must be a number"),
        (["train.optimizer.eps=0"], "train.optimizer: eps is 0: it must be above 0"),
        (["train.optimizer.nesterov=true", "train.optimizer.momentum=0"], "nesterov without momentum"),
        (["train.optimizer.betas=[0.9]"], "train.optimizer.betas is .*: it must have 2 values"),
        (["train.loggers=tensorbord"], "no logger 'tensorbord': there are tensorboard, wandb, mlflow"),
        (["train.schedule.name=step"], "schedule step without milestones"),
        (
            ["train.precision=fp16", "train.clip=1", "train.optimizer.fused=true"],
            "leave out one of the three",
        ),
        (["train.save.keep=1"], "keep is 1: it must be 2 or more"),
        (["train.max_steps=x"], "train.max_steps is 'x': it must be a whole number, or null"),
    ],
)
def test_what_is_wrong_is_told_with_what_is_allowed(words: list[str], told: str) -> None:
    """A misspelt key is answered with those there are, a value of a wrong type with the type."""
    with pytest.raises(UsageError, match=told):
        load(Own, None, words)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.ini", "", "a .yaml, .yml or .toml file"),
        ("a.toml", "x = ", "is no TOML"),
        ("a.yaml", "x: [", "is no YAML"),
        ("a.yaml", "- 1", "holds a list"),
        ("a.yaml", "train: {seed: 2024-02-30}", "is no YAML: day is out of range"),
    ],
)
def test_a_file_that_is_no_config_is_told(tmp_path: Path, name: str, text: str, told: str) -> None:
    """Which file, and what is wrong with it."""
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=told):
        load(Own, tmp_path / name)


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    """A checkpoint given for a config, say."""
    (tmp_path / "a.yaml").write_bytes(b"PK\x03\x04\xff\xfe")
    with pytest.raises(UsageError, match=r"a\.yaml is no text in UTF-8"):
        load(Own, tmp_path / "a.yaml")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    """By its name."""
    with pytest.raises(UsageError, match=r"cannot read the config .*none\.yaml: No such file"):
        load(Own, tmp_path / "none.yaml")


def test_lists_and_numbers_as_they_are_typed() -> None:
    """A list with or without brackets; 1e-3, which YAML takes for text; null."""
    found = load(Own, None, ["train.loggers=[]", "train.optimizer.betas=0.8,0.9", "train.max_steps=null"])
    assert (found.train.loggers, found.train.optimizer.betas, found.train.max_steps) == ((), (0.8, 0.9), None)
    assert load(Own, None, ["train.loggers=tensorboard,wandb"]).train.loggers == ("tensorboard", "wandb")
    assert load(Own, None, ["train.optimizer.lr=1e-3"]).train.optimizer.lr == 1e-3


def test_a_name_that_looks_like_a_number_is_kept_as_it_is_typed() -> None:
    """A folder 1.10 is not 1.1; what is to be a number is one."""
    found = load(Own, None, ["data=1.10", "train.optimizer.lr=1.10"])
    assert (found.data, found.train.optimizer.lr) == (Path("1.10"), 1.1)
    assert type(found.train.optimizer.lr) is float
    assert load(Own, None, ["data=1e5"]).data == Path("1e5")


def test_a_config_is_plain_values_and_back() -> None:
    """What a checkpoint keeps is what was asked for, and differences are named."""
    one, other = Own(base=64), Own(base=64, train=TrainConfig(epochs=21, batch_size=64))
    assert differences(to_values(one), to_values(other)) == ["train.epochs 20 -> 21"]
    assert differences(to_values(one), to_values(one)) == []


@pytest.mark.parametrize(
    ("values", "path", "allowed"),
    [
        ({"train": {"epoch": 3}}, ("train", "epoch"), "epochs"),
        ({"train": {"precision": "fp8"}}, ("train", "precision"), "bf16"),
        ({"train": {"optimizer": {"lr": -1}}}, ("train", "optimizer", "lr"), None),
        ({"train": {"optimizer": {"lr": float("inf")}}}, ("train", "optimizer", "lr"), None),
        ({"train": {"optimizer": {"lr": 10**400}}}, ("train", "optimizer", "lr"), None),
        ({"train": {"epochs": 2**63}}, ("train", "epochs"), None),
        ({"train": 3}, ("train",), "epochs"),
    ],
)
def test_what_is_wrong_has_a_path_that_a_program_can_use(
    values: dict[str, Any], path: tuple[str, ...], allowed: str | None
) -> None:
    """Which setting it is, and what there is to choose from; a number must be finite and fit 64 bits."""
    with pytest.raises(WrongSettings) as wrong:
        build(Own, values)
    [one] = wrong.value.each
    assert one.path == path
    assert one.allowed is None if allowed is None else allowed in (one.allowed or ())


def test_all_that_is_wrong_is_named_at_once() -> None:
    """Misspelt, of another type, out of bounds: each by its path, and in the message for a person."""
    values = {
        "epoch": 3,
        "train": {"epochs": 0, "precision": "fp8", "batch_size": "many", "optimizer": {"lr": -1, "name": 3}},
    }
    with pytest.raises(WrongSettings) as wrong:
        build(Own, values)
    assert {".".join(one.path) for one in wrong.value.each} == {
        "epoch", "train.epochs", "train.precision", "train.batch_size", "train.optimizer.lr",
        "train.optimizer.name",
    }  # fmt: skip
    for one in wrong.value.each:
        assert str(one) in str(wrong.value)


@dataclass(frozen=True, kw_only=True)
class Range:
    """Two settings that bound each other, and one by itself."""

    low: int = 0
    high: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise UsageError(f"low is {self.low} and high is {self.high}: low must be below high")
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}: it must be 0 or more")


@pytest.mark.parametrize(
    ("values", "paths"),
    [
        ({"low": 20, "high": 30}, set()),
        ({"low": 20, "high": 15, "seed": -1}, {"low", "seed"}),
        ({"low": 20, "high": "thirty", "seed": -1}, {"high", "seed"}),
    ],
)
def test_a_contradiction_is_told_of_what_was_given_alone(values: dict[str, Any], paths: set[str]) -> None:
    """20 is not too high for a bound that was meant to be another."""
    if not paths:
        assert build(Range, values) == Range(**values)
        return
    with pytest.raises(WrongSettings) as wrong:
        build(Range, values)
    assert {".".join(one.path) for one in wrong.value.each} == paths
