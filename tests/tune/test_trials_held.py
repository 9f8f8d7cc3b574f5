"""Trials of a real script in real child processes."""

import textwrap
from pathlib import Path
from typing import Any

import pytest

from stoker.changes import Kind
from stoker.scratch import Guards
from stoker.tune import stretches
from stoker.tune.meaning import judge, take
from stoker.tune.trial import hold
from stoker.watch import Record

SCRIPT = """
    import os, sys, time, torch
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __len__(self):
            return 200 if "few" in sys.argv else 8000 if "turns" in sys.argv else 4000
        def __getitem__(self, at):
            time.sleep(0.05 if "slow" in sys.argv else 0.0005)
            noise = torch.randn(4) if "random" in sys.argv else 0.0
            return torch.full((4,), at / 4000) + noise

    def main():
        if "dies" in sys.argv:
            os.kill(os.getpid(), 11)
        hoard = []
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        other = torch.optim.SGD(torch.nn.Linear(4, 1).parameters(), lr=0.01)
        loader = DataLoader(Slow(), batch_size=8, shuffle=True)
        epochs = 40 if "few" in sys.argv else 1
        for number, batch in enumerate(batch for _ in range(epochs) for batch in loader):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            if "turns" in sys.argv and number % 5 == 4:
                other.step()
            if "hoards" in sys.argv:
                hoard.append(torch.ones(4 << 20))
            if "fails" in sys.argv:
                raise RuntimeError("no such luck")

    main()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A loop that waits for its samples."""
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return str(path)


@pytest.fixture
def all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches in which other work was on the machine are not left out, or a busy one would have too few."""
    monkeypatch.setattr(stretches, "_is_quiet", lambda *_: True)


@pytest.mark.usefixtures("all_counted")
def test_a_trial_measures_a_rate(script: str, tmp_path: Path) -> None:
    """By stretches, in samples; with the changes that were put over it, and the log kept."""
    settings = {"num_workers": 2, "autocast": "bf16", "channels_last": True, "gc_freeze": True}
    trial = hold([script], settings, folder=tmp_path / "trial", seconds=0.9)
    assert trial.outcome == "measured", trial.reason
    assert trial.rates is not None
    assert (trial.rates.unit, trial.rates.stretch_steps) == ("sample", 50)
    assert len(trial.rates.each) >= 3
    assert trial.told == ("changed: DataLoader(Slow): num_workers 0 -> 2, prefetch_factor None -> 2",)
    assert trial.first is not None
    assert trial.vram is None
    assert (tmp_path / "trial" / "stderr.txt").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"autocast": "bf16"},
        {"channels_last": True},
        {"compile": "default"},
        {"gc_freeze": True},
        {"threads": 1},
        {"tf32": True},
        {"cudnn_benchmark": True},
        {"fused_optimizer": True},
    ],
)
def test_each_change_of_a_model_or_a_process_can_be_tried(
    script: str, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Alone too."""
    trial = hold([script], {"num_workers": 2, **settings}, folder=tmp_path / "trial", seconds=0.1)
    assert trial.outcome == "measured", trial.reason


@pytest.mark.usefixtures("all_counted")
def test_a_step_of_two_optimizers_is_a_turn_of_both(script: str, tmp_path: Path) -> None:
    """Five updates of one, then one of the other: there are as many stretches as of a plain loop."""
    trial = hold([script, "turns"], {"num_workers": 2}, folder=tmp_path / "trial", seconds=0.5)
    assert trial.outcome == "measured", trial.reason
    assert trial.rates is not None
    assert (round(trial.rates.size), trial.rates.stretch_steps) == (40, 50)
    assert len(trial.rates.each) >= 3


@pytest.mark.parametrize(
    ("word", "guards", "outcome", "says"),
    [
        ("dies", Guards(), "crashed", "SIGSEGV"),
        # A rank that fails is tried by default, in test_rank_trials.py.
        pytest.param("fails", Guards(), "failed", "no such luck", marks=pytest.mark.slow),
        ("hoards", Guards(ram_bytes=700 << 20), "stopped", "of memory, over the"),
    ],
)
def test_what_goes_wrong_is_a_result(
    script: str, tmp_path: Path, word: str, guards: Guards, outcome: str, says: str
) -> None:
    """With its reason, and without a rate."""
    trial = hold([script, word], {}, folder=tmp_path / "trial", seconds=60, guards=guards)
    assert (trial.outcome, trial.rate) == (outcome, None), trial.reason
    assert says in trial.reason


def test_a_script_too_short_has_no_rate(script: str, tmp_path: Path) -> None:
    """Its time is over before 50 steps are made after the first."""
    trial = hold([script, "slow"], {"num_workers": 1}, folder=tmp_path / "trial", most=6.0)
    assert (trial.outcome, trial.rate) == ("short", None), trial.reason


@pytest.mark.parametrize(
    ("words", "changes", "kind"),
    [
        ([], [{"num_workers": 2, "gc_freeze": True}, {"feed": "ram", "num_workers": 2}], "same"),
        pytest.param(["random"], [{"num_workers": 2}], "redraw", marks=pytest.mark.slow),
        # What its samples draw moves the order of the next epoch: in workers it does not.
        pytest.param(["random", "few"], [{"num_workers": 2}], "optimization", marks=pytest.mark.slow),
    ],
)
def test_a_probe_shows_what_a_change_does(
    script: str, words: list[str], changes: list[dict[str, Any]], kind: Kind
) -> None:
    """Workers leave a script's losses bit-identical, unless its samples draw; so do held samples."""
    plain = take([script, *words], {}, steps=16)
    for settings in changes:
        assert judge("same", take([script, *words], settings, steps=16), [plain, plain]).kind == kind


def test_held_samples_are_measured_from_their_second_epoch_on(script: str, tmp_path: Path) -> None:
    """The first, in which they are read, is none of the rate."""
    trial = hold([script, "few"], {"feed": "ram"}, folder=tmp_path / "trial", seconds=0.1)
    assert trial.outcome == "measured", trial.reason
    assert trial.told[0].startswith("changed: DataLoader(Slow): feed None -> ram: ")
    assert trial.record is not None
    steps = list(Record.open(trial.record).ranks[0].steps())
    assert trial.rates is not None
    assert len(trial.rates.each) * trial.rates.stretch_steps <= len(steps) - 25


def test_samples_that_are_never_held_have_no_rate(script: str, tmp_path: Path) -> None:
    """Of one epoch alone: its rate would be that of reading them."""
    trial = hold([script], {"feed": "ram"}, folder=tmp_path / "trial", seconds=0.1)
    assert (trial.outcome, trial.rate) == ("short", None)
    assert "before its samples were held" in trial.reason
