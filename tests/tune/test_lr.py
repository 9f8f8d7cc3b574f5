"""The LR finder: a curve says what it can, and nothing of a sweep is left behind."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from math import inf, log10, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker.errors import TrialFailed, UsageError
from stoker.tune import find_lr
from stoker.tune.lr import Finder
from stoker.tune.lr_curve import Curve, Running, Sweep
from stoker.tune.lr_words import sparkline

SCRIPT = """
    import sys, torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    x = torch.randn(1024, 8)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    groups = [{"params": model[0].parameters(), "lr": 1e-3}, {"params": model[2].parameters(), "lr": 3e-3}]
    optimizer = torch.optim.Adam(groups)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
    scaler = torch.amp.GradScaler("cpu", enabled="scaled" in sys.argv)
    for epoch in range(3):
        for at, (x, y) in enumerate(loader):
            if at == 5 and "short" in sys.argv:
                sys.exit(0)
            loss = (model(x) - y).square().mean()
            if "scaled" in sys.argv and optimizer.param_groups[0]["lr"] > 1e-2:
                loss = loss * float("nan")
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            assert scheduler.get_last_lr()[0] == 1e-3, "held back"
        torch.save(model.state_dict(), "model.pt")
"""


def curve(loss_at: Callable[[float], float], sweep: Sweep | None = None) -> Curve:
    """A sweep over a loss that is a function of the rate."""
    sweep = sweep or Sweep()
    rates = [sweep.at(step) for step in range(sweep.steps)]
    return Curve(rates=tuple(rates), losses=tuple(map(loss_at, rates)), stopped="")


def falling(rate: float) -> float:
    """Flat to 1e-4, down by a decade and a half, fastest at 1e-3, then up."""
    at = log10(rate)
    return 2.0 / (1 + 10 ** (2 * (at + 3))) + (rate * 2) ** 2


def test_a_sweep_rises_by_one_factor() -> None:
    """From the lowest to the highest, both included."""
    sweep = Sweep(low=1e-4, high=1.0, steps=21)
    assert sweep.at(0) == pytest.approx(1e-4)
    assert sweep.at(20) == pytest.approx(1.0)
    assert sweep.at(10) == pytest.approx(1e-2)


def test_the_steepest_descent_is_suggested() -> None:
    """With the range in which the loss falls."""
    found = curve(falling)
    assert found.lr == pytest.approx(1e-3, rel=0.5)
    assert found.low is not None
    assert found.high is not None
    assert 5e-5 < found.low < 1e-3 < found.high < 0.2
    told = found.to_json()
    assert [point["lr"] for point in told["points"]] == list(found.rates)
    assert len(sparkline(found.smooth)) == 60


def test_a_loss_that_is_no_number_is_left_out() -> None:
    """The rest is judged, and the points say null: JSON has no NaN."""
    found = curve(lambda rate: falling(rate) if rate < 0.1 else nan)
    assert found.lr == pytest.approx(1e-3, rel=0.5)
    assert found.to_json()["points"][-1]["loss"] is None
    assert "NaN" not in json.dumps(found.to_json())


@pytest.mark.parametrize("loss_at", [lambda rate: 1.0, lambda rate: 1.0 + rate, lambda rate: nan])
def test_where_the_loss_never_falls_nothing_is_suggested(loss_at: Callable[[float], float]) -> None:
    """And that is said."""
    found = curve(loss_at)
    assert (found.lr, found.low, found.high) == (None, None, None)
    assert "never falls" in found.why or "too few" in found.why


@pytest.mark.parametrize(
    ("losses", "says"),
    [
        ([2.0] * 10 + [1.0] * 10 + [50.0] * 3, "rose to"),
        ([2.0, inf], "the loss is inf"),
        ([2.0, nan], "the loss is nan"),
        ([-1.0] * 5 + [-2.0] * 20 + [30.0] * 10, "rose to"),
        ([2.0] * 5 + [0.001] * 100 + [0.5] * 20, None),
    ],
)
def test_a_sweep_ends_when_the_loss_is_gone(losses: list[float], says: str | None) -> None:
    """Four times the best and above where it began; also a loss below 0. Noise near 0 is no end."""
    running = Running()
    ends = [why for loss in losses if (why := running.gone(loss))]
    assert bool(ends) == (says is not None)
    assert says is None or says in ends[0]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"low": 1.0, "high": 0.1}, "the lower first"),
        ({"low": 0.0}, "above 0"),
        ({"high": inf}, "above 0"),
        ({"steps": 3}, "needs 20 at the least"),
    ],
)
def test_bad_input_is_refused(given: dict[str, Any], says: str) -> None:
    """Before anything runs."""
    with pytest.raises(UsageError, match=says):
        find_lr(["train.py"], **given)


class Loop:
    """A loop with all that has a state: dropout, BatchNorm, Adam in two groups, a schedule, a scaler."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        x = torch.randn(96, 8)
        data = TensorDataset(x, x.sum(1, keepdim=True))
        order = torch.Generator().manual_seed(3)
        self.loader = DataLoader(data, batch_size=8, shuffle=True, generator=order)
        self.model = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1)
        )
        first, rest = self.model[0].parameters(), self.model[1:].parameters()
        self.optimizer = torch.optim.Adam([{"params": first, "lr": 1e-3}, {"params": rest, "lr": 5e-3}])
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        self.losses: list[float] = []

    @staticmethod
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        """Of a batch."""
        value: torch.Tensor = (model(batch[0]) - batch[1]).square().mean()
        return value

    def epoch(self) -> None:
        """Train."""
        for batch in self.loader:
            self.optimizer.zero_grad()
            value = self.loss(self.model, batch)
            self.scaler.scale(value).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.losses.append(float(value.detach()))
        self.scheduler.step()

    def told(self) -> list[Any]:
        """All that a checkpoint would keep, and what comes next of the generators."""
        grads = [p.grad for p in self.model.parameters()]
        state = (self.model.state_dict(), self.optimizer.state_dict(), self.scaler.state_dict(), grads)
        flat = torch.utils._pytree.tree_leaves((state, self.scheduler.state_dict(), self.losses))
        return [one.tolist() if isinstance(one, torch.Tensor) else one for one in flat]


@pytest.mark.parametrize("before", [0, 1])
def test_a_finder_puts_everything_back(before: int) -> None:
    """Bit by bit, before the first step and amid training: what follows is as if no sweep had been."""
    plain, swept = Loop(), Loop()
    for loop in (plain, swept):
        torch.manual_seed(1)
        for _ in range(before):
            loop.epoch()
        if loop is swept:
            loop.model.eval()
            finder = Finder(loop.model, loop.optimizer, Loop.loss, loop.loader, scaler=loop.scaler)
            found = finder.find(high=1e4, steps=60)
            assert found.ratios == pytest.approx((1.0, 5.0))
            assert len(found.rates) > 20
            assert not loop.model.training
            loop.model.train()
        loop.epoch()
    assert swept.told() == plain.told()


def bits(value: torch.Tensor) -> tuple[torch.dtype, bytes]:
    return value.dtype, value.detach().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.NAdam, torch.optim.ASGD, torch.optim.SGD])
def test_a_finder_leaves_an_optimizers_own_types_and_objects(
    kind: Callable[..., torch.optim.Optimizer], dtype: torch.dtype
) -> None:
    """State in float32 beside weights in another type, counters that are tensors, groups that others hold."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1).to(dtype)
    loader = [torch.randn(8, 4, dtype=dtype) for _ in range(4)]

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        value: torch.Tensor = model(batch).square().mean()
        return value

    optimizer = kind(model.parameters(), lr=1e-3)
    for batch in loader:
        loss(model, batch).backward()
        optimizer.step()
    for parameter in model.parameters():  # as a trainer has it that keeps them in more bits than the weights
        optimizer.state[parameter]["master"] = torch.randn(parameter.shape)
        optimizer.state[parameter]["of lists"] = [torch.randn(3), 4]
    groups, states = list(optimizer.param_groups), dict(optimizer.state)
    leaves = torch.utils._pytree.tree_leaves([optimizer.param_groups, list(optimizer.state.values())])
    before = [bits(one) if isinstance(one, torch.Tensor) else one for one in leaves]

    Finder(model, optimizer, loss, loader).find(steps=20)

    after = torch.utils._pytree.tree_leaves([optimizer.param_groups, list(optimizer.state.values())])
    assert [bits(one) if isinstance(one, torch.Tensor) else one for one in after] == before
    assert all(a is b for a, b in zip(after, leaves, strict=True) if isinstance(b, torch.Tensor))
    assert all(a is b for a, b in zip(optimizer.param_groups, groups, strict=True))
    assert all(optimizer.state[key] is value for key, value in states.items())


def test_a_finder_puts_everything_back_when_the_loss_fails() -> None:
    """The error comes through; the weights are those of before."""
    loop = Loop()
    calls = 0

    def failing(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise ZeroDivisionError
        return Loop.loss(model, batch)

    before = loop.told()
    with pytest.raises(ZeroDivisionError):
        Finder(loop.model, loop.optimizer, failing, loop.loader).find()
    assert loop.told() == before


def test_a_finder_refuses_what_it_would_use_up() -> None:
    """An iterator; and a loss that is no loss."""
    loop = Loop()
    with pytest.raises(UsageError, match="would use up"):
        Finder(loop.model, loop.optimizer, Loop.loss, iter([1]))
    with pytest.raises(UsageError, match="gave no batch"):
        Finder(loop.model, loop.optimizer, Loop.loss, []).find()
    with pytest.raises(UsageError, match="not a tensor of one number"):
        Finder(loop.model, loop.optimizer, lambda model, batch: model(batch[0]), loop.loader).find()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A loop of 192 steps."""
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


def test_a_script_is_swept_aside(script: Path) -> None:
    """Its schedule is held back, its groups keep their ratio, it writes nothing; one object on stdout."""
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "tune", "--lr", "--json", "--lr-range", "1e-6:100", str(script)],
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ratios"] == pytest.approx([1.0, 3.0])
    assert 1e-4 < told["low"] <= told["lr"] <= told["high"] < 10
    assert 20 <= len(told["points"]) <= 100
    assert sorted(path.name for path in script.parent.iterdir()) == ["train.py"]


def test_a_script_that_is_too_short_is_said(script: Path) -> None:
    """With how many steps it made."""
    with pytest.raises(TrialFailed, match=r"made 5 steps .* 20 are needed"):
        find_lr([str(script), "short"])


def test_a_sweep_that_ends_itself_too_soon_says_why(script: Path) -> None:
    """A range that is too high is not mended by a longer training: the loss and the rate are told."""
    with pytest.raises(TrialFailed) as raised:
        find_lr([str(script), "scaled"], low=2e-2, high=1.0)
    said = str(raised.value)
    assert "the loss is nan" in said
    assert "at a rate of 2.1e-02" in said
    assert "a lower --lr-range" in said
    assert "longer" not in said


def test_a_loss_that_is_no_number_from_the_first_is_not_the_rates(script: Path) -> None:
    """It was made before any update: no range is advised."""
    script.write_text(script.read_text().replace("loss = (model", "loss = 0 / torch.zeros(()) * (model"))
    with pytest.raises(
        TrialFailed, match=r"the loss is nan.* before the rate had changed anything"
    ) as raised:
        find_lr([str(script)])
    assert "--lr-range" not in str(raised.value)


def test_a_scaled_loss_that_is_no_number_ends_the_sweep(script: Path) -> None:
    """Losses are told as they are before scaling; a step that the scaler leaves out is none to wait for."""
    found = find_lr([str(script), "scaled"], low=1e-6, high=1.0, steps=60)
    assert found.stopped == "the loss is nan"
    assert found.rates[-1] == pytest.approx(1e-2, rel=0.7)
    assert max(loss for loss in found.losses[:-1]) < 100
