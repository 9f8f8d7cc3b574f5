"""What a finder's runs may have left behind is said, in text and JSON."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from stoker.scratch import Message, Result
from stoker.scratch.values import Shield
from stoker.tune import lr, lr_words, micro_command
from stoker.tune.aside import notes_of
from stoker.tune.micro_found import MicroBatch
from stoker.tune.micro_trial import read

POINTS = tuple(Message(kind="point", body={"lr": 1e-4 * at, "loss": 1.0}, at=0.0) for at in range(1, 31))
GROUPS = Message(kind="groups", body={"ratios": [1.0]}, at=0.0)
MEASURED = Message(kind="measured", body={"rate": 5.0, "vram": None}, at=0.0)


def result(**given: Any) -> Result:
    """A run behind a shield in part, of which a process stands in the kernel."""
    shield = Shield(kind="partial", by="patches", reason="no Landlock")
    left: dict[str, Any] = {"shield": shield, "left": (4242,)}
    return Result(outcome="done", reason="", seconds=1.0, **{**left, **given})


def as_text(show: Any, found: Any) -> str:
    console = Console(record=True, width=200, file=StringIO())
    show(found, console)
    return console.export_text()


def test_a_full_shield_is_no_news() -> None:
    """And nothing is said where nothing is left."""
    assert notes_of(result(shield=Shield(kind="full", by="overlay"), left=())) == ()


def test_a_sweep_says_what_it_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """That its shield was partial, and which processes are still there."""
    monkeypatch.setattr(lr, "run", lambda plan: result(messages=(GROUPS, *POINTS)))
    curve = lr.find_lr(["train.py"])
    for told in (as_text(lr_words.show, curve), str(curve.to_json()["notes"])):
        assert "the write shield is partial: no Landlock" in told
        assert "4242" in told


def test_the_finder_of_micro_batches_says_what_it_left() -> None:
    """Once, however many trials say the same."""
    one = read(8, result(messages=(MEASURED,)))
    found = MicroBatch(size=8, batch=8, rate=5.0, whole=5.0, reason="", trials=(one, one))
    assert len(found.to_json()["notes"]) == 2
    for told in (as_text(micro_command.show, found), str(found.to_json()["notes"])):
        assert "the write shield is partial: no Landlock" in told
        assert "4242" in told
