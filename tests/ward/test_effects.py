"""A campaign: what each case's cause costs here, beside the same script without it. Writes a table.

    WARD_EFFECTS=effects .venv/bin/python -m pytest tests/ward/test_effects.py -m slow

A case's result is a file of its own in the folder that WARD_EFFECTS names; those that are there already
are not measured again. `table.md` joins them. No rate is asserted: what is below 1.3 stands in the table.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from stoker.ward.case import NO_ALARM
from stoker.ward.catalogue import Case, cases, injectable
from ward.rates import Told, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SECONDS = float(os.environ.get("WARD_SECONDS", "5"))
LIMIT = 90.0
# A cause that costs time costs at least this much of it.
WORTH = 1.3
WRONG = [case for case in cases() if case.cause not in NO_ALARM]
RIGHT = [case for case in cases() if case.cause in NO_ALARM]


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Rates in steps a second with the cause and without, and the bytes that workers have of their own."""

    id: str
    cause: str
    variant: str
    effect: str
    rate: float | None
    neutral_rate: float | None
    ratio: float | None
    longest_ms: float | None
    worker_mb: float
    neutral_worker_mb: float
    died: bool
    neutral_died: bool


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the results, and at the end the table over them."""
    named = os.environ.get("WARD_EFFECTS")
    folder = Path(named) if named else tmp_path_factory.mktemp("effects")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def measure(case: Case, folder: Path) -> Effect:
    """Run the case and its neutral form, or take the result that is there."""
    file = folder / f"{case.id}.json"
    if file.exists():
        return Effect(**json.loads(file.read_text()))
    with_cause = run(case, seconds=SECONDS, limit=LIMIT)
    without = run(case.without_cause(), seconds=SECONDS, limit=LIMIT) if case.neutral else None
    found = effect_of(case, with_cause, without)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(asdict(found), indent=1))
    part.replace(file)
    (folder / "table.md").write_text(table(folder))
    return found


def effect_of(case: Case, with_cause: Told, without: Told | None) -> Effect:
    """What two runs of a case say about its cause."""
    ratio = None
    if without and without.rate and with_cause.rate and case.neutral:
        ratio = without.rate * case.neutral.steps / with_cause.rate
    return Effect(
        id=case.id,
        cause=case.cause,
        variant=case.variant,
        effect=case.effect,
        rate=with_cause.rate,
        neutral_rate=without.rate if without else None,
        ratio=ratio,
        longest_ms=None if with_cause.longest_s is None else with_cause.longest_s * 1000,
        worker_mb=with_cause.worker_bytes / 2**20,
        neutral_worker_mb=without.worker_bytes / 2**20 if without else 0.0,
        died=with_cause.died,
        neutral_died=bool(without and without.died),
    )


def table(folder: Path) -> str:
    """All results as Markdown, in the catalogue's order."""
    lines = [
        "| cause | case | steps/s | without it | ratio | longest step, ms | workers, MB | without it |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in cases():
        file = folder / f"{case.id}.json"
        if reason := injectable(case):
            lines.append(f"| `{case.cause}` | {case.id} | not here: {reason} | | | | | |")
        elif file.exists():
            lines.append(row(Effect(**json.loads(file.read_text()))))
    return "\n".join(lines) + "\n"


def row(found: Effect) -> str:
    rate = "dies" if found.died else told(found.rate)
    without = "" if found.neutral_rate is None else told(found.neutral_rate)
    below = found.effect == "time" and found.ratio is not None and found.ratio < WORTH
    ratio = "" if found.ratio is None else f"{found.ratio:.2f}{' (!)' if below else ''}"
    memory = f"{found.worker_mb:.0f} | {found.neutral_worker_mb:.0f}" if found.effect == "memory" else " | "
    longest = told(found.longest_ms)
    return f"| `{found.cause}` | {found.id} | {rate} | {without} | {ratio} | {longest} | {memory} |"


def told(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.id)
def test_the_cause_is_there_and_goes_with_the_neutral_form(case: Case, results: Path) -> None:
    """With it a run is slower, holds more memory or dies; without it the same script runs."""
    if reason := injectable(case):
        pytest.skip(reason)
    found = measure(case, results)
    assert not found.neutral_died
    assert found.neutral_rate is not None
    if case.effect == "death":
        assert found.died
    elif case.effect == "memory":
        assert found.worker_mb > 1.5 * found.neutral_worker_mb
    else:
        assert found.rate is not None
        assert not found.died


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.id)
def test_a_run_with_nothing_wrong_runs(case: Case, results: Path) -> None:
    """It trains for as long as it is looked at."""
    if reason := injectable(case):
        pytest.skip(reason)
    found = measure(case, results)
    assert found.rate is not None
    assert not found.died


SMALL_ON_CPU = {
    "cloud_masks.py": ("--depth", "2", "--batch", "2"),
    "sparse_scores.py": ("--layers", "2"),
    "answer_tokens.py": ("--depth", "1", "--width", "32"),
    "volume_segments.py": ("--shape", "8", "16", "16", "--width", "4"),
    "hyperspectral_cubes.py": ("--batch", "2", "--bands", "8"),
    "rail_cameras.py": ("--batch", "2", "--side", "32", "--workers", "1"),
    "sar_autoencoder.py": ("--base", "4", "--blocks", "1", "--batch", "2", "--side", "32"),
    "dialogue_turns.py": ("--longest", "128", "--width", "32"),
    "street_scenes.py": ("--width", "8", "--depth", "1", "--batch", "2", "--side", "16"),
}


@pytest.mark.parametrize("script", SMALL_ON_CPU)
def test_a_script_for_a_card_trains_on_a_cpu_too(script: str) -> None:
    """Small, so that what is wrong with the script itself is found where there is no card."""
    small = ("--device", "cpu", *SMALL_ON_CPU[script])
    told = run(Case(id="small", script=script, args=small, cause="healthy", variant=""), steps=3)
    assert told.steps == 3, told.output


@pytest.mark.parametrize("case", [*WRONG, *RIGHT], ids=lambda case: case.id)
def test_every_script_makes_the_same_steps_under_other_names(case: Case) -> None:
    """After two steps its weights are bit for bit those of the script as written."""
    if case.effect == "death" or case.ranks > 1:
        pytest.skip("it has no second step, or which rank is first to make one is chance")
    if reason := injectable(case):
        pytest.skip(reason)
    written, changed = run(case, steps=2), run(case, steps=2, renamed=True)
    assert written.digest is not None, written.output
    assert written.digest == changed.digest, changed.output
