"""Convolutions of a loop: noted as the script calls them, and run alone with other sizes afterwards."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from stoker.doctor.device_evidence import UNPROBED, missing_of, read_fresh
from stoker.doctor.experiments import convolutions, history
from stoker.doctor.experiments.convolutions import Convolutions
from stoker.scratch import Message

NAMES = [f"{name}{rank}d" for name in ("conv", "conv_transpose") for rank in (1, 2, 3)]


class Card:
    """Stands where a card's memory history would: the calls themselves are made, on the CPU."""

    def __init__(self) -> None:
        self.refuses: Callable[[], bool] = lambda: False

    def __call__(self, device: torch.device, work: Callable[[], None]) -> list[int] | None:
        if self.refuses():
            return None
        work()
        return [512, 64, -2]


class Told:
    """What the process has told of."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def __call__(self, kind: str, /, **body: Any) -> None:
        self.messages.append(Message(kind=kind, body=body, at=1.0))

    @property
    def calls(self) -> dict[int, list[str]]:
        """Pieces that ran, by size."""
        return {
            one.body["samples"]: [call for call, _ in one.body["calls"]]
            for one in self.messages
            if one.kind == "probed"
        }


@pytest.fixture(autouse=True)
def functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own are back afterwards."""
    for name in NAMES:
        for place in (torch, torch.nn.functional):
            monkeypatch.setattr(place, name, getattr(place, name))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What torch is asked for by conv2d, however it is called."""
    seen: list[dict[str, Any]] = []
    plain = torch.conv2d

    def conv2d(input: torch.Tensor, weight: torch.Tensor, bias: Any = None, *rest: Any, **how: Any) -> Any:
        out = plain(input, weight, bias, *rest, **how)
        seen.append({
            "shape": tuple(input.shape), "stride": input.stride(), "weight_stride": weight.stride(),
            "input": input.requires_grad, "weight": weight.requires_grad, "grad": torch.is_grad_enabled(),
            "out": out.dtype, "how": (rest, how),
        })  # fmt: skip
        return out

    monkeypatch.setattr(torch, "conv2d", conv2d)
    monkeypatch.setattr(torch.nn.functional, "conv2d", conv2d)
    return seen


def test_a_layer_is_run_with_other_sizes_and_else_as_it_was_called(made: list[dict[str, Any]]) -> None:
    """Its layout, settings and gradients are those of the step; all that differs is the number of samples."""
    probe, told = Convolutions((8, 12), kind="cpu", record=Card()), Told()
    net = nn.Conv2d(3, 6, 3, stride=2, padding=1, groups=3)
    net.weight.data = net.weight.data.to(memory_format=torch.channels_last)
    probe.note()
    for needs in (True, False):
        net(torch.rand(4, 3, 16, 16, requires_grad=needs).to(memory_format=torch.channels_last))
    noted = made[:2]
    probe.tell(told, 4, 0)
    again = made[2:]
    assert [one["shape"] for one in again] == [(8, 3, 16, 16)] * 2 + [(12, 3, 16, 16)] * 2
    for one, there in zip(noted * 2, again, strict=True):
        assert {**there, "shape": None, "how": None} == {**one, "shape": None, "how": None}
    assert again[0]["how"] == ((), {"stride": (2, 2), "padding": (1, 1), "dilation": (1, 1), "groups": 3})
    name = "conv2d of 3 x 16 x 16 by 6 x 1 x 3 x 3"
    assert told.calls[8] == [
        f"{name}, {piece} ({number})" for number in (1, 2) for piece in ("forward", "backward")
    ]
    assert [one.kind for one in told.messages] == ["probed", "probed"]


def test_the_same_call_is_run_once_however_often_it_was_made() -> None:
    """Each step makes it, and so may several layers."""
    probe, told = Convolutions((8,), kind="cpu", record=Card()), Told()
    one, other = nn.Conv1d(2, 2, 3, padding=1), nn.Conv1d(2, 2, 3, padding=1)
    probe.note()
    for _ in range(3):
        other(one(torch.rand(4, 2, 9, requires_grad=True))).sum().backward()
    probe.tell(told, 4, 0)
    assert len(told.calls[8]) == 2


def test_functions_are_seen_as_layers_are() -> None:
    """By position or by name, of any rank, also transposed."""
    probe, told = Convolutions((8,), kind="cpu", record=Card()), Told()
    probe.note()
    torch.nn.functional.conv2d(torch.rand(4, 1, 8, 8), weight=torch.rand(2, 1, 3, 3), padding="same")
    torch.conv1d(input=torch.rand(4, 1, 8), weight=torch.rand(2, 1, 3), stride=[2])
    nn.ConvTranspose3d(2, 1, 2, stride=2)(torch.rand(4, 2, 2, 2, 2))
    probe.tell(told, 4, 0)
    assert told.calls == {
        8: [
            "conv2d of 1 x 8 x 8 by 2 x 1 x 3 x 3, forward (1)",
            "conv1d of 1 x 8 by 2 x 1 x 3, forward (2)",
            "conv_transpose3d of 2 x 2 x 2 x 2 by 2 x 1 x 2 x 2 x 2, forward (3)",
            "conv_transpose3d of 2 x 2 x 2 x 2 by 2 x 1 x 2 x 2 x 2, backward (3)",
        ]
    }
    assert [one.kind for one in told.messages] == ["probed"]


def test_frozen_layers_and_passes_without_gradients_have_no_backward() -> None:
    """A frozen layer in the middle still has one, for what comes before it."""
    probe, told = Convolutions((8,), kind="cpu", record=Card()), Told()
    net = nn.Conv2d(1, 1, 3)
    probe.note()
    with torch.no_grad():
        net(torch.rand(4, 1, 8, 8))
    net.requires_grad_(False)
    net(torch.rand(4, 1, 9, 9))
    net(torch.rand(4, 1, 10, 10, requires_grad=True))
    probe.tell(told, 4, 0)
    pieces = [call.split(", ")[1] for call in told.calls[8]]
    assert pieces == ["forward (1)", "forward (2)", "forward (3)", "backward (3)"]


def test_autocast_is_as_it_was(made: list[dict[str, Any]]) -> None:
    """On where it was on, with its kind of number, and off where it was off."""
    probe, told = Convolutions((8,), kind="cpu", record=Card()), Told()
    net = nn.Conv2d(1, 1, 3)
    probe.note()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net(torch.rand(4, 1, 8, 8))
        with torch.autocast("cpu", enabled=False):
            net(torch.rand(4, 1, 8, 8))
        probe.tell(told, 4, 0)
    assert [one["out"] for one in made] == [torch.bfloat16, torch.float32] * 2


def test_samples_that_are_folded_grow_with_the_batch(made: list[dict[str, Any]]) -> None:
    """Of 4 samples with 5 pictures each 20 are convolved, of 8 there are 40."""
    probe, told = Convolutions((8,), kind="cpu", record=Card()), Told()
    probe.note()
    nn.Conv2d(1, 1, 3)(torch.rand(4, 5, 1, 8, 8).flatten(0, 1))
    probe.tell(told, 4, 0)
    assert made[-1]["shape"] == (40, 1, 8, 8)


def test_what_does_not_grow_with_the_batch_is_left_out_and_said() -> None:
    """A single picture beside the batch, or samples that do not lie one after the other."""
    probe, told = Convolutions((8,), kind="cpu", record=Card()), Told()
    net = nn.Conv2d(1, 1, 3)
    probe.note()
    net(torch.rand(1, 1, 8, 8))
    net(torch.rand(1, 9, 9, 4).permute(3, 0, 1, 2))
    net(torch.rand(4, 1, 10, 10))
    probe.tell(told, 4, 0)
    assert [call.split(" by ")[0] for call in told.calls[8]] == ["conv2d of 1 x 10 x 10"] * 2
    why = missing_of(told.messages)[UNPROBED]
    assert "conv2d of 1 x 8 x 8 by 1 x 1 x 3 x 3 has a batch of 1 where the loop's has 4 samples" in why
    assert "conv2d of 1 x 9 x 9" in why


def test_a_size_that_does_not_fit_leaves_the_call_out_from_there_on() -> None:
    """What was told of smaller ones stays, and other calls go on."""
    card, told = Card(), Told()
    probe = Convolutions((4, 8, 16), kind="cpu", record=card)
    probe.note()
    for width in (8, 9):
        torch.conv1d(torch.rand(4, 1, width), torch.rand(1, 1, 3))
    left = iter([False, False, True, False, False])
    card.refuses = lambda: next(left)
    probe.tell(told, 4, 0)
    names = {size: [call.split(" by ")[0] for call in calls] for size, calls in told.calls.items()}
    assert names == {
        4: ["conv1d of 1 x 8", "conv1d of 1 x 9"],
        8: ["conv1d of 1 x 9"],
        16: ["conv1d of 1 x 9"],
    }
    said = "conv1d of 1 x 8 by 1 x 1 x 3 with 8 samples does not fit"
    assert missing_of(told.messages) == {UNPROBED: said}


def test_when_the_time_is_up_the_sizes_that_are_through_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is said."""
    monkeypatch.setattr(convolutions, "_SECONDS", -1.0)
    probe, told = Convolutions((4, 8), kind="cpu", record=Card()), Told()
    probe.note()
    torch.conv1d(torch.rand(4, 1, 8), torch.rand(1, 1, 3))
    probe.tell(told, 4, 0)
    assert told.calls == {}
    assert "used up before 4 samples" in missing_of(told.messages)[UNPROBED]


def test_kernels_that_are_chosen_by_their_time_are_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a trial alone finds fastest says nothing of the step."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    probe, told = Convolutions((4, 8), kind="cpu", record=Card()), Told()
    probe.note()
    torch.conv1d(torch.rand(4, 1, 8), torch.rand(1, 1, 3))
    probe.tell(told, 4, 0)
    assert told.calls == {}
    assert "cudnn.benchmark" in missing_of(told.messages)[UNPROBED]


def test_a_loop_without_convolutions_has_nothing_to_tell() -> None:
    """And nothing is lacking; nor are calls on another device than the card noted."""
    probe, told = Convolutions((4, 8)), Told()
    probe.note()
    torch.conv1d(torch.rand(4, 1, 8), torch.rand(1, 1, 3))
    probe.tell(told, 4, 0)
    assert told.messages == []


def test_a_compiled_loop_is_left_alone() -> None:
    """It would be compiled anew; that nothing was noted is said."""
    probe, told = Convolutions((4, 8)), Told()
    probe.tell(told, 4, 0)
    assert missing_of(told.messages) == {UNPROBED: "nothing was noted: the loop is compiled"}


def test_what_torch_raises_is_told_and_the_script_goes_on() -> None:
    """In the noting and in the running."""
    probe, told = Convolutions((4, 8), kind="none of torch's", record=Card()), Told()
    probe._kind = "cpu"
    probe.note()
    torch.conv1d(torch.rand(4, 1, 8), torch.rand(1, 1, 3))
    probe._kind = "none of torch's"
    assert torch.conv1d(torch.rand(4, 1, 8), torch.rand(1, 1, 3)).shape == (4, 1, 6)
    probe.tell(told, 4, 0)
    assert "RuntimeError" in missing_of(told.messages)[UNPROBED]


def test_what_ran_alone_belongs_to_the_run_of_its_process() -> None:
    """Message by message, size by size."""
    probe, told = Convolutions((4, 8), kind="cpu", record=Card()), Told()
    probe.note()
    torch.conv1d(torch.rand(4, 1, 8), torch.rand(1, 1, 3))
    told("allocations", samples=4, peak=9, events=[512], streams=[])
    probe.tell(told, 4, 0)
    (run,) = read_fresh(told.messages)
    (call,) = run.probed
    assert call.call == "conv1d of 1 x 8 by 1 x 1 x 3, forward (1)"
    assert call.events == {4: (512, 64, -2), 8: (512, 64, -2)}


def test_a_piece_of_work_is_recorded_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begun before it, ended after it; an allocation that was refused on the way makes it worthless."""
    entries: list[dict[str, Any]] = [
        {"action": "free_completed", "addr": 7, "size": 64, "stream": 0},
        {"action": "segment_free", "addr": 9, "size": 64, "stream": 0},
        {"action": "alloc", "addr": 1, "size": 512, "stream": 0},
        {"action": "alloc", "addr": 2, "size": 64, "stream": 0},
        {"action": "free_completed", "addr": 2, "size": 64, "stream": 0},
    ]
    order: list[Any] = []
    memory = torch.cuda.memory
    monkeypatch.setattr(memory, "_record_memory_history", lambda on, **_: order.append(on))
    monkeypatch.setattr(memory, "_snapshot", lambda _: {"device_traces": [entries]})
    card = torch.device("cuda", 0)
    assert history.recorded(card, lambda: order.append("work")) == [512, 64, -2]
    assert order == ["all", "work", None]
    entries.append({"action": "oom", "size": 9, "stream": 0, "device_free": 0})
    assert history.recorded(card, lambda: None) is None

    def overflow() -> None:
        raise torch.OutOfMemoryError

    assert history.recorded(card, overflow) is None
    assert order[-1] is None


@pytest.mark.gpu
def test_a_step_takes_the_workspaces_that_its_convolutions_take_alone() -> None:
    """On a card, at the step's own size: each that is large is one of theirs."""
    from stoker.doctor.skeleton import parts_of
    from stoker.doctor.workspaces import LARGE

    device = torch.device("cuda", 0)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(16, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)).to(
        device
    )
    picture = torch.rand(32, 16, 128, 128, device=device)
    probe, told = Convolutions((32,)), Told()
    probe.note()

    def step() -> None:
        net(picture).sum().backward()

    step()
    events = history.recorded(device, step)
    assert events is not None
    took = {one for one in parts_of(events, {}).workspaces if sum(one) >= LARGE}
    probe.tell(told, 32, 0)
    assert [one.kind for one in told.messages] == ["probed"]
    alone = {
        one
        for _, made in told.messages[0].body["calls"]
        for one in parts_of(made, {}).workspaces
        if sum(one) >= LARGE
    }
    assert took
    assert took <= alone
