"""Before the first step: who else is on the device, and whether the step will fit."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file
from tiny import Tiny, TinyConfig, plain
from torch import nn

from stoker.facts.nvml import Occupant
from stoker.train import preflight
from stoker.train.config import OptimizerConfig, SaveConfig
from stoker.train.fit import fit
from stoker.train.preflight import Prediction, bytes_of_states, look, predict, sizes_to_try, uuid_of
from stoker.train.task import Feeds, World
from stoker.ward.fake_gpu import FakeGpus, card

MIB = 2**20


def test_an_overflow_is_predicted_from_smaller_micro_batches() -> None:
    """A line of 100 MiB and 30 a sample, with 50 for the optimizer: 64 need 2,070; 16 ran, and fit 1,000."""
    ran: list[int] = []

    def measure(samples: int) -> int:
        ran.append(samples)
        return (100 + 30 * samples) * MIB

    found = predict(measure, micro_batch=64, states=50 * MIB, room=1000 * MIB)
    assert isinstance(found, Prediction)
    assert ran == [8, 16, 32]
    assert (found.need, found.overflows, found.largest) == (2070 * MIB, True, 16)
    assert "set train.micro_batch=16, which fits," in found.text


def test_what_fits_is_told_so() -> None:
    """Without advice."""
    found = predict(lambda samples: samples * MIB, micro_batch=16, states=0, room=1000 * MIB)
    assert isinstance(found, Prediction)
    assert (found.overflows, found.largest) == (False, 16)
    assert "set train" not in found.text


def test_a_small_micro_batch_is_run_itself() -> None:
    """Below 16 samples there are no three sizes that lie on a line: what it needs is measured."""
    assert sizes_to_try(16) == (2, 4, 8)
    assert sizes_to_try(15) == (15,)
    found = predict(lambda samples: samples * 100 * MIB, micro_batch=4, states=10 * MIB, room=300 * MIB)
    assert isinstance(found, Prediction)
    assert (found.need, found.overflows, found.largest) == (410 * MIB, True, 2)
    assert "needs 410 MiB (it was run), and 300 MiB are free" in found.text
    assert "set train.micro_batch=2, which fits," in found.text


def test_room_to_the_last_byte_is_not_enough() -> None:
    """A twentieth is kept free."""
    tight = predict(lambda samples: samples * 97 * MIB, micro_batch=1, states=0, room=100 * MIB)
    assert isinstance(tight, Prediction)
    assert tight.overflows
    assert (
        "needs 97.0 MiB (it was run), and 100 MiB are free, of which a twentieth is to stay so" in tight.text
    )


@pytest.mark.parametrize(
    ("most", "micro_batch", "told"),
    [
        (4, 16, r"runs out with 8 at a time \(a micro-batch has 16\).*set train.micro_batch=4,"),
        (3, 64, "runs out with 8 at a time.*set train.micro_batch=2,"),
        (1, 16, "runs out with 2 at a time.*set train.micro_batch=1,"),
        (0, 1, "runs out with 1 at a time.*no smaller one fits; take a smaller model or sample"),
    ],
)
def test_what_runs_out_before_the_first_step_is_told(most: int, micro_batch: int, told: str) -> None:
    """Without a number for what is needed: nobody has seen it. Advised is what did run, if it takes more."""
    found = predict(
        lambda samples: samples if samples <= most else None, micro_batch=micro_batch, states=0, room=MIB
    )
    assert isinstance(found, Prediction)
    assert (found.need, found.overflows) == (None, True)
    assert re.search(told, found.text)


def test_a_line_that_does_not_hold_is_no_prediction_of_what_fits() -> None:
    """The error that it was made with is told beside it."""
    found = predict(lambda samples: samples**2 * MIB, micro_batch=32, states=0, room=MIB)
    assert isinstance(found, Prediction)
    assert found.error is not None
    assert found.error > 0.1
    assert "\u00b1" in found.text


def test_what_an_optimizer_will_hold() -> None:
    """Two of each weight for Adam, one for SGD with momentum, none without."""
    model = nn.Linear(3, 4)
    each = sum(weight.nbytes for weight in model.parameters())
    assert bytes_of_states(model, OptimizerConfig(name="adamw")) == 2 * each
    assert bytes_of_states(model, OptimizerConfig(name="sgd")) == each
    assert bytes_of_states(model, OptimizerConfig(name="sgd", momentum=0.0)) == 0


def test_the_machine_is_looked_at_on_a_cpu_too() -> None:
    """No card is warned of that will not be used; each warning has its cure."""
    assert uuid_of(torch.device("cpu")) is None
    for warned in look(None):
        assert "GPU" not in warned.text
        assert warned.fix


def test_memory_that_others_hold_on_the_card_is_warned_of() -> None:
    """By whom, and how much; a card that will not be used is nobody's business here."""
    holder = Occupant(pid=1, bytes=6 * 2**30)
    gpus = FakeGpus(card(uuid="GPU-a"), card(uuid="GPU-b"), occupants_by_card=[[holder], []])
    [warned] = [one for one in look("GPU-a", gpus) if one.cause == "gpu-contention"]
    assert "held by pid 1" in warned.text
    assert warned.fix
    assert not [one for one in look("GPU-b", gpus) if one.cause == "gpu-contention"]
    # A part of a card has an id that the driver's list does not: all that can be seen are looked at.
    assert [one for one in look("GPU-MIG-7", gpus) if one.cause == "gpu-contention"]


class Growing(Tiny):
    """Its samples are largest in the third epoch, of those that there are."""

    expected: ClassVar[list[tuple[int, str]]] = []

    def largest_epoch(self, epochs: int) -> int:
        return min(2, epochs - 1)

    def open_feeds(self, world: World, device: torch.device) -> Feeds:
        feeds = super().open_feeds(world, device)
        heard = self.expected
        feeds.train.expect = lambda need, said: heard.append((need, said))  # type: ignore[method-assign]
        return feeds


@pytest.mark.parametrize(("steps", "largest"), [(5, 2), (2, 0)])
def test_what_is_predicted_is_the_step_with_the_largest_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, largest: int
) -> None:
    """Tried on the first batch of that epoch, as far as the training gets; the feed hears what to leave."""
    quiet = {"epochs": 3, "batch_size": 26, "micro_batch": 13, "save": SaveConfig(every=0)}
    calm = Tiny(TinyConfig(train=plain(**quiet)))
    fit(calm, out=tmp_path / "calm")
    monkeypatch.setattr(preflight, "look", lambda uuid: ())
    monkeypatch.setattr(preflight, "can_measure", lambda device: True)
    monkeypatch.setattr(preflight, "room_on", lambda device: 20 * MIB)
    monkeypatch.setattr(preflight, "peak_of", lambda run, device: (run(), 3 * MIB)[1])
    looked = Growing(TinyConfig(train=plain(**quiet, max_steps=steps, preflight=True)))
    looked.expected.clear()
    told: list[str] = []
    fit(looked, out=tmp_path / "looked", tell=told.append)
    # Two steps an epoch, of two micro-batches each; one of these is tried before.
    assert looked.seen[0] == calm.seen[4 * largest]
    assert looked.seen[1:] == calm.seen[: 2 * steps]
    assert any("a micro-batch of 13 needs 3" in text for text in told)
    assert any(f"memory: in epoch {largest + 1}, a" in text for text in told) == (largest > 0)
    assert [need > 3 * MIB for need, _ in looked.expected] == [True] * (largest > 0)


def test_warnings_and_the_prediction_come_before_the_first_step_and_leave_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a card's answers stood in for: what is tried is undone, so the weights are those without it."""
    quiet = {"epochs": 1, "batch_size": 32, "save": SaveConfig(every=0), "log_every": 1}
    calm = Tiny(TinyConfig(train=plain(**quiet)))
    fit(calm, out=tmp_path / "calm")

    def peak_of(run: Callable[[], list[object]], device: torch.device) -> int:
        run()
        return len(looked.seen[-1]) * MIB

    gpus = FakeGpus(card(), occupants=[Occupant(pid=1, bytes=6 * 2**30)])
    monkeypatch.setattr(preflight, "look", lambda uuid: look(card().uuid, gpus))
    monkeypatch.setattr(preflight, "can_measure", lambda device: True)
    monkeypatch.setattr(preflight, "room_on", lambda device: 20 * MIB)
    monkeypatch.setattr(preflight, "peak_of", peak_of)
    told: list[str] = []
    looked = Tiny(TinyConfig(train=plain(**quiet, preflight=True)))
    fit(looked, out=tmp_path / "looked", tell=told.append)
    first = next(at for at, text in enumerate(told) if text.startswith("step "))
    before = [text for text in told[:first] if text.startswith("warning: ")]
    assert any("held by pid 1" in text for text in before)
    assert any("a micro-batch of 32 is predicted to need 32" in text for text in before)
    assert [len(one) for one in looked.seen[:3]] == [4, 8, 16]
    assert looked.seen[3:] == calm.seen
    expected, found = (
        load_file(max((tmp_path / name / "checkpoints").glob("step-*")) / "model.safetensors")
        for name in ("calm", "looked")
    )
    assert all(torch.equal(expected[name], found[name]) for name in expected)
