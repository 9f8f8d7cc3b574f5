"""What is asked of a GPU: in a real loop beside a device that is not there; on a card, where there is one."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import dataloader as torch_dataloader

from stoker.doctor import trial
from stoker.doctor.experiments.condition import Conditions
from stoker.doctor.experiments.copy import move_again
from stoker.doctor.experiments.memory import tell_of_overflow
from stoker.doctor.experiments.syncs import SyncLines
from stoker.doctor.experiments.trace import Traced
from stoker.doctor.experiments.variants import ChannelsLast, variants
from stoker.doctor.parts import Parts
from stoker.doctor.trial import Trial
from stoker.ward.fake_device import FakeDevice
from stoker.watch.session import Plan, Session

Told = list[tuple[str, dict[str, Any]]]


class _Ended(Exception):
    """The run is over."""


class FakeChild:
    """Keeps what is reported; ends the loop by an exception, where a real one ends its process."""

    def __init__(self) -> None:
        self.told: Told = []

    def report(self, kind: str, /, **body: Any) -> None:
        self.told.append((kind, body))

    def progress(self, step: int) -> None:
        pass

    def end(self, step: int | None = None) -> None:
        raise _Ended


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a loop under a trial with a device that is not there; answers what was told, and its epochs."""
    hooks = torch_optimizer._global_optimizer_post_hooks.copy()
    monkeypatch.setattr(torch_optimizer, "_global_optimizer_post_hooks", hooks)
    monkeypatch.setattr(trial, "about_device", lambda _: {"uuid": "x", "name": "x"})
    monkeypatch.setattr(trial, "held_there", lambda _: {"used": 0, "reserved": 0})
    kind = vars(torch_dataloader)["_BaseDataLoaderIter"]
    for name in ("__next__", "_reset", "_next_index"):
        monkeypatch.setattr(kind, name, getattr(kind, name))
    session = Session(Plan(name="it", root=tmp_path))
    session.start()
    session.observer.use_device(FakeDevice())  # type: ignore[arg-type]
    parts = Parts(
        warm_steps=3, observe_steps=20, observe_seconds=0.0, replay_steps=10, replay_seconds=0.0,
        drain_seconds=0.02, drain_most=1.0, look_seconds=0.02, storage_seconds=0.0, device=True,
    )  # fmt: skip

    def run(
        net: nn.Module,
        loader: DataLoader[Any] | None,
        *,
        history: Any = None,
        probe: Any = None,
        **other: Any,
    ) -> tuple[Told, list[int]]:
        child, epochs = FakeChild(), []
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        try:
            Trial(child, session, replace(parts, **other), None, history, probe)  # type: ignore[arg-type]
            for _ in range(60):
                epochs.append(0)
                for (x,) in loader if loader is not None else [(torch.rand(4, 2),)] * 37:
                    epochs[-1] += 1
                    net(x).sum().backward()
                    optimizer.step()
        except _Ended:
            pass
        finally:
            session.finish("done")
        return child.told, epochs

    return run


ROWS = TensorDataset(torch.arange(592.0).view(296, 2))


def test_all_is_asked_in_order_and_no_epoch_is_stretched(loop: Any) -> None:
    """After the drain: the trace, switches and sizes, with held batches that count as the epoch's own."""
    told, epochs = loop(nn.Linear(2, 1), DataLoader(ROWS, batch_size=8))
    kinds = list(dict.fromkeys(kind for kind, _ in told))
    expected = [
        "first", "began", "observed", "device", "replay", "batch", "drain", "untraced", "variant", "resized",
        "finished",
    ]  # fmt: skip
    assert kinds == expected
    assert [body["samples"] for kind, body in told if kind == "resized"] == [8, 4, 2, 16]
    assert [body["name"] for kind, body in told if kind == "variant"] == ["as it is", "tf32", "bf16"]
    assert max(epochs) == 37


def test_no_epoch_is_stretched_by_batches_of_its_own_that_follow_held_ones(loop: Any) -> None:
    """With no drain between them the loop draws on where it was, for as many batches as are left."""
    told, epochs = loop(nn.Linear(2, 1), DataLoader(ROWS, batch_size=8), drain_seconds=0.0)
    assert "drain" not in [kind for kind, _ in told]
    assert max(epochs) == 37


class FakeHistory:
    """Stands where torch's own account of its allocator would."""

    stopped = 0

    def stop(self) -> None:
        self.stopped += 1

    def take(self, device: int) -> dict[str, Any]:
        return {"peak": 512 + device, "events": [512], "streams": []}


def test_the_first_steps_are_told_with_what_they_allocated(loop: Any) -> None:
    """By the size of the batches that came, before the loop is observed."""
    told, _ = loop(nn.Linear(2, 1), DataLoader(ROWS, batch_size=8), history=FakeHistory())
    kinds = list(dict.fromkeys(kind for kind, _ in told))
    assert kinds[:3] == ["first", "allocations", "began"]
    assert told[1][1] == {"samples": 8, "peak": 512, "events": [512], "streams": []}


def test_a_run_for_its_peak_alone_ends_after_its_first_steps(loop: Any) -> None:
    """With nothing else asked of it."""
    told, epochs = loop(
        nn.Linear(2, 1), DataLoader(ROWS, batch_size=8), history=FakeHistory(), peak_alone=True
    )
    assert [kind for kind, _ in told] == ["first", "allocations", "finished"]
    assert epochs == [3]


class FakeProbe:
    """Stands where convolutions would be noted and run alone."""

    began = 0

    def note(self) -> None:
        self.began += 1

    def tell(self, report: Any, samples: int, index: int) -> None:
        report("probed", samples=samples, began=self.began, index=index)


def test_convolutions_are_noted_after_the_first_step_and_run_after_all_was_recorded(loop: Any) -> None:
    """Nothing of theirs is among what the steps allocated; then the process ends."""
    told, _ = loop(
        nn.Linear(2, 1),
        DataLoader(ROWS, batch_size=8),
        history=FakeHistory(),
        probe=FakeProbe(),
        peak_alone=True,
    )
    assert [kind for kind, _ in told] == ["first", "allocations", "probed", "finished"]
    assert told[2][1] == {"samples": 8, "began": 1, "index": 0}


def test_a_compiled_loop_has_no_convolutions_noted(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be compiled anew for that."""
    monkeypatch.setattr(trial, "_compiled", lambda: (1, 0.5))
    told, _ = loop(
        nn.Linear(2, 1),
        DataLoader(ROWS, batch_size=8),
        history=FakeHistory(),
        probe=FakeProbe(),
        peak_alone=True,
    )
    assert told[2][1]["began"] == 0


def test_recording_ends_also_where_no_batch_has_come(loop: Any) -> None:
    """Of a loop without a loader nothing is told by size, and the rest of it is not to be recorded."""
    history = FakeHistory()
    told, _ = loop(nn.Linear(2, 1), None, history=history)
    assert "allocations" not in [kind for kind, _ in told]
    assert history.stopped == 1


def test_a_loop_without_a_loader_is_asked_all_but_its_sizes(loop: Any) -> None:
    """Its data is its own affair; the steps are there."""
    told, _ = loop(nn.Linear(2, 1), None)
    kinds = list(dict.fromkeys(kind for kind, _ in told))
    assert kinds == ["began", "observed", "device", "generator", "untraced", "variant", "finished"]
    assert dict(told)["finished"]["why"] == "no DataLoader was drawn from"


def test_a_size_that_raises_ends_the_run_with_the_points_before_it(loop: Any) -> None:
    """A model that takes batches of up to 8: of 16 there is no point, and the reason is told."""

    class Upto8(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) > 8:
                raise ValueError("too many")
            return super().forward(x)

    call = nn.Module._call_impl
    told, _ = loop(Upto8(2, 1), DataLoader(ROWS, batch_size=8))
    nn.Module._call_impl = call  # type: ignore[method-assign]  # a real process ends here
    assert [body["samples"] for kind, body in told if kind == "resized"] == [8, 4, 2]
    assert dict(told)["unresized"]["why"] == "ValueError: too many"
    assert told[-1][0] == "finished"


# --- on a card --------------------------------------------------------------------------------------------


def _hold(conditions: Conditions, step: Any) -> None:
    assert conditions.start()
    while True:
        step()
        if not conditions.stepped():
            return


def _model() -> tuple[nn.Module, torch.optim.Optimizer]:
    net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
    return net, torch.optim.SGD(net.parameters(), lr=0.01)


@pytest.mark.gpu
def test_the_trace_sees_kernels_copies_and_waits() -> None:
    """A loop that copies from pageable memory and reads its loss in every step."""
    net, optimizer = _model()
    rows = torch.rand(4096, 256)

    def step() -> None:
        loss = net(rows.to("cuda")).mean()
        loss.backward()
        optimizer.step()
        loss.item()

    for _ in range(3):
        step()
    traced = Traced(lambda *_, **__: None, 1.0)
    _hold(Conditions(iter([traced])), step)
    trace = traced.trace
    assert trace is not None
    assert trace.kernels >= 5
    assert 0 < trace.busy <= trace.wall
    assert trace.syncs == pytest.approx(1.0, abs=0.2)
    assert trace.pageable_bytes == pytest.approx(rows.nbytes, rel=0.01)
    assert trace.pinned_bytes == 0


@pytest.mark.gpu
def test_lines_that_wait_are_those_of_the_script(tmp_path: Path) -> None:
    """`.item()` and a mask, each once a step; a copy to the device is none."""
    net, optimizer = _model()
    rows = torch.rand(64, 256)

    def step() -> None:
        answer = net(rows.to("cuda"))
        answer.mean().backward()
        optimizer.step()
        answer.mean().item()
        answer[answer > 0]

    told: Told = []
    session = Session(Plan(name="it", root=tmp_path))
    session.start()
    try:
        for _ in range(3):
            step()
        _hold(Conditions(iter([SyncLines(lambda kind, **body: told.append((kind, body)))])), step)
    finally:
        session.finish("done")
    ((_, body),) = told
    assert [each for _, each in body["lines"]] == [1.0, 1.0]
    assert all(line.startswith("test_on_device.py:") for line, _ in body["lines"])


@pytest.mark.gpu
def test_pinned_memory_is_moved_faster() -> None:
    """64 MB each way; three figures, all of them measured."""
    told: Told = []
    move_again(64 << 20, lambda kind, **body: told.append((kind, body)))
    ((kind, body),) = told
    assert kind == "copied"
    assert body["bytes"] == 64 << 20
    assert 0 < body["pinned"] < body["pageable"]


def test_weights_lie_as_they_did_after_their_channels_were_last() -> None:
    """The sizes that come next are the script's own: a convolution follows the layout of its weights."""
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 2, 3)
    second.weight.data = second.weight.data.contiguous(memory_format=torch.channels_last)
    net = nn.Sequential(first, second)
    before = [(one.detach().clone(), one.stride()) for one in net.parameters()]
    net(torch.rand(2, 3, 8, 8)).mean().backward()
    switched = ChannelsLast(None, lambda *_, **__: None, [net])
    switched.enter()
    assert first.weight.is_contiguous(memory_format=torch.channels_last)
    switched.leave()
    for one, (numbers, strides) in zip(net.parameters(), before, strict=True):
        assert one.stride() == strides
        assert torch.equal(one, numbers)
    assert first(torch.rand(2, 3, 8, 8)).is_contiguous()


@pytest.mark.gpu
def test_switches_of_precision_run_and_put_everything_back() -> None:
    """A convolution in float32, TF32, bfloat16 and with its channels last."""
    net = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(1)).cuda()
    x = torch.rand(16, 3, 32, 32, device="cuda")
    net(x)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        net(x).mean().backward()
        optimizer.step()

    told: Told = []
    tell = lambda kind, **body: told.append((kind, body))  # noqa: E731
    _hold(Conditions(variants(None, tell, roots=[net], precision=True, emptied=True)), step)
    assert [body["name"] for _, body in told] == ["as it is", "kept_cache", "tf32", "bf16", "channels_last"]
    assert not torch.is_autocast_enabled("cuda")


@pytest.mark.gpu
def test_running_out_of_memory_is_told_with_what_was_held(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a hundredth of the card: what was asked for, reserved and allowed."""
    told: Told = []
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.01)
    try:
        tell_of_overflow(lambda kind, **body: told.append((kind, body)), list)
        with pytest.raises(torch.OutOfMemoryError) as raised:
            torch.empty(total // 50, dtype=torch.uint8, device="cuda")
        sys.excepthook(torch.OutOfMemoryError, raised.value, raised.tb)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    ((kind, body),) = told
    assert kind == "overflow"
    assert body["allowed"] == pytest.approx(total / 100, rel=0.01)
    assert body["asked"] == pytest.approx(total / 50, rel=0.02)


SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

rows = TensorDataset(torch.rand(20_000, 512), torch.zeros(20_000, 1))
net = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 1)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(400):
    for x, y in DataLoader(rows, batch_size=64, pin_memory=True):
        loss = nn.functional.mse_loss(net(x.cuda(non_blocking=True)), y.cuda(non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.gpu
def test_a_diagnosis_on_a_card_has_all_its_parts(tmp_path: Path) -> None:
    """From the command line: trace, sizes with peaks, and a budget of the card."""
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "stoker", "doctor", "--json", "--budget", "60", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=150, check=True)
    told = json.loads(done.stdout)
    assert told["verdict"]["cause"]
    assert "trace" not in told["not_measured"], told["not_measured"]
    assert "resize" not in told["not_measured"], told["not_measured"]
    assert told["device"]["trace"]["kernels"] > 5
    assert [point["samples"] for point in told["device"]["resized"]][:4] == [64, 32, 16, 128]
    assert all(point["peak"] > 0 for point in told["device"]["resized"])


@pytest.mark.gpu
@pytest.mark.slow
def test_a_batch_that_is_asked_about_is_run_in_a_process_of_its_own(tmp_path: Path) -> None:
    """So are twice and half the script's size, by which others are told."""
    (tmp_path / "train.py").write_text(SCRIPT)
    asked = ["--json", "--no-report", "--budget", "90", "--fits", "batch=96,vram=8GB"]
    command = [sys.executable, "-m", "stoker", "doctor", *asked, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=150, check=True)
    told = json.loads(done.stdout)
    card = told["budget"]["vram"]
    assert card["ran"][:2] == [64, 96], told["not_measured"]
    assert len(card["ran"]) >= 3
    assert card["error"] is not None
    (answer,) = told["fits"]
    assert answer["fits"] is True
    assert "has run with" in answer["text"]
