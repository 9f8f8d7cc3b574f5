"""Before the first step: who else is on the device, and whether the step will fit."""

import pytest
import torch
from torch import nn

from stoker.train.config import OptimizerConfig
from stoker.train.preflight import Prediction, bytes_of_states, look, predict, sizes_to_try

MIB = 2**20


def test_an_overflow_is_predicted_from_smaller_micro_batches() -> None:
    """A line of 100 MiB and 30 a sample, with 50 for the optimizer: 64 need 2,070, and 28 fit 1,000."""
    ran: list[int] = []

    def measure(samples: int) -> int:
        ran.append(samples)
        return (100 + 30 * samples) * MIB

    found = predict(measure, micro_batch=64, states=50 * MIB, room=1000 * MIB)
    assert isinstance(found, Prediction)
    assert ran == [8, 16, 32]
    assert (found.need, found.overflows, found.largest) == (2070 * MIB, True, 28)
    assert "set train.micro_batch=28" in found.text


def test_what_fits_is_told_so() -> None:
    """Without advice."""
    found = predict(lambda samples: samples * MIB, micro_batch=16, states=0, room=1000 * MIB)
    assert isinstance(found, Prediction)
    assert not found.overflows
    assert "set train" not in found.text


@pytest.mark.parametrize(
    ("peaks", "micro_batch", "told"),
    [
        ({2: 10, 4: 20, 8: None}, 16, "8 samples are too many for the device already"),
        ({}, 4, "too small to be predicted"),
    ],
)
def test_what_cannot_be_predicted_is_said_why(
    peaks: dict[int, int | None], micro_batch: int, told: str
) -> None:
    """No number is made up."""
    found = predict(lambda samples: peaks[samples], micro_batch=micro_batch, states=0, room=1)
    assert isinstance(found, str)
    assert told in found


def test_three_sizes_or_none() -> None:
    """Below 16 samples there are no three sizes that lie on a line."""
    assert sizes_to_try(16) == (2, 4, 8)
    assert sizes_to_try(15) == ()


def test_what_an_optimizer_will_hold() -> None:
    """Two of each weight for Adam, one for SGD with momentum, none without."""
    model = nn.Linear(3, 4)
    each = sum(weight.nbytes for weight in model.parameters())
    assert bytes_of_states(model, OptimizerConfig(name="adamw")) == 2 * each
    assert bytes_of_states(model, OptimizerConfig(name="sgd")) == each
    assert bytes_of_states(model, OptimizerConfig(name="sgd", momentum=0.0)) == 0


def test_the_machine_is_looked_at_on_a_cpu_too() -> None:
    """No card is warned of that will not be used; each warning has its cure."""
    for warned in look(torch.device("cpu")):
        assert "GPU" not in warned.text
        assert warned.fix
