"""`stoker bench overhead`: its figures, and the whole of it on a very small budget."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.bench import Options, run
from stoker.bench.overhead_figures import figures_of, page
from stoker.bench.peers import Peer, find_peer
from stoker.bench.result import Result, read_result
from stoker.cli import main
from stoker.errors import UsageError


def stretch(how: str, size: str, kind: str, ms: float) -> dict[str, Any]:
    """Ten steps of so many milliseconds, the workers' CPU time not known."""
    seconds = ms / 100
    return {
        "how": how,
        "size": size,
        "kind": kind,
        "steps": 10,
        "seconds": seconds,
        "cpu_training_thread": seconds,
        "cpu_other_threads": 0.0,
        "cpu_workers": None,
    }


def turns(how: str, size: str, *measured: tuple[str, float]) -> list[dict[str, Any]]:
    return [stretch(how, size, kind, ms) for kind, ms in measured]


RUNS = [
    *turns("toggle", "1ms", ("bare", 1.0), ("observed", 1.02), ("bare", 1.0)),
    *turns("toggle", "10ms", ("bare", 10.0), ("observed", 10.03), ("bare", 10.0)),
    *turns("process", "10ms", ("bare", 10.0), ("observed", 10.0), ("traceml", 10.5), ("bare", 10.0)),
]


def test_the_headline_is_at_ten_milliseconds() -> None:
    """`us_per_step` and the peer's are those of the 10 ms step, as is the percentage."""
    figures = figures_of(RUNS)
    assert pytest.approx(figures["us_per_step"]) == 30
    assert pytest.approx(figures["percent_at_10ms"]) == 0.3
    assert pytest.approx(figures["us_per_step_peer_traceml"]) == 500


def test_every_size_has_its_own_figures() -> None:
    """Each size's overhead, and the bare step that it was taken from."""
    figures = figures_of(RUNS)
    assert pytest.approx(figures["us_per_step_1ms"]) == 20
    assert pytest.approx(figures["bare_ms_1ms"]) == 1


def test_a_ratio_is_our_rate_over_theirs() -> None:
    """A peer under which steps take longer gives a ratio above 1."""
    assert pytest.approx(figures_of(RUNS)["rate_over_peer_traceml_10ms"]) == 1.05


def test_what_was_not_measured_has_no_figure() -> None:
    """No peer, no figure of it; no CPU time of the workers, none either."""
    figures = figures_of([*RUNS[:6], {"how": "skipped", "kind": "traceml", "why": "absent"}])
    assert not [key for key in figures if "traceml" in key or "workers" in key or "process" in key]


def test_the_page_shows_each_hardware_and_what_was_left_out() -> None:
    """A section for each result; a missing peer is said with the reason, and is n/a."""
    runs = [*RUNS[:6], {"how": "skipped", "kind": "traceml", "why": "not installed"}]
    made = Result(bench="overhead", hardware="cpu", figures=figures_of(runs), runs=runs, versions={})
    text = page([made])
    assert "## cpu" in text
    assert "traceml was left out: not installed." in text
    assert "| TraceML (auto) by processes, us a step | n/a | n/a |" in text


def test_an_absent_peer_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No environment, or one without the package: a word on why, not an error."""
    monkeypatch.chdir(tmp_path)
    assert "scripts/bench" in str(find_peer("ghost", "ghost", python=None, path=None))
    assert "ghost_peer" in str(find_peer("ghost", "ghost_peer", python=None, path=tmp_path))


def test_a_peer_unpacked_in_a_folder_is_found(tmp_path: Path) -> None:
    """A package in the folder given is a peer for this interpreter, with the folder on its path."""
    (tmp_path / "ghost_peer.py").write_text("__version__ = '7'\n")
    peer = find_peer("ghost", "ghost_peer", python=None, path=tmp_path)
    assert isinstance(peer, Peer)
    assert peer.version == "7"
    assert str(tmp_path) in peer.env["PYTHONPATH"]


def test_an_unknown_benchmark_is_answered_with_all_names(tmp_path: Path) -> None:
    """A misspelt name gets the names that there are."""
    with pytest.raises(UsageError, match="overhead"):
        run("overhaed", Options(), tmp_path)


@pytest.mark.parametrize("words", [["--device", "tpu"], ["--size", "0"]])
def test_wrong_use_ends_with_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """What cannot be measured is refused before anything is started."""
    monkeypatch.setattr(sys, "argv", ["stoker", "bench", "overhead", "--out", str(tmp_path), *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_measures_and_writes(tmp_path: Path) -> None:
    """The smallest real run gives a valid file with the figures that are asked for, and its page."""
    words = ["--device", "cpu", "--seconds", "1", "--size", "10", "--no-peers", "--json"]
    command = [sys.executable, "-m", "stoker", "bench", "overhead", "--out", str(tmp_path), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    (told,) = answer["results"]
    kept = read_result(Path(told["file"]))
    assert told["figures"] == kept.figures
    assert {"us_per_step", "us_per_step_low", "percent_at_10ms", "bare_ms_10ms"} <= set(kept.figures)
    assert kept.figures["modules"] >= 150
    assert [kept.hardware, kept.bench] == ["cpu", "overhead"]
    assert {"how": "skipped", "kind": "traceml", "why": "not asked for"} in kept.runs
    observed = [one for one in kept.runs if one.get("kind") == "observed"]
    assert {"toggle", "process"} == {one["how"] for one in observed}
    assert "stoker bench:" in done.stderr
    assert (tmp_path / "overhead.md").read_text().startswith("# What observing costs")
