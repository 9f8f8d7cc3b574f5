"""Steps under a condition: timed after they are warm, at the loop's own steps, and put back afterwards."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from stoker.doctor.experiments.condition import Condition, Conditions
from stoker.doctor.experiments.memory import Emptied, bytes_asked
from stoker.doctor.experiments.resize import Raised, resized, sizes, sizes_for
from stoker.doctor.experiments.syncs import SyncLines
from stoker.doctor.experiments.variants import ChannelsLast, variants
from stoker.doctor.held import RING, Held


class Clock:
    """Seconds by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Some(Condition):
    """Keeps what happens to it."""

    warm, steps, most = 2, 4, 1.0

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def enter(self) -> None:
        self.log.append("enter")

    def begin(self) -> None:
        self.log.append("begin")

    def leave(self) -> None:
        self.log.append("leave")

    def tell(self, seconds: float, steps: int) -> None:
        self.log.append((round(seconds, 6), steps))


@pytest.mark.parametrize(("step", "steps", "timed"), [(0.1, 6, 4), (0.6, 4, 2), (3.0, 2, 1)])
def test_steps_are_timed_after_the_warm_ones_and_for_so_long_at_most(
    step: float, steps: int, timed: int
) -> None:
    """Short steps by their number, long ones by the time; always at least one."""
    clock, log = Clock(), []  # type: ignore[var-annotated]
    conditions = Conditions(iter([Some(log)]), clock)
    assert conditions.start()
    made = 0
    while True:
        clock.now += step
        made += 1
        if not conditions.stepped():
            break
    assert made == steps
    assert log == ["enter", "begin", "leave", (step, timed)]


def test_what_is_next_may_depend_on_what_came_before() -> None:
    """Conditions are asked for one at a time."""
    clock, log = Clock(), []  # type: ignore[var-annotated]

    def some() -> Iterator[Condition]:
        yield Some(log)
        log.append("asked")
        yield Some(log)

    conditions = Conditions(some(), clock)
    conditions.start()
    while conditions.stepped():
        clock.now += 0.1
    assert log.index("asked") > log.index("leave")
    assert log.count("enter") == 2
    assert not conditions.stepped()


def test_no_condition_is_over_at_once() -> None:
    """Nothing to ask: the run may end."""
    assert not Conditions(iter(())).start()


@pytest.mark.parametrize(
    ("samples", "expected"),
    [(32, (32, 16, 8, 64)), (8, (8, 4, 2, 16)), (4, (4, 2, 8, 16)), (2, (2, 4, 8)), (1, (1, 2, 4))],
)
def test_sizes_are_tried_the_safest_first(samples: int, expected: tuple[int, ...]) -> None:
    """Its own, smaller ones, then larger; a batch of 1 only where it is the loop's own."""
    assert sizes_for(samples) == expected


def test_a_batch_is_cut_or_repeated_along_its_samples() -> None:
    """Tensors by their first dimension, wherever they stand; what is no tensor stays."""
    batch = {
        "x": torch.arange(6.0).view(3, 2),
        "y": [torch.arange(3)],
        "name": "train",
        "scale": torch.tensor(2.0),
    }
    small, large = resized(batch, 2), resized(batch, 7)
    assert small["x"].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert large["y"][0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert (small["name"], float(large["scale"])) == ("train", 2.0)


def test_a_batch_that_is_not_rows_of_samples_is_left_alone() -> None:
    """A graph's edges are not its samples: None, and no point."""
    assert resized([torch.rand(3, 2), torch.zeros(2, 9)], 6) is None
    assert resized("words", 2) is None


def _held(samples: int) -> Held:
    held = Held()
    for at in range(RING):
        held.keep((torch.full((samples, 3), float(at)), torch.zeros(samples, 1)))
    return held


def _raise(error: BaseException) -> None:
    raise error


def test_other_sizes_reach_the_loop_and_are_told() -> None:
    """A real loop on CPUs: every size that was tried is a point, without bytes of a card."""
    told: list[tuple[str, dict[str, Any]]] = []
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    conditions = Conditions(sizes(_held(8), lambda kind, **body: told.append((kind, body)), _raise))
    assert conditions.start()
    seen: list[int] = []
    while True:
        held = conditions.held
        assert held is not None
        x, y = held.next()
        seen.append(len(x))
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
        if not conditions.stepped():
            break
    assert [kind for kind, _ in told] == ["resized"] * 4
    assert [body["samples"] for _, body in told] == [8, 4, 2, 16]
    assert all(body["seconds"] > 0 and body["peak"] is None for _, body in told)
    assert sorted(set(seen)) == [2, 4, 8, 16]


def test_what_a_size_raises_is_told_before_the_script_can_catch_it() -> None:
    """A model of a fixed size: the run ends inside its call, and afterwards all is as it was."""
    call, ended = nn.Module._call_impl, []

    def end(error: BaseException) -> None:
        ended.append(str(error))
        raise SystemExit

    net = nn.Linear(3, 1)
    with Raised(end), pytest.raises(SystemExit):
        net(torch.rand(2, 5))
    assert len(ended) == 1
    assert nn.Module._call_impl is call
    assert net(torch.rand(2, 3)).shape == (2, 1)


def test_variants_put_everything_back() -> None:
    """On CPUs they switch what a GPU would heed: flags, hooks and the cache's emptying are as before."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
    told: list[str] = []
    empty = torch.cuda.empty_cache
    flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    tried = variants(
        None, lambda _, **body: told.append(body["name"]), roots=[net], precision=True, emptied=True
    )
    conditions = Conditions(tried)
    assert conditions.start()
    while True:
        net(torch.rand(2, 3, 8, 8)).sum().backward()
        if not conditions.stepped():
            break
    assert told == ["as it is", "kept_cache", "tf32", "bf16", "channels_last"]
    assert torch.cuda.empty_cache is empty
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == flags
    assert not torch.is_autocast_enabled("cuda")
    assert not net._forward_hooks
    assert not net._forward_pre_hooks


def test_autocast_holds_inside_the_models_call_alone() -> None:
    """Also where the loop stands in an autocast that is switched off; afterwards that is as it was."""
    seen: list[bool] = []

    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(torch.is_autocast_enabled("cuda"))
            return x.to(torch.bfloat16)

    net = Asks()
    variant = ChannelsLast(None, lambda *_, **__: None, [net])
    variant.enter()
    answer = net(torch.rand(2, 3, 4, 4))
    assert seen == [True]
    assert answer.dtype == torch.float32
    assert not torch.is_autocast_enabled("cuda")
    variant.leave()
    assert net(torch.rand(2, 3, 4, 4)).dtype == torch.bfloat16


def test_lines_that_are_warned_of_are_the_scripts_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch's warning, given here by hand; afterwards filters are as they were."""
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    told: list[dict[str, Any]] = []
    before = list(warnings.filters), warnings.showwarning
    conditions = Conditions(iter([SyncLines(lambda _, **body: told.append(body))]))
    assert conditions.start()
    while True:
        for _ in range(2):
            warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)
        if not conditions.stepped():
            break
    ((line, each),) = told[0]["lines"]
    assert line.startswith("test_conditions.py:")
    assert each == 2.0
    assert modes == ["warn", "default"]
    assert (list(warnings.filters), warnings.showwarning) == before


def test_emptied_caches_are_counted_with_their_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.cuda.empty_cache()` still does what it does."""
    done: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append(1))
    emptied = Emptied()
    torch.cuda.empty_cache()
    torch.cuda.empty_cache()
    assert (emptied.calls, len(done)) == (2, 2)
    assert emptied.line is not None
    assert emptied.line.startswith("test_conditions.py:")


def test_what_was_asked_for_is_read_from_the_error() -> None:
    """In torch's words; None in others."""
    assert bytes_asked("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has") == int(2.5 * (1 << 30))
    assert bytes_asked("CUDA error: out of memory") is None
