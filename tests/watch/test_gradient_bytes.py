"""What ranks have to bring together each step, in the record: the bytes of all gradients."""

import gc
from pathlib import Path

import torch
from torch import nn

import stoker


def train(net: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    for _ in range(3):
        net(torch.ones(1, 8)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()


def recorded(watch: stoker.Watch) -> object:
    return watch.record.ranks[0].about["gradient_bytes"]


def test_what_is_trained_counts_and_what_is_frozen_does_not(tmp_path: Path) -> None:
    """Each parameter in its own precision; gone with its function, it was told all the same."""

    def script() -> None:
        net = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
        net[1].bias.requires_grad = False
        train(net, torch.optim.SGD(net.parameters(), lr=0.1))

    with stoker.Watch(runs=tmp_path) as watch:
        script()
        gc.collect()
    assert recorded(watch) == 4 * (8 * 4 + 4 + 4 * 2)


def test_a_parameter_of_two_optimizers_counts_once(tmp_path: Path) -> None:
    """Its gradient is one."""
    with stoker.Watch(runs=tmp_path) as watch:
        net = nn.Linear(8, 2, bias=False)
        train(net, torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.Adam(net.parameters(), lr=0.1))
    assert recorded(watch) == 4 * 16


def test_without_an_optimizer_it_is_not_known(tmp_path: Path) -> None:
    """A loop that counts its own steps may train by other means: not measured, and not 0."""
    with stoker.Watch(runs=tmp_path) as watch:
        for _ in range(3):
            watch.step()
    assert recorded(watch) is None
