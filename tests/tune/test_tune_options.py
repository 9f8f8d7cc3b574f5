"""What `stoker tune` is asked: options that would do nothing, places that cannot be written, a dry run."""

import json
from pathlib import Path
from typing import Any

import pytest
from test_tune_report import RUN, found

from stoker.changes import Kind
from stoker.cli import tune as verb
from stoker.doctor.examination import Diagnosis
from stoker.doctor.verdict import reach
from stoker.errors import NotPermitted, UsageError
from stoker.tune import command, settings_file
from stoker.tune.search import Finds, Search


@pytest.fixture
def diagnosed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A diagnosis that is known; a search would fail."""

    def begin(words: Any, *, kinds: frozenset[Kind], finds: Finds, **_: Any) -> tuple[Diagnosis, Search]:
        told = Diagnosis(
            verdict=reach(RUN), evidence=RUN, record=tmp_path, seconds=9.0, shield="full", notes=()
        )
        return told, Search(verdict=told.verdict, run=RUN, kinds=kinds, finds=finds)

    def find(*_: Any, **__: Any) -> None:
        pytest.fail("a search was begun")

    monkeypatch.setattr(command, "begin", begin)
    monkeypatch.setattr(command, "find", find)
    monkeypatch.setattr(command, "find_workers", find)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lr": True, "dry_run": True}, "--dry-run beside --lr would do nothing"),
        ({"micro_batch": True, "resume": Path("x")}, "--resume beside --micro-batch would do nothing"),
        ({"workers": True, "strict": True, "out": Path("x")}, "--strict, --out beside --workers would do"),
        ({"lr_range": "1e-6:1", "lr_steps": 50}, "--lr-range, --lr-steps without --lr would do nothing"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(given: dict[str, Any], said: str) -> None:
    """Nobody waits for a search that is other than the one asked for."""
    with pytest.raises(UsageError, match=said):
        verb(["train.py"], **given)


def test_a_kind_that_there_is_not_is_refused_beside_a_finder_too() -> None:
    """With those that there are."""
    with pytest.raises(UsageError, match="--allow speed: there are numerics and optimization"):
        verb(["train.py"], micro_batch=True, allow=["speed"])


@pytest.mark.parametrize("kind", ["numerics", "optimization"])
def test_strict_and_a_kind_that_is_allowed_are_refused_together(kind: str) -> None:
    """One leaves every loss as it is, the other does not: neither is guessed."""
    with pytest.raises(UsageError, match=f"--strict leaves every loss as it is, and --allow {kind} does not"):
        verb(["train.py"], strict=True, allow=[kind])


@pytest.mark.usefixtures("diagnosed")
@pytest.mark.parametrize("workers", [False, True])
def test_a_dry_run_as_json_is_one_object(workers: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """With what would be tried, why, and what is predicted of it; of the workers' finder only its own."""
    verb(["train.py"], dry_run=True, workers=workers, as_json=True)
    told = json.loads(capsys.readouterr().out)
    first = told["would_try"][0]
    assert (told["schema"], told["cause"]) == (1, reach(RUN).cause)
    assert set(first) == {"change", "value", "why", "predicted"}
    assert first["predicted"]["low"] < first["predicted"]["mid"] < first["predicted"]["high"]
    changes = {one["change"] for one in told["would_try"]}
    assert "num_workers" in changes
    assert (changes <= {"num_workers", "prefetch_factor"}) == workers
    assert bool(told["not_tried"]) != workers


@pytest.mark.usefixtures("diagnosed")
def test_a_place_for_the_settings_that_cannot_be_is_refused_before_the_search(tmp_path: Path) -> None:
    """A folder, no folder, a file that is no text: each says what to do."""
    with pytest.raises(UsageError, match="is a folder: name a file in it"):
        verb(["train.py"], out=tmp_path)
    with pytest.raises(UsageError, match=r"there is no folder .*gone: make it, or name another place"):
        verb(["train.py"], out=tmp_path / "gone" / "stoker.toml")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff")
    with pytest.raises(UsageError, match="cannot be read, so it is not written over"):
        verb(["train.py"], out=tmp_path / "picture.png")


def test_a_place_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    """Looking at it makes no file, and changes none."""
    settings_file.check(tmp_path / "stoker.toml")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "stoker.toml").write_text("[memory]\npeak_bytes = 5\n")
    settings_file.check(tmp_path / "stoker.toml")
    assert (tmp_path / "stoker.toml").read_text() == "[memory]\npeak_bytes = 5\n"


def test_what_was_found_is_told_where_its_settings_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk is full by then, say: the figures come all the same, then the error."""
    (tmp_path / "stoker.toml").mkdir()
    with pytest.raises(UsageError, match="cannot be read, so it is not written over"):
        command._tell(found(tmp_path), tmp_path / "stoker.toml", True)
    assert json.loads(capsys.readouterr().out)["settings"] == {"num_workers": 4}
    with pytest.raises(NotPermitted, match="name another --out FILE"):
        command._tell(found(tmp_path), tmp_path / "gone" / "stoker.toml", True)
    assert json.loads(capsys.readouterr().out)["settings"] == {"num_workers": 4}
