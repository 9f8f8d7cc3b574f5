"""How much goes into a step, as it is told of a script's modules."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn.modules.module import _global_forward_pre_hooks

from stoker.doctor import work
from stoker.doctor.work import Work


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    """One that looks at every step."""
    monkeypatch.setattr(work, "_EVERY", 0.0)
    made = Work()
    yield made
    made.stop()


def test_the_tensors_of_the_first_call_after_a_step_are_counted(looks: Work) -> None:
    """Once a step, of the outermost module, also within a list; what it calls by itself does not count."""
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
    for rows in (3, 5):
        looks.stepped()
        model(torch.zeros(rows, 8))
        model(torch.zeros(7, 8))
    looks.stepped()
    nn.Bilinear(2, 3, 1)(torch.zeros(6, 2), torch.zeros(6, 3))
    assert looks.sizes == [24, 40, 30]


def test_a_module_called_without_tensors_is_passed_over(looks: Work) -> None:
    """Arguments by name are not seen: those of the module within are."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 4)

        def forward(self, *, rows: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(self.inner(rows))

    looks.stepped()
    Named()(rows=torch.zeros(3, 8))
    assert looks.sizes == [24]


def test_no_hook_is_left(looks: Work) -> None:
    """Neither after a look, nor where it was stopped before one."""
    before = len(_global_forward_pre_hooks)
    looks.stepped()
    assert len(_global_forward_pre_hooks) == before + 1
    nn.Linear(8, 4)(torch.zeros(1, 8))
    assert len(_global_forward_pre_hooks) == before
    looks.stepped()
    looks.stop()
    looks.stepped()
    assert len(_global_forward_pre_hooks) == before


def test_padding_is_told_of_tokens_and_of_nothing_else(looks: Work) -> None:
    """Half of these are what follows an end."""
    tokens = torch.arange(1, 65).reshape(4, 16)
    tokens[:, 8:] = 0
    looks.stepped()
    nn.Embedding(65, 2)(tokens)
    looks.stepped()
    nn.Linear(16, 2)(torch.zeros(4, 16))
    assert looks.padding == [0.5]
