"""torch's account of its allocator: begun, taken and stopped, with parts of torch that may not be there."""

from typing import Any

import pytest
import torch

from stoker.doctor.allocations import MOST_EVENTS
from stoker.doctor.device import Others
from stoker.doctor.device_evidence import context_bytes, missing_of, read_fresh
from stoker.doctor.experiments.history import History
from stoker.doctor.experiments.memory import held_there
from stoker.scratch import Message


class Torch:
    """Stands where the card would: what was queued for CUDA's start, and whether it records."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queued: list[Any] = []
        self.recorded: list[Any] = []
        self.entries: list[dict[str, Any]] = [{"action": "alloc", "addr": 1, "size": 512, "stream": 0}]
        monkeypatch.setattr(torch.cuda, "_lazy_call", self.queued.append)
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: 2 << 20)
        monkeypatch.setattr(
            torch.cuda.memory, "_record_memory_history", lambda on, **_: self.recorded.append(on)
        )
        monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda _: {"device_traces": [self.entries]})

    def start(self) -> None:
        for call in self.queued:
            call()


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Torch:
    return Torch(monkeypatch)


def _raise(error: Exception) -> Any:
    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


def test_it_is_begun_with_cuda_and_ends_when_it_is_taken(card: Torch) -> None:
    """What the script allocates after that costs it nothing."""
    history = History()
    assert card.recorded == []
    card.start()
    assert history.take(0) == {"peak": 2 << 20, "events": [512], "streams": []}
    assert card.recorded == ["all", None]


def test_one_that_was_stopped_does_not_begin_later(card: Torch) -> None:
    """A script may come to CUDA after its first steps; recording would then never end."""
    history = History()
    history.stop()
    card.start()
    assert card.recorded == []


def test_one_that_runs_is_stopped_once(card: Torch) -> None:
    """Also where nothing is taken."""
    history = History()
    card.start()
    history.stop()
    history.stop()
    assert card.recorded == ["all", None]


def test_without_cuda_nothing_is_told_but_why() -> None:
    """The real calls of a torch that has not started CUDA."""
    if torch.cuda.is_initialized():
        pytest.skip("CUDA was started in this process")
    told = History().take(0)
    assert (told["peak"], told["events"], told["why"]) == (None, [], "CUDA was not started")


@pytest.mark.parametrize(
    "error", [AttributeError("it is gone"), TypeError("another signature"), RuntimeError("pluggable\nhere")]
)
@pytest.mark.parametrize("name", ["_lazy_call", "_record_memory_history", "_snapshot", "max_memory_reserved"])
def test_what_torch_raises_is_told_and_not_raised(
    card: Torch, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception
) -> None:
    """These are private parts of torch, called inside the script's own step."""
    place = torch.cuda if hasattr(torch.cuda, name) else torch.cuda.memory
    monkeypatch.setattr(place, name, _raise(error))
    history = History()
    card.start()
    told = history.take(0)
    assert told["events"] == []
    assert told["why"] == f"{type(error).__name__}: {error}".splitlines()[0]
    assert (told["peak"] is None) == (name == "max_memory_reserved")
    assert missing_of([_message("allocations", samples=8, **told)]) == {"allocations": told["why"]}


def test_too_many_allocations_are_told_as_missing(card: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that torch did not keep, and those that are too many to be played."""
    monkeypatch.setattr("stoker.doctor.experiments.history._MOST_EVENTS", 1)
    history = History()
    card.start()
    told = history.take(0)
    assert "more than 1 allocations" in told["why"]
    long = _message("allocations", samples=8, peak=9, events=[512] * (MOST_EVENTS + 1), streams=[])
    assert str(MOST_EVENTS) in missing_of([long])["allocations"]
    assert missing_of([_message("allocations", samples=8, peak=9, events=[512], streams=[])]) == {}


def test_a_run_without_a_peak_is_no_run_of_its_size() -> None:
    """Nothing could be compared with it."""
    assert read_fresh([_message("allocations", samples=8, peak=None, events=[], streams=[])]) == ()


def test_an_allocator_that_counts_nothing_leaves_the_context_untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is said; what is used on the card is known."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (6, 10))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 3)
    assert held_there(0) == {"used": 4, "reserved": 3}
    monkeypatch.setattr(torch.cuda, "memory_reserved", _raise(RuntimeError("another allocator\nat C++")))
    told = _message("device", **held_there(0))
    assert told.body == {"used": 4, "reserved": None, "why": "another allocator"}
    assert context_bytes([told], Others(total=10, bytes=0, busy=0.0)) is None
    assert missing_of([told]) == {"context": "another allocator"}


def _message(kind: str, **body: Any) -> Message:
    return Message(kind=kind, body=body, at=1.0)
