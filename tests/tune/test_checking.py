"""What changes are held to in a search: each to its own kind, beside what is kept before it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_search import STARVED, by_workers, tuned

from stoker.changes import Kind
from stoker.doctor.verdict import Named, reach
from stoker.tune import micro_batch
from stoker.tune.checking import Checks
from stoker.tune.meaning import Probe
from stoker.tune.micro_trial import MicroTrial
from stoker.tune.search import Search

ALLOWED: frozenset[Kind] = frozenset(("same", "redraw", "numerics", "optimization"))


class Machine:
    """A script's first steps, by settings: parts and half precision each move losses and weights by so much.

    `norm` is a layer that sees parts.
    """

    def __init__(self, *, parts: float = 1e-6, half: float = 0.004, norm: str | None = None) -> None:
        self._parts, self._half, self._norm = parts, half, norm
        self.probed: list[tuple[Mapping[str, Any], int, bool]] = []

    def probe(self, settings: Mapping[str, Any], seed: int, dropout: bool) -> Probe:
        self.probed.append((settings, seed, dropout))
        moved = self._parts * ("micro_batch" in settings) + self._half * ("autocast" in settings)
        entries = [1.1 + moved] * 40
        return Probe(
            ids=[[seed]],
            batches=[seed],
            losses=[(1.0 + 0.02 * seed) * (1 + moved)],
            weights=[([1.0] * 40, entries)],
            rates=[[0.1]],
            batch_norm=self._norm if "micro_batch" in settings else None,
        )


def test_parts_that_make_other_weights_are_refused_whatever_is_allowed() -> None:
    """Nothing in the model makes them another optimization: it is a loop that parts are wrong for."""
    found = Checks(probe=Machine(parts=0.05).probe, kinds=ALLOWED).check({"micro_batch": 16})
    assert (found.kind, found.holds) == ("optimization", False)


@pytest.mark.parametrize("parts", [1e-6, 0.05])
def test_parts_with_batch_norm_are_another_optimization(parts: float) -> None:
    """By what the probe met, however near the weights are; kept where that is allowed, and said."""
    machine = Machine(parts=parts, norm="BatchNorm2d")
    refused = Checks(probe=machine.probe, kinds=ALLOWED - {"optimization"}).check({"micro_batch": 16})
    assert (refused.kind, refused.holds) == ("optimization", False)
    kept = Checks(probe=machine.probe, kinds=ALLOWED).check({"micro_batch": 16})
    assert (kept.kind, kept.holds) == ("optimization", True)
    assert kept.by.startswith("BatchNorm2d sees a part of a batch")


def test_what_comes_after_parts_with_batch_norm_is_no_other_optimization() -> None:
    """It is allowed for that change alone: losses that half precision moves by a third are refused."""
    checks = Checks(probe=Machine(parts=0.05, half=0.3, norm="BatchNorm2d").probe, kinds=ALLOWED)
    assert checks.check({"micro_batch": 16}).holds
    found = checks.check({"micro_batch": 16, "autocast": "bf16"})
    assert (found.kind, found.holds) == ("optimization", False)


def test_after_parts_half_precision_is_held_beside_parts() -> None:
    """Not to weights of whole batches in float32, from which half precision is 4% of an update off."""
    machine = Machine()
    checks = Checks(probe=machine.probe, kinds=ALLOWED)
    assert checks.check({"micro_batch": 16}).holds
    both = {"micro_batch": 16, "autocast": "bf16"}
    assert checks.missing(both) == 5
    machine.probed.clear()
    found = checks.check(both)
    assert (found.kind, found.holds) == ("numerics", True), found
    assert machine.probed[0] == ({"micro_batch": 16}, 0, True)


@pytest.mark.parametrize(("norm", "size"), [(None, 64), ("BatchNorm2d", 16)])
def test_the_finder_of_parts_asks_for_the_layer_too(
    monkeypatch: pytest.MonkeyPatch, norm: str | None, size: int
) -> None:
    """`--micro-batch --allow optimization`: parts that make other weights are taken with BatchNorm alone."""
    machine = Machine(parts=0.05, norm=norm)

    def take(command: object, settings: Mapping[str, Any], *, dropout: bool, **_: Any) -> Probe:
        return machine.probe(settings, 0, dropout)

    def hold(command: object, given: int, **_: Any) -> MicroTrial:
        rate = 300.0 if given == 16 else 100.0
        return MicroTrial(size=given, outcome="ran", reason="", rate=rate, batch=64, vram=None)

    monkeypatch.setattr(micro_batch, "take", take)
    monkeypatch.setattr(micro_batch, "hold", hold)
    found = micro_batch.find_micro_batch(["train.py"], allow_optimization=True)
    assert found.size == size, found


def test_parts_that_a_whole_search_refuses_come_with_lines_to_write(tmp_path: Path) -> None:
    """As those of `--micro-batch` do."""
    named = Named(cause="vram-overflow", share=0.4, certainty=0.9, evidence=(), cures=(), ceiling_after=None)
    verdict = reach(STARVED)
    wanted = Search(verdict=replace(verdict, named=(*verdict.named, named)), run=STARVED, kinds=ALLOWED)

    def rate_of(settings: Mapping[str, Any]) -> float:
        return by_workers(settings, most=4) * (1.5 if "micro_batch" in settings else 1.0)

    machine = Machine(parts=0.05)
    found = tuned(rate_of, tmp_path / "it", wanted=wanted, probe=machine.probe, seconds=300.0)
    one = next(one for one in found.tried if one.candidate.name == "micro_batch = 16")
    assert one.outcome == "refused"
    assert "of an update apart. Write them in the loop" in one.reason
    assert "x.split(16)" in one.reason


def test_a_trials_folder_tells_its_command_its_settings_and_what_was_shown(tmp_path: Path) -> None:
    """Whoever finds the folder alone can hold the trial again; what was never checked has no verdict."""
    found = tuned(by_workers, tmp_path / "it", probe=Machine().probe)
    trials = sorted((tmp_path / "it" / "trials").iterdir())
    told = [json.loads((folder / "trial.json").read_text()) for folder in trials]
    assert all(one["command"] == ["train.py"] for one in told)
    checked = [at for at, folder in enumerate(trials) if (folder / "check.json").exists()]
    kept = [one for one in found.tried if one.outcome == "kept"]
    assert [told[at]["settings"] for at in checked] == [one.settings for one in kept]
    verdict = json.loads((trials[checked[0]] / "check.json").read_text())
    assert verdict == {"kind": "same", "by": "1 losses are bit-identical", "holds": True}
